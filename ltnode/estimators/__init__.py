"""scikit-learn estimators for tables: `LTNodeClassifier` and `LTNodeRegressor` (extra ``sklearn``).

Read in this order: ``base`` (parameters, fit, predict), ``parts`` (which rows are held out), ``epochs`` (training with early
stopping), ``held_out`` (how the held-out rows determine the confidence), ``classifier`` and ``regressor`` (labels and targets),
``uncertainty`` (the returned values).
"""

from ltnode.errors import missing_extra

try:
    import sklearn as _sklearn  # noqa: F401  (the classes below derive from its classes)
except ImportError:
    raise missing_extra("scikit-learn", "sklearn", "LTNodeClassifier and LTNodeRegressor") from None

from ltnode.estimators.classifier import LTNodeClassifier
from ltnode.estimators.regressor import LTNodeRegressor
from ltnode.estimators.uncertainty import RegressionUncertainty, Uncertainty

__all__ = ["LTNodeClassifier", "LTNodeRegressor", "RegressionUncertainty", "Uncertainty"]
