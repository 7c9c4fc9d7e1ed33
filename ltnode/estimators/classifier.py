"""`LTNodeClassifier`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from ltnode.errors import InputError
from ltnode.estimators.base import LTNodeEstimator
from ltnode.estimators.rows import Examples, categorical_columns, checked_rows, target_name
from ltnode.estimators.uncertainty import FloatArray, Uncertainty
from ltnode.estimators.weights import checked_weights
from ltnode.tables import Target


class LTNodeClassifier(ClassifierMixin, LTNodeEstimator):  # type: ignore[misc]
    """Classify table rows with uncertainty, by a neural ODE whose end-time is a latent variable.

    Inputs are standardised internally; labels may have any type. A prediction averages members that stop the ODE at different
    times, ``p(y | x) = mean_s softmax(head(h(T_s)))``, all from one solve, and does not depend on the other rows. DataFrames may
    have categories, booleans, dates and missing cells; matrices must be dense and finite.

    ``ltnode.save(estimator, folder)`` stores a fitted estimator with its preprocessing and without pickle, and
    ``ltnode.load(folder)`` returns it; joblib and pickle work, too.

    Attributes:
        classes_: The sorted labels, in the order of the columns of probabilities.
        model_: The trained `ltnode.models.Ensemble`, or `ltnode.LatentTimeODE` with ``members=1``; it takes standardised
            features, and its labels are positions in ``classes_``.
        schema_: Columns and encoding of a DataFrame with other cells than numbers (`ltnode.tables.Schema`); None for numbers.
        scaler_: Standardisation of the features.
        n_features_in_, feature_names_in_: As in every scikit-learn estimator.
        n_iter_: Number of epochs that were run before a ``refit``.
        loss_curve_: Mean training loss of every epoch.
        validation_scores_: Held-out log-likelihood of every epoch; None if no rows were held out.
        validation_rows_, calibration_rows_: Numbers of the rows that were held out to choose, which ``refit`` trains on
            afterwards, and of those that chose nothing; None if no rows were.
    """

    _task = "classification"
    _prior = 0.5

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LTNodeClassifier:
        """Train on rows (n_samples, n_features) and labels (n_samples,) of at least two classes.

        Args:
            X: A matrix of numbers, or a DataFrame, which may have categories, booleans, dates and missing cells.
            y: Labels of any type.
            sample_weight: How many rows each row counts for, in the loss and where held-out rows choose; rows of weight 0 have no
                influence. Only the ratios of weights matter. None counts each row once.
        """
        goes_on = self._goes_on()
        given = self._labelled(X, y, sample_weight, reset=not goes_on)
        if not goes_on:
            weighted = given.weights
            self.classes_ = self._checked_classes(given.target if weighted is None else given.target[weighted > 0])
        self._fit(self._with_positions(given), len(self.classes_))
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> LTNodeClassifier:
        """Train one pass over some rows, starting from the current weights.

        The first rows determine the standardisation of the inputs, so they should be typical. No rows are held out.

        Args:
            X: Rows (n_samples, n_features).
            y: Labels (n_samples,).
            classes: All labels that can occur in any call; required in the first call and optional afterwards.
            sample_weight: How many rows each row counts for; None counts each once.
        """
        first = not hasattr(self, "model_")
        given = self._labelled(X, y, sample_weight, reset=first)
        if first:
            if classes is None:
                raise InputError("the first call of partial_fit needs classes, all labels that can occur in any call")
            self.classes_ = self._checked_classes(classes)
        elif classes is not None and not np.array_equal(np.unique(classes), self.classes_):
            raise InputError(f"classes must be those of the first call, {list(self.classes_)}, not {list(np.unique(classes))}")
        self._partial_fit(self._with_positions(given), len(self.classes_))
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

    def _labelled(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Examples:
        """Checked rows and labels of any type."""
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        rows = checked_rows(self, X, None if reset else self.schema_, reset, y)
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        assert_all_finite(labels, input_name="y")
        weights = checked_weights(sample_weight, len(labels))
        return Examples(rows, labels, weights, categorical_columns(X), target_name(y))

    def _with_positions(self, given: Examples) -> Examples:
        """Replace labels by their positions in ``classes_``; rows of weight 0 may have labels that are not among them."""
        strange = ~np.isin(given.target, self.classes_)
        unknown = np.unique(given.target[strange if given.weights is None else strange & (given.weights > 0)])
        if len(unknown):
            raise InputError(f"y contains the labels {list(unknown)}, which are not among the classes {list(self.classes_)}")
        positions = np.searchsorted(self.classes_, given.target).astype(np.int64)
        return replace(given, target=np.where(strange, 0, positions))

    def _target(self, name: str) -> Target:
        return Target(name, "classification", tuple(str(label) for label in self.classes_))
