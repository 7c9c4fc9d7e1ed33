"""A trained model with everything needed to use it on raw inputs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from ltnode.data import Dataset, Normalisation, Split
from ltnode.data.origin import Origin
from ltnode.data.parts import Parts
from ltnode.data.streaming import in_parts, resident
from ltnode.device import choose_device, product_precision
from ltnode.errors import CheckpointError, ConfigError, InputError
from ltnode.models import LatentTimeODE, Model, Prediction
from ltnode.models.contract import Draw, Task
from ltnode.models.familiar_model import FamiliarModel
from ltnode.models.familiarity import check_calibration_size
from ltnode.tables import Schema
from ltnode.trained.calibration_record import CalibrationRecord
from ltnode.trained.data_facts import class_names, data_record, finite_numbers
from ltnode.trained.inputs import Batch, batch_of_array, read_input
from ltnode.trained.operating_point import FALSE_ALARM_RATE, OperatingPoint, check_rate
from ltnode.trained.own_data import find_data, recorded_origin, recorded_schema
from ltnode.trained.pixels import check_pixels
from ltnode.trained.rows import END_TIME_LEVELS, PredictionRow, classification_rows, regression_rows
from ltnode.training import Run, TrainConfig, load, tensor_file
from ltnode.training.batches import check_fit, held_out_parts
from ltnode.training.checkpoint import model_tensors
from ltnode.training.run_config import CONFIG, read_run_config
from ltnode.typing import Float, Num, Tensor

_LOG = logging.getLogger("ltnode")
BATCH = 128
"""Number of inputs that are predicted together; predictions do not depend on it."""

_RENEWED = {"familiarity", "ranks", "widening"}
"""Parts of a model that are fitted after training."""

Raw = Num[Tensor, "B *shape"] | NDArray[Any]
"""Raw inputs: images (B, C, H, W), uint8 or float in [0, 1], or vectors (B, D)."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, the raw inputs that it takes, the meaning of its answers, and the record of its training.

    Attributes:
        name: Name of its folder; for a model in memory, the name of the model.
        path: The folder; None for a model in memory.
        model: The network.
        shape: Shape of one input, (C, H, W) or (D,).
        task: "classification" or "regression".
        class_names: One name per class; empty for regression.
        normalise: Mapping from raw values to network inputs; None keeps floats unchanged and scales uint8 to [0, 1].
        operating_point: Thresholds above which its predictions are flagged; None if none were chosen.
        data: Name of the data set that it was trained on; None if unknown.
        train: Training configuration as config.json records it; None for a model without a record of its training.
        false_alarm_rate: Familiarity at or below which an input is called unfamiliar; an operating point sets it.
        calibration: Record of the examples among which distances are ranked; None if unknown.
        schema: Columns of the table that it was trained on, whose encoded rows are its inputs; None for other inputs.
        origin: File or folder of the training data; None if they were in memory, or are built in.
        checksums: Checksums of the training data as config.json records them.
    """

    name: str
    path: Path | None
    model: Model
    shape: tuple[int, ...]
    task: Task
    class_names: tuple[str, ...]
    normalise: Normalisation | None
    operating_point: OperatingPoint | None
    data: str | None
    train: Mapping[str, Any] | None = None
    false_alarm_rate: float = FALSE_ALARM_RATE
    calibration: CalibrationRecord | None = None
    schema: Schema | None = None
    origin: Origin | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path | str, device: str = "cpu", data: Dataset | str | None = None) -> TrainedModel:
        """Open a run folder, or a folder that `ltnode.save` wrote; only safetensors and JSON files are read.

        Args:
            folder: The folder.
            device: "auto", "cpu", "cuda" or "cuda:N".
            data: Data set, or its name, whose classes and normalisation apply if the folder records none.

        Raises:
            CheckpointError: The folder is missing, damaged, not written by ltnode, or holds an unfinished run.
            ConfigError: The device is unknown or not available.
            InputError: No data set has this name.
        """
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ConfigError(f"device must be 'auto', 'cpu', 'cuda' or 'cuda:N', not {device!r}")
        path = Path(folder)
        model = load(path, device=choose_device(device))
        config = read_run_config(path)
        record = config.get("data")
        if record is None and data is None:
            _LOG.warning(
                "%s is a saved model, not a training run, and records neither classes nor normalisation, so inputs are not "
                "normalised. Name the data set of its training to use the constants of that data set",
                path,
            )
        try:
            return cls._assembled(path, model, record, config.get("train"), data)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if record is None:
                raise
            raise CheckpointError(f"{path / CONFIG} is damaged: its description of the data cannot be read ({error})") from error

    @classmethod
    def of(
        cls,
        run: TrainedModel | Run | Model | str | Path,
        data: Dataset | str | None = None,
        device: str | None = None,
    ) -> TrainedModel:
        """Find the trained model behind a run, a model, or the folder of either.

        Args:
            run: The run, model or folder; a `TrainedModel` is returned unchanged unless ``device`` is given.
            data: Data set, or its name, whose classes and normalisation apply if nothing else records them.
            device: Device of the model; None leaves a model where it is and chooses the best device for a folder.

        Raises:
            InputError: The shape of the inputs is unknown, or the data set is.
            CheckpointError: The folder holds no finished run or model.
        """
        if isinstance(run, str | Path):
            return cls.open(run, device or "auto", data)
        if not isinstance(run, TrainedModel | Run | Model):
            raise InputError(f"expected a run, a model or the folder of either, not {type(run).__name__}")
        model = run if isinstance(run, Model) else run.model
        if device is not None:
            model.to(choose_device(device))
        if isinstance(run, TrainedModel):
            return run
        if isinstance(run, Model):
            return cls._assembled(None, model, None, None, data)
        return cls._assembled(run.path, model, run.results.get("provenance", {}).get("data"), run.config.to_json(), data)

    @classmethod
    def _assembled(
        cls,
        path: Path | None,
        model: Model,
        record: Mapping[str, Any] | None,
        train: Mapping[str, Any] | None,
        data: Dataset | str | None,
    ) -> TrainedModel:
        """Combine a model with the record of its training data, or with the facts about ``data`` where there is no record."""
        record = data_record(data) if record is None else record
        spec = model.spec or {}
        built_for = spec.get("input") or {"shape": record.get("input_shape"), "n_classes": record.get("n_classes")}
        if built_for["shape"] is None:
            raise InputError("nothing records what the model was trained on: pass data, a Dataset or the name of a data set")
        shape, constants = tuple(int(n) for n in built_for["shape"]), record.get("normalise")
        normalise = None if constants is None else Normalisation(*(finite_numbers(constants[key]) for key in ("mean", "std")))
        if normalise is not None and len(normalise.mean) != shape[0]:
            raise InputError(f"the normalisation has {len(normalise.mean)} channels, but the inputs have shape {shape}")
        trained = cls(
            name=path.resolve().name if path else spec.get("model") or type(model).__name__,
            path=path,
            model=model,
            shape=shape,
            task=model.task,
            class_names=class_names(record, built_for["n_classes"] or 0),
            normalise=normalise,
            operating_point=None,
            data=record.get("name"),
            train=train,
            schema=recorded_schema(record, shape[0], built_for["n_classes"]),
            origin=recorded_origin(record),
            checksums=record.get("checksums") or {},
        )
        if path is None:
            return trained
        return trained.with_operating_point(OperatingPoint.read(path)).with_calibration(CalibrationRecord.read(path))

    def with_operating_point(self, point: OperatingPoint | None) -> TrainedModel:
        """Return the same model at another operating point; one that was chosen for other weights is ignored with a warning."""
        if point is not None and point.weights is not None and point.weights != self.weights_digest():
            _LOG.warning(
                "%s: the operating point was chosen for other weights and is ignored; "
                "choose a new one with: ltnode operating-point RUN",
                self.name,
            )
            point = None
        rate = self.false_alarm_rate if point is None else point.false_alarm_rate
        return replace(self, operating_point=point, false_alarm_rate=rate)

    def with_false_alarm_rate(self, rate: float | None) -> TrainedModel:
        """Return the same model with another rate of false alarms about unfamiliar inputs; None keeps the rate."""
        return self if rate is None else replace(self, false_alarm_rate=check_rate(rate))

    def with_calibration(self, record: CalibrationRecord | None) -> TrainedModel:
        """Return the same model with the record of its calibration; one of other weights or ranks is ignored with a warning."""
        if record is not None:
            other = record.weights is not None and record.weights != self.weights_digest()
            if other or record.n != self.n_calibration:
                what = "other weights" if other else f"{record.n} examples, but the model keeps {self.n_calibration}"
                _LOG.warning("%s: the record of the calibration is ignored, because it describes %s", self.name, what)
                record = None
        return replace(self, calibration=record)

    @property
    def n_calibration(self) -> int:
        """Number of calibration examples among which distances are ranked; 0 if there are none."""
        return self.model.n_calibration if isinstance(self.model, FamiliarModel) else 0

    @property
    def has_familiarity(self) -> bool:
        """Whether predictions have a distance."""
        return isinstance(self.model, FamiliarModel) and self.model.has_familiarity

    @property
    def flag_problem(self) -> str | None:
        """Why no input can be called unfamiliar at the false-alarm rate; None if inputs can be."""
        if not self.model.has_path:
            return f"no input can be called unfamiliar: a {type(self.model).__name__} has no path to measure a distance on"
        if not self.has_familiarity:
            return "no input can be called unfamiliar: the familiarity was not fitted when this model was trained; train it again"
        problem = check_calibration_size(self.n_calibration, self.false_alarm_rate)
        where = "RUN" if self.path is None else self.path
        return None if problem is None else f"{problem}. More examples: ltnode calibrate {where} --data NEW"

    @property
    def is_image(self) -> bool:
        """Whether inputs are images (C, H, W)."""
        return len(self.shape) == 3

    @cached_property
    def config(self) -> TrainConfig | None:
        """Training configuration; None if there is no record of the training.

        Raises:
            CheckpointError: The record is damaged.
        """
        if self.train is None:
            return None
        try:
            return TrainConfig.from_json(self.train)
        except (KeyError, TypeError, ValueError) as error:
            where = self.name if self.path is None else self.path / CONFIG
            raise CheckpointError(f"{where} is damaged: its training configuration cannot be read ({error})") from error

    @property
    def model_name(self) -> str:
        """Name of the model, as in `ltnode.build`; for a model made of custom parts, that of its configuration or its class."""
        named = (self.model.spec or {}).get("model") or (self.config.model if self.config else None)
        return named or type(self.model).__name__

    @property
    def preset(self) -> str | None:
        """Preset that the model was built with; None for a model made of custom parts."""
        return (self.model.spec or {}).get("preset") or (self.config.preset if self.config else None)

    @property
    def seed(self) -> int | None:
        """Seed of the training; None if unknown."""
        return None if self.config is None else self.config.seed

    def weights_digest(self) -> str:
        """SHA-256 of weights, posterior and buffers, without what `ltnode calibrate` renews for the same weights."""
        tensors = {name: t for name, t in model_tensors(self.model).items() if not _RENEWED & set(name.split("."))}
        return tensor_file.digest({name: t.detach().cpu().contiguous() for name, t in tensors.items()})

    def dataset(self, data: Dataset | str | None = None) -> Dataset:
        """Load the data set of the training, with the normalisation of the training.

        Args:
            data: Another data set for the same inputs, its name, or the path of labelled rows for a model of tables or of a
                folder of labelled images, all of which are test examples; None loads the data that the run records.

        Raises:
            InputError: The data set is unknown, or does not fit the model.
            DataError: The data of the training are missing or have changed, or the other ones cannot be read.
        """
        dataset = find_data(self, data)
        check_fit(dataset, self.model)
        return dataset if self.train is None or self.normalise is None else replace(dataset, normalise=self.normalise)

    def validation_split(self, dataset: Dataset) -> Split | None:
        """Examples of the training's data set that training held out for validation; None if it held out none."""
        return self._held_out(dataset, lambda parts: parts.validation)

    def calibration_split(self, dataset: Dataset) -> Split | None:
        """Examples of the training's data set that training held out for calibration; None if it held out none."""
        return self._held_out(dataset, lambda parts: parts.calibration)

    def _held_out(self, dataset: Dataset, chosen: Callable[[Parts], Tensor]) -> Split | None:
        if self.config is None or self.config.validation_fraction + self.config.calibration_fraction == 0:
            return None
        if self.schema is not None and dataset.parts is None:
            return None  # rows of another table
        used, parts = held_out_parts(dataset, self.config)
        positions = chosen(parts)
        return used.train.select(positions) if len(positions) else None

    def read(self, path: Path) -> Batch:
        """Read the raw inputs in a file; see `ltnode.trained.inputs.read_input`."""
        return read_input(path, self.shape, schema=self.schema)

    def prepare(self, raw: Raw) -> Float[Tensor, "B *shape"]:
        """Convert raw inputs to network inputs on the model's device, normalised as in training.

        Args:
            raw: Images (B, C, H, W), uint8 or float in [0, 1], or vectors (B, D) of numbers. A NumPy array may also hold a single
                input, or pixels as integers of another dtype.

        Raises:
            InputError: The shape or the range is wrong, there are no inputs, or some hold NaN or infinity.
        """
        raw = resident(self._tensor(raw))
        if tuple(raw.shape[1:]) != self.shape or not len(raw):
            expected = ", ".join(str(n) for n in self.shape)
            raise InputError(f"{self.name} takes inputs of shape (B, {expected}) with B >= 1, not {tuple(raw.shape)}")
        if raw.is_complex() or raw.dtype == torch.bool:
            raise InputError(f"{self.name} takes real numbers, not {raw.dtype}")
        parameter = next(self.model.parameters())
        raw = raw.to(parameter.device)
        if raw.is_floating_point() and not bool(raw.isfinite().all()):
            bad = int((~raw.isfinite()).flatten(1).any(1).sum())
            raise InputError(f"NaN or inf in {bad} of {len(raw)} inputs; remove or impute them")
        if self.is_image:
            check_pixels(raw)
        elif not raw.is_floating_point():
            raw = raw.to(parameter.dtype)
        if self.normalise is not None:
            return self.normalise.apply(raw, parameter.dtype)
        return raw.to(parameter.dtype) / 255 if raw.dtype == torch.uint8 else raw.to(parameter.dtype)

    def _tensor(self, raw: Raw) -> Num[Tensor, "B *shape"]:
        if isinstance(raw, Tensor):
            return raw
        if not hasattr(raw, "dtype"):
            raise InputError(f"inputs must be a tensor or a NumPy array, not {type(raw).__name__}")
        return batch_of_array(raw, self.shape)

    def predict(self, raw: Raw, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Prediction:
        """Predictive distribution of raw inputs, in one batch; see `ltnode.Model.predict`.

        Args:
            raw: Raw inputs, as in `prepare`.
            samples: Number of end-times (members) S.
            draw: "quantile" makes every prediction depend on its input alone; "random" draws from the posterior.
            seed: Seed of the random draws.
        """
        return self.predict_inputs(self.prepare(raw), samples, draw, seed)

    def predict_inputs(
        self, x: Float[Tensor, "B *shape"], samples: int = 10, draw: Draw = "quantile", seed: int = 0
    ) -> Prediction:
        """Predictive distribution of network inputs; see `predict`."""
        with product_precision("fp32"):
            return self.model.predict(x, samples, draw, seed)

    def rows(self, raw: Raw, samples: int = 10, on_predicted: Callable[[int], None] = lambda inputs: None) -> list[PredictionRow]:
        """Predict raw inputs in batches, at the quantiles of the end-time; one row per input.

        Args:
            raw: Raw inputs, as in `prepare`.
            samples: Number of end-times (members) S.
            on_predicted: Called after every batch with the number of its inputs.
        """
        rows = []
        for part in in_parts(self._tensor(raw), BATCH):
            x = self.prepare(part)
            rows += self.rows_of(self.predict_inputs(x, samples), x)
            on_predicted(len(part))
        return rows

    def rows_of(self, prediction: Prediction, x: Float[Tensor, "B *shape"]) -> list[PredictionRow]:
        """Rows of a prediction and of the network inputs that it was made for."""
        end_times = self.end_time_quantiles(x)
        if self.task == "regression":
            return regression_rows(prediction, end_times, self.false_alarm_rate)
        return classification_rows(prediction, self.class_names, end_times, self.operating_point, self.false_alarm_rate)

    @torch.no_grad()
    def end_time_quantiles(self, x: Float[Tensor, "B *shape"]) -> Float[Tensor, "3 B"] | None:
        """5, 50 and 95 % quantiles of the end-time for network inputs, on the CPU; None for a model without end-times."""
        if not isinstance(self.model, LatentTimeODE):
            return None
        times = self.model.described_quantiles.at(self.model.end_time, x, END_TIME_LEVELS).double().cpu()
        return times if times.ndim == 2 else times[:, None].expand(-1, x.shape[0])
