"""The common base of classifier and regressor: parameters, standardised inputs, training with held-out rows, prediction."""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ltnode.checks import checked_count, checked_number, is_finite_number
from ltnode.data import Split
from ltnode.errors import InputError, unknown_name
from ltnode.estimators.budget import automatic_batch, automatic_epochs, averaging
from ltnode.estimators.candidates import Recipe, WeightedPart, chosen_candidate, knowing_model, repeated, trained_candidate
from ltnode.estimators.columns import distance_by_column, predicted_columns
from ltnode.estimators.epochs import Course, Patience, TableTraining
from ltnode.estimators.networks import END_TIMES, TableModel, balanced_samples, networks_of
from ltnode.estimators.parts import Parts, draw_parts
from ltnode.estimators.rows import Examples, Rows, checked_rows, fitted_scaler, inferred_schema
from ltnode.estimators.threads import chosen_threads, using_threads
from ltnode.estimators.uncertainty import FloatArray
from ltnode.models import Ensemble, InputSpec, LatentTimeODE, Prediction, build
from ltnode.tables import Schema, Target
from ltnode.training import TrainConfig
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")

# Predictions are computed in float64, as in scikit-learn, so that those of a row agree whatever the other rows are. Training is
# in float32 where `ltnode.accelerate.stacked` supports the network.
_DTYPE = torch.float64
_CHUNK = 4096
_REFIT_BELOW = 600
"""Rows below which a second training is worth its time."""
# The initial stem of ltnode.build is made for one feature and data with gaps; with several features, a quarter of its weights
# gives a smoother start.
_STEM_GAIN = 0.25
_SAVING_HINT = (
    "this model belongs to a scikit-learn estimator and takes inputs that its scaler_ has standardised, which is not saved with "
    "it; save the whole estimator instead: ltnode.save(estimator, folder)"
)


class LTNodeEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of `LTNodeClassifier` and `LTNodeRegressor`: everything except labels and targets."""

    _task: ClassVar[Literal["classification", "regression"]]
    _prior: ClassVar[float] = 0.0
    """Automatic L2 penalty of the weights, summed over the rows."""
    schema_: Schema | None
    model_: TableModel

    def __init__(
        self,
        end_time: str = "gamma",
        *,
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
        """Parameters are checked in ``fit``.

        Args:
            end_time: Distribution of the end-time T: ``"gamma"`` (one learnt posterior for all inputs, LT-NODE), ``"amortized"``
                (one posterior per input, ALT-NODE), ``"mixture"`` (of three Gammas), ``"uniform"`` (not learnt, Uni-NODE) or
                ``"fixed"`` (T = 1, a plain neural ODE without model uncertainty). Learnt posteriors are truncated to the window
                (0, 3) that training covers.
            members: Number of networks, which differ in their initial weights and are trained together. A prediction averages
                over all of them: more are more accurate, and take proportionally more time on large tables.
            width: Size of the ODE state and of the hidden layers of its field.
            kl_weight: Weight of KL(q || prior) per example, or ``"elbo"`` for the literal bound; see docs/objective.md.
            learning_rate: Initial learning rate of Adam; it decays to 0 along half a cosine over ``max_epochs``.
            weight_decay: L2 penalty of the weights; ``"auto"``: 0.5 divided by the number of rows that are trained on for a
                classifier, because a small table does not tell how far to be sure, and 0 for a regressor.
            batch_size: Rows per step; ``"auto"``: an eighth of the training rows, between 16 and 256.
            max_epochs: Largest number of passes over the training rows; ``"auto"``: as many as give 3,000 steps, between 30 and
                400. Of 100 epochs or more, every second is judged, of 150 or more every third, and so on.
            early_stopping: Hold out ``validation_fraction`` of the rows, keep the epoch with the best held-out log-likelihood,
                and fit to them how confident predictions are and how they widen for unfamiliar rows. ``"auto"``: only with 50
                rows or more. False: train on all rows, and let the training loss determine when to stop; predictions of a
                classifier then do not widen, and there is no familiarity.
            validation_fraction: Share of the rows that is held out; stratified by class if every class has enough rows.
            calibration_fraction: Share of the rows, at least 19, that is held out in addition and chooses nothing. The distance
                of a new row is ranked among theirs, which gives its familiarity. Nothing is held out of fewer than 100 rows,
                without early stopping, or with 0; the familiarity is then NaN.
            refit: After the rows that were held out by ``validation_fraction`` have chosen, train again on them, too, with what
                they have chosen; the calibration rows stay held out. ``"auto"``: with fewer than 600 rows, which profit most,
                and without ``warm_start``, whose next fit would choose on rows that have been trained on.
            n_iter_no_change: Stop after this many consecutive judged epochs without an improvement by more than ``tol``.
            tol: Smallest improvement that counts, in nats per example.
            warm_start: Start another ``fit`` from the weights and the standardisation of the last one.
            samples: Number of end-times per prediction, over which it averages; they are shared out over the networks, each of
                which needs one solve, and rounded up to a multiple of ``members``.
            device: ``"cpu"``, ``"cuda"``, ``"cuda:1"`` or ``"auto"``. Small tables are faster on the CPU.
            n_threads: Number of CPU threads of torch and numpy while the estimator computes, after which the setting of the
                process is restored. ``"auto"``: one if the width is at most 128, because small networks gain nothing from more,
                and lose much on a busy machine or with ``n_jobs``; otherwise the setting of the process.
            random_state: Seed of initial weights, held-out rows, order of the rows and training times. An int gives the same
                numbers in every run. Global generators are never changed, except that None draws one seed from NumPy's.
            verbose: Log every ``verbose`` epochs to the logger ``ltnode`` at level INFO; 0 is silent.
        """
        self.end_time = end_time
        self.members = members
        self.width = width
        self.kl_weight = kl_weight
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.calibration_fraction = calibration_fraction
        self.refit = refit
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.samples = samples
        self.device = device
        self.n_threads = n_threads
        self.random_state = random_state
        self.verbose = verbose

    # -- fitting ---------------------------------------------------------------------------------------------------------

    def _goes_on(self) -> bool:
        """Whether this ``fit`` continues a previous one."""
        return bool(self.warm_start) and hasattr(self, "model_")

    def _fit(self, given: Examples, n_classes: int | None) -> None:
        """Train on checked examples; rows of weight 0 have no influence."""
        self._check_parameters()
        numbers = np.arange(len(given)) if given.weights is None else np.flatnonzero(given.weights)
        with using_threads(chosen_threads(self.n_threads, int(self.width))):
            parts = self._train(given if len(numbers) == len(given) else given.select(numbers), n_classes)
        self.validation_rows_, self.calibration_rows_ = (
            None if rows is None else numbers[rows] for rows in (parts.select, parts.calibrate)
        )
        self._partial_state: dict[str, Any] | None = None

    def _train(self, given: Examples, n_classes: int | None) -> Parts:
        """Draw the parts of the rows, train, and calibrate."""
        seed = self._seed()
        goes_on = self._goes_on()
        if not goes_on:
            self._split_seed = seed
        elif getattr(self, "_refitted", False):
            _LOG.warning(
                "this fit goes on from a model that was trained on the rows that chose; unless it is given other rows, its "
                "choices are too optimistic: fit with refit=False, or with warm_start=True from the first fit on"
            )
        # A fit that goes on with the same rows must not train on rows that were held out before.
        fractions = float(self.validation_fraction), float(self.calibration_fraction)
        labels = given.target if self._task == "classification" else None
        parts = draw_parts(len(given), labels, self.early_stopping, *fractions, self._split_seed)
        if not goes_on:
            # Calibration rows must not influence anything, not even the standardisation.
            self._prepare(given.select(parts.known), n_classes)
        table = self._table(given)
        trained, held_out, calibration = (
            None if rows is None else WeightedPart.of(table, given.weights, rows)
            for rows in (parts.fit, parts.select, parts.calibrate)
        )
        assert trained is not None
        recipe = self._recipe(n_classes, seed)
        if goes_on:
            chosen = trained_candidate(recipe, self.model_, "", trained, held_out)
        else:
            chosen = chosen_candidate(recipe, self._noises(held_out is not None), trained, held_out)
        again = None
        if held_out is not None and self._repeats(len(given)):
            again = repeated(recipe, chosen, WeightedPart.of(table, given.weights, parts.known), held_out)
        self._refitted = again is not None
        self.model_ = knowing_model(chosen.training, again, held_out, calibration, int(self.samples))
        self._calibrate(None if calibration is None else calibration.split)
        self.n_iter_, self.loss_curve_ = len(chosen.course.losses), chosen.course.losses
        self.validation_scores_ = chosen.course.scores if held_out is not None else None
        return parts

    def _repeats(self, rows: int) -> bool:
        """Whether rows that have chosen are trained on afterwards."""
        if self.refit == "auto":
            return rows < _REFIT_BELOW and not self.warm_start
        return bool(self.refit)

    def _recipe(self, n_classes: int | None, seed: int) -> Recipe:
        return Recipe(
            lambda table, noise: self._new_model(table, n_classes, noise, seed),
            lambda rows: self._config(rows, seed),
            Patience(int(self.n_iter_no_change), float(self.tol)),
            int(self.samples),
            self._report if self.verbose else None,
        )

    def _partial_fit(self, given: Examples, n_classes: int | None) -> None:
        """Train one pass over some rows; the first call fits the standardisation, and Adam's moments are kept between calls."""
        self._check_parameters()
        with using_threads(chosen_threads(self.n_threads, int(self.width))):
            if not hasattr(self, "model_"):
                self._prepare(given, n_classes)
                self.model_ = self._new_model(self._table(given), n_classes, self._noises(False)[0], self._seed())
                self.n_iter_, self.loss_curve_, self.validation_scores_, self._refitted = 0, [], None, False
            self.validation_rows_ = self.calibration_rows_ = None
            self._calibrate(None)
            state = getattr(self, "_partial_state", None) or {"seed": self._seed(), "optimizers": None}
            # How many rows there will be, on which an automatic penalty depends, is not known.
            decay = 0.0 if self.weight_decay == "auto" else float(self.weight_decay)
            config = self._config(len(given), state["seed"])
            config = config.replace(schedule="milestones", averaging=None, weight_decay=decay)
            weights = None if given.weights is None else torch.from_numpy(given.weights)
            training = TableTraining(self.model_, self._table(given), config, self.n_iter_, weights)
            if state["optimizers"] is not None:
                training.load_optimizer_state(state["optimizers"])
            self.loss_curve_ = [*self.loss_curve_, training.run_epoch()]
            training.finish()
        self.n_iter_ += 1
        self._partial_state = {**state, "optimizers": training.optimizer_state()}

    def _prepare(self, known: Examples, n_classes: int | None) -> None:
        """Fit the schema of a table, and the standardisation."""
        self.schema_ = None
        if not isinstance(known.rows, np.ndarray):
            self.schema_ = inferred_schema(known.rows, known.categories, self._target(known.name))
        self.scaler_ = fitted_scaler(self._features(known.rows), self.schema_, known.weights)

    def _new_model(self, table: Split, n_classes: int | None, noise: str, seed: int) -> TableModel:
        """Build a model with new weights."""
        spec = InputSpec((table.x.shape[1],), self._task, n_classes, table.y.shape[1:].numel())
        name, members = END_TIMES[self.end_time], int(self.members)
        options: dict[str, Any] = {"width": int(self.width), "noise": noise}
        if self.end_time != "fixed":
            options["objective"] = {"kl_weight": self.kl_weight}
        if members > 1:
            options |= {"of": name, "members": members}
        model = build("ensemble" if members > 1 else name, spec, seed=seed, **options)
        assert isinstance(model, LatentTimeODE | Ensemble)
        with torch.no_grad():
            for network in networks_of(model):
                for parameter in network.stem.parameters():
                    parameter.mul_(_STEM_GAIN)
        vars(model)["saving_hint"] = _SAVING_HINT  # ltnode.save warns with it
        return model.to(_DTYPE)

    @abstractmethod
    def _target(self, name: str) -> Target:
        """The target of a schema."""

    def _noises(self, selects: bool) -> Sequence[str]:
        """Kinds of noise to try; ``selects`` tells whether there are rows to choose on."""
        return ("constant",)

    def _calibrate(self, calibration: Split | None) -> None:
        """Compute what needs calibration rows besides the familiarity; None forgets it."""

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _table(self, given: Examples) -> Split:
        """Network inputs and targets."""
        dtype = torch.int64 if self._task == "classification" else _DTYPE
        return Split(self._inputs(given.rows), torch.tensor(given.target, dtype=dtype))

    def _features(self, rows: Rows) -> FloatArray:
        if isinstance(rows, np.ndarray):
            return rows
        assert self.schema_ is not None
        return self.schema_.encode(rows).x

    def _inputs(self, rows: Rows) -> Tensor:
        return torch.tensor(self.scaler_.transform(self._features(rows)), dtype=_DTYPE)

    def _checked_inputs(self, X: Any) -> Tensor:
        """Network inputs of rows that are predicted."""
        check_is_fitted(self)
        return self._inputs(checked_rows(self, X, self.schema_, reset=False))

    def _config(self, rows: int, seed: int) -> TrainConfig:
        size = automatic_batch(rows) if self.batch_size == "auto" else checked_count("batch_size", self.batch_size)
        epochs = automatic_epochs(rows, size) if self.max_epochs == "auto" else int(self.max_epochs)
        return TrainConfig(
            seed=seed,
            epochs=epochs,
            batch_size=size,
            lr=float(self.learning_rate),
            weight_decay=self._prior / rows if self.weight_decay == "auto" else float(self.weight_decay),
            schedule="cosine",
            averaging=averaging(epochs * -(-rows // size)),
            device=self.device,
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
        for name in ("members", "width", "n_iter_no_change", "samples"):
            checked_count(name, getattr(self, name))
        if isinstance(self.weight_decay, str) and self.weight_decay != "auto":
            raise InputError(f"weight_decay must be a number >= 0 or 'auto', not {self.weight_decay!r}")
        if self.max_epochs != "auto":
            checked_count("max_epochs", self.max_epochs)
        if self.early_stopping not in (True, False, "auto"):
            raise InputError(f"early_stopping must be True, False or 'auto', not {self.early_stopping!r}")
        if self.refit not in (True, False, "auto"):
            raise InputError(f"refit must be True, False or 'auto', not {self.refit!r}")
        if self.refit is True and self.warm_start:
            raise InputError(
                "refit=True needs warm_start=False, because a later fit must not choose on rows that it was trained on"
            )
        chosen_threads(self.n_threads, int(self.width))
        if not is_finite_number(self.validation_fraction) or not 0 < self.validation_fraction < 1:
            raise InputError(f"validation_fraction must be between 0 and 1, not {self.validation_fraction!r}")
        if not is_finite_number(self.calibration_fraction) or not 0 <= self.calibration_fraction < 1:
            raise InputError(f"calibration_fraction must be at least 0 and below 1, not {self.calibration_fraction!r}")
        checked_number("tol", self.tol, "a number >= 0", 0.0, math.inf)

    # -- prediction ------------------------------------------------------------------------------------------------------

    def _predictions(self, inputs: Tensor) -> Iterator[Prediction]:
        """Predictions of network inputs in chunks of bounded size; the prediction of a row does not depend on the others."""
        device, samples = next(self.model_.parameters()).device, balanced_samples(self.model_, int(self.samples))
        for part in inputs.split(_CHUNK):
            yield self.model_.predict(part.to(device), samples=samples)

    def _columns(self, X: Any, *names: str) -> list[FloatArray]:
        """Attributes of the `Prediction` of all rows, as arrays; NaN where the model cannot tell."""
        inputs = self._checked_inputs(X)
        with using_threads(chosen_threads(self.n_threads, int(self.width))):
            return predicted_columns(self._predictions(inputs), *names)

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
        inputs = self._checked_inputs(X)
        with using_threads(chosen_threads(self.n_threads, int(self.width))):
            return distance_by_column(self.model_, inputs, self._feature_groups())

    def _feature_groups(self) -> list[list[int]]:
        """For each column of the rows, the positions of its features; a column that the schema ignores has none."""
        if self.schema_ is None:
            return [[position] for position in range(self.n_features_in_)]
        places: dict[str, list[int]] = {}
        for position, column in enumerate(self.schema_.feature_columns):
            places.setdefault(self.schema_.columns[column].name, []).append(position)
        return [places.get(str(name), []) for name in self.feature_names_in_]
