"""scikit-learn front: `LTNodeClassifier` and `LTNodeRegressor` for tables (extra ``sklearn``).

Read in this order: ``base`` (parameters, fit, predict), ``epochs`` (training until it is enough), ``held_out`` (what the held-out
part decides), ``classifier`` and ``regressor`` (labels and targets), ``uncertainty`` (what they return).
"""

from ltnode.errors import missing_extra

try:
    import sklearn as _sklearn  # noqa: F401  (the classes below derive from its own)
except ImportError:
    raise missing_extra("scikit-learn", "sklearn", "LTNodeClassifier and LTNodeRegressor") from None

from ltnode.estimators.classifier import LTNodeClassifier
from ltnode.estimators.regressor import LTNodeRegressor
from ltnode.estimators.uncertainty import RegressionUncertainty, Uncertainty

__all__ = ["LTNodeClassifier", "LTNodeRegressor", "RegressionUncertainty", "Uncertainty"]
