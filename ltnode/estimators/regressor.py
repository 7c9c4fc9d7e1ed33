"""`LTNodeRegressor`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, overload

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_array
from sklearn.utils.validation import check_is_fitted, column_or_1d

from ltnode.data import Split
from ltnode.errors import InputError, unknown_name
from ltnode.estimators.base import LTNodeEstimator
from ltnode.estimators.columns import predicted_columns
from ltnode.estimators.conformal import conformal_factor, conformal_scores
from ltnode.estimators.networks import networks_of
from ltnode.estimators.rows import Examples, categorical_columns, checked_rows, target_name
from ltnode.estimators.uncertainty import FloatArray, RegressionUncertainty
from ltnode.estimators.weights import checked_weights
from ltnode.tables import Target

_NOISES = ("auto", "constant", "varying")


class LTNodeRegressor(RegressorMixin, LTNodeEstimator):  # type: ignore[misc]
    """Predict real values of table rows with uncertainty, by a neural ODE whose end-time is a latent variable.

    Inputs and targets are standardised internally; all returned values are in units of the target. A prediction is the mean over
    members that stop the ODE at different times, all from one solve, and does not depend on the other rows. The noise is
    Gaussian; its standard deviation is learnt, and either the same for all rows or a function of the row. Several targets are
    independent given the row. DataFrames may have categories, booleans, dates and missing cells; matrices must be dense and
    finite.

    ``ltnode.save(estimator, folder)`` stores a fitted estimator with its preprocessing and without pickle, and
    ``ltnode.load(folder)`` returns it; joblib and pickle work, too.

    Attributes:
        model_: The trained `ltnode.models.Ensemble`, or `ltnode.LatentTimeODE` with ``members=1``; it takes standardised
            features, and its targets are standardised, too.
        schema_: Columns and encoding of a DataFrame with other cells than numbers (`ltnode.tables.Schema`); None for numbers.
        scaler_, target_scaler_: Standardisation of features and targets.
        noise_: Kind of the observation noise, ``"constant"`` or ``"varying"``.
        noise_std_: Standard deviation of the observation noise, in units of the target.
        interval_scores_: Sorted errors of the calibration rows, in standard deviations of their predictions; None without them.
        n_features_in_, feature_names_in_: As in every scikit-learn estimator.
        n_iter_: Number of epochs that were run before a ``refit``.
        loss_curve_: Mean training loss of every epoch, in standardised units.
        validation_scores_: Held-out log-likelihood of every epoch, in standardised units; None if no rows were held out.
        validation_rows_, calibration_rows_: Numbers of the rows that were held out to choose, which ``refit`` trains on
            afterwards, and of those that chose nothing; None if no rows were.
    """

    _task = "regression"

    def __init__(
        self,
        end_time: str = "gamma",
        *,
        noise: str = "auto",
        members: int = 5,
        width: int = 32,
        kl_weight: float | str = 0.1,
        learning_rate: float = 0.003,
        weight_decay: float | str = "auto",
        batch_size: int | str = "auto",
        max_epochs: int | str = "auto",
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.15,
        calibration_fraction: float = 0.05,
        refit: bool | str = "auto",
        n_iter_no_change: int = 20,
        tol: float = 1e-3,
        warm_start: bool = False,
        samples: int = 10,
        device: str = "cpu",
        n_threads: int | str = "auto",
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        """Parameters are those of `LTNodeClassifier`, and ``noise``.

        ``noise="constant"``: the observation noise has one standard deviation for all rows. ``"varying"``: it is a function of
        the row. ``"auto"``: the model with constant noise is trained further with varying noise, for half as many epochs, and
        the noise varies if that makes the log-likelihood of held-out rows clearly better; it is constant if no rows are held out.
        """
        super().__init__(
            end_time,
            members=members,
            width=width,
            kl_weight=kl_weight,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            batch_size=batch_size,
            max_epochs=max_epochs,
            early_stopping=early_stopping,
            validation_fraction=validation_fraction,
            calibration_fraction=calibration_fraction,
            refit=refit,
            n_iter_no_change=n_iter_no_change,
            tol=tol,
            warm_start=warm_start,
            samples=samples,
            device=device,
            n_threads=n_threads,
            random_state=random_state,
            verbose=verbose,
        )
        self.noise = noise

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LTNodeRegressor:
        """Train on rows (n_samples, n_features) and targets (n_samples,) or (n_samples, n_targets).

        Args:
            X: A matrix of numbers, or a DataFrame, which may have categories, booleans, dates and missing cells.
            y: Finite numbers.
            sample_weight: How many rows each row counts for, in the loss and where held-out rows choose; rows of weight 0 have no
                influence. Only the ratios of weights matter. None counts each row once.
        """
        self._fit(self._checked(X, y, sample_weight, reset=not self._goes_on()), None)
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> LTNodeRegressor:
        """Train one pass over some rows, starting from the current weights.

        The first rows determine the standardisation of inputs and targets, so they should be typical. No rows are held out, and
        ``noise="auto"`` is constant.
        """
        self._partial_fit(self._checked(X, y, sample_weight, reset=not hasattr(self, "model_")), None)
        return self

    @property
    def noise_(self) -> str:
        """Kind of the noise that was chosen, ``"constant"`` or ``"varying"``."""
        check_is_fitted(self)
        return "varying" if networks_of(self.model_)[0].likelihood.outputs_per_target == 2 else "constant"

    @property
    def noise_std_(self) -> float | FloatArray:
        """Standard deviation of the observation noise in units of the target, (n_targets,) for several; typical if it varies."""
        noises = [network.likelihood.observation_noise() for network in networks_of(self.model_)]
        noise = torch.stack([noise.square() for noise in noises if noise is not None]).mean(dim=0).sqrt()
        return float(noise) * self._unit if noise.ndim == 0 else noise.cpu().numpy() * self._unit

    @overload
    def predict(self, X: Any, return_std: Literal[False] = False) -> FloatArray: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[FloatArray, FloatArray]: ...
    def predict(self, X: Any, return_std: bool = False) -> FloatArray | tuple[FloatArray, FloatArray]:
        """Predictive mean and, with ``return_std``, the standard deviation, each shaped as the targets of ``fit``.

        Args:
            X: Rows (n_samples, n_features).
            return_std: Return ``(mean, std)``, where std is the total ``sqrt(model_std**2 + noise_std**2)``; the part of the
                model is ``predict_uncertainty(X).model_std``.
        """
        mean, std = self._columns(X, "mean", "total_std")
        mean = self.target_scaler_.inverse_transform(mean.reshape(len(mean), -1)).reshape(mean.shape)
        return (mean, std * self._unit) if return_std else mean

    def predict_interval(self, X: Any, alpha: float = 0.1) -> tuple[FloatArray, FloatArray]:
        """Lower and upper ends of intervals that hold the target of a new row with a probability of at least ``1 - alpha``.

        The intervals are ``mean +- q std``, where q is a quantile of the errors of the calibration rows, which chose nothing.
        The probability holds on average over tables and new rows, whatever the model is, for new rows that are exchangeable with
        the training rows: not after a shift. It holds for each of several targets, not for all of them together. Sample weights
        do not enter it.

        Args:
            X: Rows (n_samples, n_features).
            alpha: Share of the targets that may lie outside of their interval; at least 1 / (n + 1) with n calibration rows.

        Raises:
            InputError: No calibration rows were held out, or there are too few of them for ``alpha``.
        """
        check_is_fitted(self)
        if self.interval_scores_ is None:
            raise InputError(
                "predict_interval needs calibration rows, which fit holds out of 100 rows or more with early stopping and a "
                "positive calibration_fraction; partial_fit holds out none"
            )
        factor = conformal_factor(self.interval_scores_, alpha)
        mean, std = self.predict(X, return_std=True)
        return mean - factor * std, mean + factor * std

    def predict_uncertainty(self, X: Any) -> RegressionUncertainty:
        """Standard deviations, variances and entropy of every prediction; see `RegressionUncertainty`."""
        *columns, distance, familiarity = self._columns(X, "std", "total_std", "noise_std", "distance", "familiarity")
        model_std, std, noise_std = (column * self._unit for column in columns)
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

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn should know: there may be several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @staticmethod
    def _entropy(std: FloatArray) -> FloatArray:
        entropy: FloatArray = np.log(std) + 0.5 * math.log(2 * math.pi * math.e)
        return entropy if entropy.ndim == 1 else entropy.sum(axis=1)

    @property
    def _unit(self) -> float | FloatArray:
        """One standardised unit of each target, (n_targets,) for several."""
        scale: FloatArray = self.target_scaler_.scale_
        return float(scale[0]) if len(scale) == 1 else scale

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.noise not in _NOISES:
            raise InputError(unknown_name("noise", self.noise, _NOISES))

    def _noises(self, selects: bool) -> Sequence[str]:
        if self.noise == "auto":
            return ("constant", "varying") if selects else ("constant",)
        return (self.noise,)

    def _prepare(self, known: Examples, n_classes: int | None) -> None:
        targets = known.target.reshape(len(known), -1)
        self.target_scaler_ = StandardScaler().fit(targets, sample_weight=known.weights)
        super()._prepare(known, n_classes)

    def _table(self, given: Examples) -> Split:
        target = self.target_scaler_.transform(given.target.reshape(len(given), -1)).reshape(given.target.shape)
        return super()._table(replace(given, target=target))

    def _calibrate(self, calibration: Split | None) -> None:
        self.interval_scores_: FloatArray | None = None
        if calibration is not None:
            mean, std = predicted_columns(self._predictions(calibration.x), "mean", "total_std")
            self.interval_scores_ = conformal_scores(calibration.y.numpy(), mean, std)

    def _target(self, name: str) -> Target:
        return Target(name, "regression")

    def _checked(self, X: Any, y: Any, sample_weight: Any, reset: bool) -> Examples:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None")
        rows = checked_rows(self, X, None if reset else self.schema_, reset, y)
        targets = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y", estimator=self)
        targets = targets if targets.ndim == 2 and targets.shape[1] > 1 else column_or_1d(targets, warn=True)
        if not reset and _n_targets(targets) != len(self.target_scaler_.scale_):
            raise InputError(f"y must have {len(self.target_scaler_.scale_)} targets as before, not {_n_targets(targets)}")
        return Examples(rows, targets, checked_weights(sample_weight, len(targets)), categorical_columns(X), target_name(y))


def _n_targets(targets: FloatArray) -> int:
    return 1 if targets.ndim == 1 else targets.shape[1]
