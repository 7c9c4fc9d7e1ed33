"""scikit-learn estimators for tables: `LTNodeClassifier` and `LTNodeRegressor` (extra ``sklearn``).

Read in this order: ``base`` (parameters, fit, predict), ``rows`` and ``weights`` (what users give), ``parts`` (which rows are
held out), ``epochs`` (training with early stopping), ``held_out`` (how the held-out rows determine the confidence),
``candidates`` (how they choose between models), ``classifier`` and ``regressor`` (labels and targets), ``columns`` and
``uncertainty`` (the returned values), ``conformal`` (intervals), ``threads``, ``saving`` and ``saved_values`` (folders).
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
