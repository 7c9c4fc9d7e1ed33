"""The common base of classifier and regressor: parameters, standardised inputs, training with held-out rows, prediction."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ltnode.checks import checked_count
from ltnode.data import Split
from ltnode.errors import InputError, unknown_name
from ltnode.estimators.epochs import Course, Patience, TableTraining
from ltnode.estimators.parts import draw_parts
from ltnode.estimators.uncertainty import FloatArray
from ltnode.models import InputSpec, LatentTimeODE, Prediction, build
from ltnode.training import TrainConfig
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")

END_TIMES: Mapping[str, str] = {
    "gamma": "lt-node",
    "amortized": "alt-node",
    "mixture": "lt-node-mixture",
    "uniform": "uni-node",
    "fixed": "node",
}
"""Values of ``end_time``, and the models of `ltnode.build` that they stand for."""

# float64 as in scikit-learn; at these sizes overhead dominates, so that a step takes about as long as in float32.
_DTYPE = torch.float64
_CHUNK = 4096
_STEPS_PER_EPOCH = 8
_BATCHES = (16, 256)
# The initial stem of ltnode.build is made for one feature and data with gaps; with several features, a quarter of its weights
# gives a smoother start.
_STEM_GAIN = 0.25
_SAVING_HINT = (
    "this model belongs to a scikit-learn estimator and takes inputs that its scaler_ has standardised, but ltnode.save does not "
    "store the scaler; save the whole estimator instead, for example with joblib.dump"
)


class LTNodeEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of `LTNodeClassifier` and `LTNodeRegressor`: everything except labels and targets."""

    _task: ClassVar[Literal["classification", "regression"]]

    def __init__(
        self,
        end_time: str = "gamma",
        *,
        width: int = 32,
        kl_weight: float | str = 0.1,
        learning_rate: float = 0.005,
        weight_decay: float = 0.0,
        batch_size: int | str = "auto",
        max_epochs: int = 100,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.15,
        calibration_fraction: float = 0.05,
        n_iter_no_change: int = 20,
        tol: float = 1e-3,
        warm_start: bool = False,
        samples: int = 10,
        device: str = "cpu",
        random_state: Any = None,
        verbose: int | bool = 0,
    ) -> None:
        """Parameters are checked in ``fit``.

        Args:
            end_time: Distribution of the end-time T: ``"gamma"`` (one learnt posterior for all inputs, LT-NODE), ``"amortized"``
                (one posterior per input, ALT-NODE), ``"mixture"`` (of three Gammas), ``"uniform"`` (not learnt, Uni-NODE) or
                ``"fixed"`` (T = 1, a plain neural ODE without model uncertainty). Learnt posteriors are truncated to the window
                (0, 3) that training covers.
            width: Size of the ODE state and of the hidden layers of its field.
            kl_weight: Weight of KL(q || prior) per example, or ``"elbo"`` for the literal bound; see docs/objective.md.
            learning_rate: Initial learning rate of Adam; it decays to 0 along half a cosine over ``max_epochs``.
            weight_decay: L2 penalty of the weights.
            batch_size: Rows per step; ``"auto"``: an eighth of the training rows, between 16 and 256.
            max_epochs: Largest number of passes over the training rows.
            early_stopping: Hold out ``validation_fraction`` of the rows, keep the epoch with the best held-out log-likelihood,
                and fit to them how confident predictions are and how they widen for unfamiliar rows. ``"auto"``: only with 50
                rows or more. False: train on all rows, and let the training loss determine when to stop; predictions of a
                classifier then do not widen, and there is no familiarity.
            validation_fraction: Share of the rows that is held out; stratified by class if every class has enough rows.
            calibration_fraction: Share of the rows, at least 19, that is held out in addition and chooses nothing. The distance
                of a new row is ranked among theirs, which gives its familiarity. Nothing is held out of fewer than 100 rows,
                without early stopping, or with 0; the familiarity is then NaN.
            n_iter_no_change: Stop after this many consecutive epochs without an improvement by more than ``tol``.
            tol: Smallest improvement that counts, in nats per example.
            warm_start: Start another ``fit`` from the weights and the standardisation of the last one.
            samples: Number of end-times per prediction: the members that it averages, all from one solve.
            device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"auto"``. Small tables are faster on the CPU.
            random_state: Seed of initial weights, held-out rows, order of the rows and training times. An int gives the same
                numbers in every run. Global generators are never changed, except that None draws one seed from NumPy's.
            verbose: Log every ``verbose`` epochs to the logger ``ltnode`` at level INFO; 0 is silent.
        """
        self.end_time = end_time
        self.width = width
        self.kl_weight = kl_weight
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.calibration_fraction = calibration_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.samples = samples
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # -- fitting ---------------------------------------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        """Whether this ``fit`` continues a previous one."""
        return bool(self.warm_start) and hasattr(self, "model_")

    def _fit(self, X: FloatArray, target: NDArray[Any], n_classes: int | None) -> None:
        """Train on validated inputs (N, D) and labels in 0..C-1 or targets (N,)."""
        self._check_parameters()
        seed = self._seed()
        if not self._goes_on():
            self._split_seed = seed
        # A fit that goes on with the same rows must not train on rows that were held out before.
        fractions = float(self.validation_fraction), float(self.calibration_fraction)
        labels = target if self._task == "classification" else None
        parts = draw_parts(len(X), labels, self.early_stopping, *fractions, self._split_seed)
        if not self._goes_on():
            # Calibration rows must not influence anything, not even the standardisation.
            known = np.arange(len(X)) if parts.calibrate is None else np.setdiff1d(np.arange(len(X)), parts.calibrate)
            self._begin(X[known], target[known], n_classes, seed)
        table = self._table(X, target)
        trained, held_out, calibration = (
            None if rows is None else table.select(torch.from_numpy(rows)) for rows in (parts.fit, parts.select, parts.calibrate)
        )
        assert trained is not None
        training = TableTraining(self.model_, trained, self._config(len(trained), seed))
        patience = Patience(int(self.n_iter_no_change), float(self.tol))
        course = training.run(patience, held_out, int(self.samples), self._report if self.verbose else None)
        training.finish()
        training.fit_familiarity(held_out, calibration, int(self.samples))
        self.validation_rows_, self.calibration_rows_ = parts.select, parts.calibrate
        self.n_iter_ = len(course.losses)
        self.loss_curve_ = course.losses
        self.validation_scores_ = course.scores if held_out is not None else None
        self._partial_state: dict[str, Any] | None = None

    def _partial_fit(self, X: FloatArray, target: NDArray[Any], n_classes: int | None) -> None:
        """Train one pass over some rows; the first call fits the standardisation, and Adam's moments are kept between calls."""
        self._check_parameters()
        if not hasattr(self, "model_"):
            self._begin(X, target, n_classes, self._seed())
            self.n_iter_, self.loss_curve_, self.validation_scores_ = 0, [], None
        self.validation_rows_ = self.calibration_rows_ = None
        state = getattr(self, "_partial_state", None) or {"seed": self._seed(), "optimizers": None}
        config = self._config(len(X), state["seed"]).replace(schedule="milestones")
        training = TableTraining(self.model_, self._table(X, target), config, first_epoch=self.n_iter_)
        if state["optimizers"] is not None:
            training.load_optimizer_state(state["optimizers"])
        self.loss_curve_ = [*self.loss_curve_, training.run_epoch()]
        training.finish()
        self.n_iter_ += 1
        self._partial_state = {**state, "optimizers": training.optimizer_state()}

    def _begin(self, X: FloatArray, target: NDArray[Any], n_classes: int | None, seed: int) -> None:
        """Fit the standardisation, and build a model with new weights."""
        self.scaler_ = StandardScaler().fit(X)
        spec = InputSpec((X.shape[1],), self._task, n_classes)
        options: dict[str, Any] = {} if self.end_time == "fixed" else {"objective": {"kl_weight": self.kl_weight}}
        model = build(END_TIMES[self.end_time], spec, seed=seed, width=int(self.width), **options)
        assert isinstance(model, LatentTimeODE)
        with torch.no_grad():
            for parameter in model.stem.parameters():
                parameter.mul_(_STEM_GAIN)
        vars(model)["saving_hint"] = _SAVING_HINT  # ltnode.save warns with it
        self.model_ = model.to(_DTYPE)

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _table(self, X: FloatArray, target: NDArray[Any]) -> Split:
        """Network inputs and targets."""
        return Split(self._inputs(X), torch.tensor(target, dtype=torch.int64 if self._task == "classification" else _DTYPE))

    def _inputs(self, X: FloatArray) -> Tensor:
        return torch.tensor(self.scaler_.transform(X), dtype=_DTYPE)

    def _config(self, rows: int, seed: int) -> TrainConfig:
        low, high = _BATCHES
        automatic = min(max(rows // _STEPS_PER_EPOCH, low), high)
        size = automatic if self.batch_size == "auto" else checked_count("batch_size", self.batch_size)
        return TrainConfig(
            seed=seed,
            epochs=int(self.max_epochs),
            batch_size=size,
            lr=float(self.learning_rate),
            weight_decay=float(self.weight_decay),
            schedule="cosine",
            device=self.device,
            accelerate="off",
        )

    def _report(self, course: Course) -> None:
        epoch = len(course.losses)
        if epoch % int(self.verbose) == 0:
            held_out = f", held-out log-likelihood {course.scores[-1]:.4f}" if course.scores else ""
            _LOG.info("%s: epoch %d, loss %.4f%s", type(self).__name__, epoch, course.losses[-1], held_out)

    def _check_parameters(self) -> None:
        """Check the parameters that `TrainConfig` and the model do not check."""
        if self.end_time not in END_TIMES:
            raise InputError(unknown_name("end_time", self.end_time, END_TIMES))
        for name in ("width", "max_epochs", "n_iter_no_change", "samples"):
            checked_count(name, getattr(self, name))
        if self.early_stopping not in (True, False, "auto"):
            raise InputError(f"early_stopping must be True, False or 'auto', not {self.early_stopping!r}")
        if not 0 < self.validation_fraction < 1:
            raise InputError(f"validation_fraction must be between 0 and 1, not {self.validation_fraction!r}")
        if not 0 <= self.calibration_fraction < 1:
            raise InputError(f"calibration_fraction must be at least 0 and below 1, not {self.calibration_fraction!r}")
        if not self.tol >= 0:
            raise InputError(f"tol must be a number >= 0, not {self.tol!r}")

    # -- prediction ------------------------------------------------------------------------------------------------------

    def _predictions(self, X: Any) -> Iterator[Prediction]:
        """Predictions of the rows in chunks of bounded size; the prediction of a row does not depend on the others."""
        check_is_fitted(self)
        inputs = self._inputs(validate_data(self, X, dtype=np.float64, reset=False))
        device = next(self.model_.parameters()).device
        for part in inputs.split(_CHUNK):
            yield self.model_.predict(part.to(device), samples=int(self.samples))

    def _columns(self, X: Any, *names: str) -> list[FloatArray]:
        """Attributes of the `Prediction` of all rows, as arrays; NaN where the model cannot tell."""
        parts = [[_values(p, name) for name in names] for p in self._predictions(X)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def score_samples(self, X: Any) -> FloatArray:
        """Familiarity scores (n_samples,): minus the distance of every row from the training rows; larger is more familiar.

        Typical training rows score about 0; scores have no lower bound. They do not depend on how certain the prediction is, for
        which `predict_uncertainty` has the entropy.

        Raises:
            InputError: The last training was a ``partial_fit``, which fits no distance.
        """
        check_is_fitted(self)
        if not self.model_.has_familiarity:
            raise InputError("score_samples needs the distance, which partial_fit does not fit; call fit with all rows")
        return -self._columns(X, "distance")[0]

    def explain_distance(self, X: Any) -> FloatArray:
        """How much every column contributes to the distance of every row, (n_samples, n_features).

        A value is the amount by which the distance of the row falls if the column is replaced by its mean over the training rows;
        it is negative where that would make the row less familiar. Contributions of columns do not add up to the distance.

        Raises:
            InputError: The last training was a ``partial_fit``, which fits no distance.
        """
        check_is_fitted(self)
        if not self.model_.has_familiarity:
            raise InputError("explain_distance needs the distance, which partial_fit does not fit; call fit with all rows")
        inputs = self._inputs(validate_data(self, X, dtype=np.float64, reset=False))
        device = next(self.model_.parameters()).device
        contributions: FloatArray = self.model_.attribute_distance(inputs.to(device)).cpu().numpy()
        return contributions


def _values(prediction: Prediction, name: str) -> FloatArray:
    value: Tensor | None = getattr(prediction, name)
    if value is None:
        return np.full(prediction.outputs.shape[1], np.nan)
    array: FloatArray = value.cpu().numpy()
    return array
