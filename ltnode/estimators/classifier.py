"""`LTNodeClassifier`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from ltnode.errors import InputError
from ltnode.estimators.base import LTNodeEstimator
from ltnode.estimators.uncertainty import FloatArray, Uncertainty


class LTNodeClassifier(ClassifierMixin, LTNodeEstimator):  # type: ignore[misc]
    """Classify table rows with uncertainty, by a neural ODE whose end-time is a latent variable.

    Inputs are standardised internally; labels may have any type. A prediction averages members that stop the ODE at different
    times, ``p(y | x) = mean_s softmax(head(h(T_s)))``, all from one solve, and does not depend on the other rows. Sample weights,
    sparse inputs and missing values are not supported.

    To save a fitted estimator, use ``joblib.dump(estimator, file)`` or pickle. ``ltnode.save(estimator.model_, folder)`` stores
    only the network, without ``scaler_`` and ``classes_``, and warns about it.

    Attributes:
        classes_: The sorted labels, in the order of the columns of probabilities.
        model_: The trained `ltnode.LatentTimeODE`; it takes ``scaler_.transform(X)``; its labels are positions in ``classes_``.
        scaler_: Standardisation of the inputs.
        n_features_in_, feature_names_in_: As in every scikit-learn estimator.
        n_iter_: Number of epochs that were run.
        loss_curve_: Mean training loss of every epoch.
        validation_scores_: Held-out log-likelihood of every epoch; None if no rows were held out.
        validation_rows_, calibration_rows_: Numbers of the rows that were held out to choose, and of those that chose nothing;
            None if no rows were.
    """

    _task = "classification"

    def fit(self, X: Any, y: Any) -> LTNodeClassifier:
        """Train on inputs (n_samples, n_features) and labels (n_samples,) of at least two classes."""
        goes_on = self._goes_on()
        X, y = validate_data(self, X, y, dtype=np.float64, reset=not goes_on)
        check_classification_targets(y)
        if not goes_on:
            self.classes_ = self._checked_classes(y)
        self._fit(X, self._positions(y), len(self.classes_))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> LTNodeClassifier:
        """Train one pass over some rows, starting from the current weights.

        The first rows determine the standardisation of the inputs, so they should be typical. No rows are held out.

        Args:
            X: Inputs (n_samples, n_features).
            y: Labels (n_samples,).
            classes: All labels that can occur in any call; required in the first call and optional afterwards.
        """
        first = not hasattr(self, "model_")
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise InputError("the first call of partial_fit needs classes, all labels that can occur in any call")
            self.classes_ = self._checked_classes(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes must be those of the first call, {list(self.classes_)}, not {list(np.unique(classes))}")
        self._partial_fit(X, self._positions(y), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities (n_samples, n_classes), averaged over the members; the columns are ordered as ``classes_``."""
        probabilities = self._columns(X, "probs")[0]
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of `predict_proba`, finite even where a probability underflows to 0."""
        return self._columns(X, "log_probs")[0]

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of every row."""
        labels: NDArray[Any] = self.predict_proba(X).argmax(axis=1)
        return self.classes_[labels]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Entropy of every prediction in nats, its two parts, and how familiar the row is; see `Uncertainty`."""
        return Uncertainty(*self._columns(X, "entropy", "aleatoric", "epistemic", "distance", "familiarity"))

    def _checked_classes(self, labels: Any) -> NDArray[Any]:
        classes = np.unique(np.asarray(labels))
        if len(classes) < 2:
            raise InputError(
                f"{type(self).__name__} needs labels of at least 2 classes, but there is only one class: {classes[0]!r}"
            )
        return classes

    def _positions(self, y: NDArray[Any]) -> NDArray[np.int64]:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y contains the labels {list(unknown)}, which are not among the classes {list(self.classes_)}")
        return np.searchsorted(self.classes_, y).astype(np.int64)
