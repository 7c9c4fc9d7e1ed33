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
    """Classes of table rows with uncertainty, by a neural ODE whose end-time is a latent variable.

    Inputs are standardised inside; labels may be of any type. A prediction averages members that stop the ODE at different
    times, ``p(y | x) = mean_s softmax(head(h(T_s)))``, from one solve, and depends on its row alone. Sample weights, sparse
    inputs and missing values are not supported.

    Attributes:
        classes_: The labels, sorted: the order of the columns of probabilities.
        model_: The trained `ltnode.LatentTimeODE`; its inputs are ``scaler_.transform(X)``, its labels positions in ``classes_``.
        scaler_: The standardisation of the inputs.
        n_features_in_, feature_names_in_: As everywhere in scikit-learn.
        n_iter_: Epochs that were run.
        loss_curve_: Mean training loss of every epoch.
        validation_scores_: Held-out log-likelihood of every epoch; None without a held-out part.
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
        """One pass over some rows, on top of what was learnt before.

        The first rows decide how inputs are standardised, so they should be typical. No rows are held out.

        Args:
            X: Inputs (n_samples, n_features).
            y: Labels (n_samples,).
            classes: All labels that will ever come; needed in the first call, and then no longer.
        """
        first = not hasattr(self, "model_")
        X, y = validate_data(self, X, y, dtype=np.float64, reset=first)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise InputError("the first call of partial_fit needs classes, all labels that will ever come")
            self.classes_ = self._checked_classes(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes are {list(np.unique(classes))}, but those of the first call were {list(self.classes_)}")
        self._partial_fit(X, self._positions(y), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Probabilities (n_samples, n_classes), averaged over the members; columns as in ``classes_``."""
        probabilities = self._columns(X, "probs")[0]
        return probabilities / probabilities.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> FloatArray:
        """Logarithms of `predict_proba`, exact where a probability is too small to be told from 0."""
        return self._columns(X, "log_probs")[0]

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of every row."""
        labels: NDArray[Any] = self.predict_proba(X).argmax(axis=1)
        return self.classes_[labels]

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Entropy of every prediction in nats, and its split into aleatoric and epistemic; see `Uncertainty`."""
        return Uncertainty(*self._columns(X, "entropy", "aleatoric", "epistemic"))

    def score_samples(self, X: Any) -> FloatArray:
        """How familiar rows look: ``-entropy`` of the prediction in nats, (n_samples,); larger is more in-distribution.

        0 is the most familiar, ``-log(n_classes)`` the least. A row between two classes gets a low score too.
        """
        return -self._columns(X, "entropy")[0]

    def _checked_classes(self, labels: Any) -> NDArray[Any]:
        classes = np.unique(np.asarray(labels))
        if len(classes) < 2:
            raise InputError(
                f"{type(self).__name__} needs labels of at least 2 classes, but there is one class only: {classes[0]!r}"
            )
        return classes

    def _positions(self, y: NDArray[Any]) -> NDArray[np.int64]:
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise InputError(f"y holds the labels {list(unknown)}, which are not among the classes so far: {list(self.classes_)}")
        return np.searchsorted(self.classes_, y).astype(np.int64)
