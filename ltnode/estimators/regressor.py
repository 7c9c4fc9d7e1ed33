"""`LTNodeRegressor`."""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import column_or_1d, validate_data

from ltnode.data import Split
from ltnode.estimators.base import LTNodeEstimator
from ltnode.estimators.uncertainty import FloatArray, RegressionUncertainty


class LTNodeRegressor(RegressorMixin, LTNodeEstimator):  # type: ignore[misc]
    """Predict real values of table rows with uncertainty, by a neural ODE whose end-time is a latent variable.

    Inputs and targets are standardised internally; all returned values are in units of the target. A prediction is the mean over
    members that stop the ODE at different times, all from one solve, and does not depend on the other rows. The noise is Gaussian
    with one learnt standard deviation for all rows. Several targets, sample weights, sparse inputs and missing values are not
    supported.

    To save a fitted estimator, use ``joblib.dump(estimator, file)`` or pickle. ``ltnode.save(estimator.model_, folder)`` stores
    only the network, without ``scaler_`` and ``target_scaler_``, and warns about it.

    Attributes:
        model_: The trained `ltnode.LatentTimeODE`; it takes ``scaler_.transform(X)``, and its targets are standardised, too.
        scaler_, target_scaler_: Standardisation of inputs and targets.
        noise_std_: Standard deviation of the observation noise, in units of the target.
        n_features_in_, feature_names_in_: As in every scikit-learn estimator.
        n_iter_: Number of epochs that were run.
        loss_curve_: Mean training loss of every epoch, in standardised units.
        validation_scores_: Held-out log-likelihood of every epoch, in standardised units; None if no rows were held out.
        validation_rows_, calibration_rows_: Numbers of the rows that were held out to choose, and of those that chose nothing;
            None if no rows were.
    """

    _task = "regression"

    def fit(self, X: Any, y: Any) -> LTNodeRegressor:
        """Train on inputs (n_samples, n_features) and targets (n_samples,)."""
        X, y = self._checked(X, y, reset=not self._goes_on())
        self._fit(X, y, None)
        return self

    def partial_fit(self, X: Any, y: Any) -> LTNodeRegressor:
        """Train one pass over some rows, starting from the current weights.

        The first rows determine the standardisation of inputs and targets, so they should be typical. No rows are held out.
        """
        X, y = self._checked(X, y, reset=not hasattr(self, "model_"))
        self._partial_fit(X, y, None)
        return self

    def _begin(self, X: FloatArray, target: FloatArray, n_classes: int | None, seed: int) -> None:
        self.target_scaler_ = StandardScaler().fit(target[:, None])
        super()._begin(X, target, n_classes, seed)

    def _table(self, X: FloatArray, target: FloatArray) -> Split:
        return super()._table(X, self.target_scaler_.transform(target[:, None])[:, 0])

    @property
    def noise_std_(self) -> float:
        """Standard deviation of the observation noise, in units of the target."""
        return self.model_.describe()["noise_std"] * self._unit

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> FloatArray: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[FloatArray, FloatArray]: ...
    def predict(self, X: Any, return_std: bool = False) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Predictive mean (n_samples,) and, with ``return_std``, the standard deviation of the prediction.

        Args:
            X: Inputs (n_samples, n_features).
            return_std: Return ``(mean, std)``, where std is the total ``sqrt(model_std**2 + noise_std**2)``; the part of the
                model is ``predict_uncertainty(X).model_std``.
        """
        mean, std = self._columns(X, "mean", "total_std")
        mean = self.target_scaler_.inverse_transform(mean[:, None])[:, 0]
        return (mean, std * self._unit) if return_std else mean

    def predict_uncertainty(self, X: Any) -> RegressionUncertainty:
        """Standard deviations, variances and entropy of every prediction; see `RegressionUncertainty`."""
        *columns, distance, familiarity = self._columns(X, "std", "total_std", "distance", "familiarity")
        model_std, std = (column * self._unit for column in columns)
        noise_std = np.full_like(std, self.noise_std_)
        return RegressionUncertainty(
            entropy=self._entropy(std),
            aleatoric=noise_std**2,
            epistemic=model_std**2,
            distance=distance,
            familiarity=familiarity,
            std=std,
            model_std=model_std,
            noise_std=noise_std,
        )

    @staticmethod
    def _entropy(std: FloatArray) -> FloatArray:
        return np.log(std) + 0.5 * math.log(2 * math.pi * math.e)

    @property
    def _unit(self) -> float:
        """One standardised unit of the target."""
        return float(self.target_scaler_.scale_[0])

    def _checked(self, X: Any, y: Any, reset: bool) -> tuple[FloatArray, FloatArray]:
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, reset=reset)
        return X, np.asarray(column_or_1d(y), dtype=np.float64)
