"""A trained model with all that it takes to use it on raw inputs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ltnode import files as atomic
from ltnode.data import load as load_data
from ltnode.data.augment import Normalisation
from ltnode.data.specs import SPECS
from ltnode.device import choose_device, product_precision
from ltnode.errors import CheckpointError, ConfigError, InputError
from ltnode.models import LatentTimeODE, Model, Prediction
from ltnode.models.contract import Draw, Task
from ltnode.trained.operating_point import OperatingPoint
from ltnode.trained.pixels import check_pixels
from ltnode.trained.rows import END_TIME_LEVELS, PredictionRow, classification_rows, regression_rows
from ltnode.training import load, tensor_file
from ltnode.training.checkpoint import model_tensors
from ltnode.training.run import is_run_config
from ltnode.typing import Float, Num, Tensor

_LOG = logging.getLogger("ltnode")
BATCH = 128
"""Inputs that are predicted together; a prediction does not depend on it."""


@dataclass(frozen=True, eq=False)
class TrainedModel:
    """A model, the raw inputs that it takes, and what its answers mean.

    Attributes:
        name: Name of its folder.
        path: The folder; None for a model from memory.
        model: In eval mode.
        shape: Of one input: (C, H, W) or (D,).
        task: "classification" or "regression".
        class_names: One per class; empty for regression.
        normalise: From raw to network input; None leaves floats as they are and maps uint8 to [0, 1].
        operating_point: When to distrust it; None if none was chosen.
        data: Name of the data set that it was trained on; None if unknown.
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

    @classmethod
    def open(cls, folder: Path | str, device: str = "cpu", data: str | None = None) -> TrainedModel:
        """The model of a run folder, or of a folder that `ltnode.save` wrote; reads safetensors and JSON only.

        Args:
            folder: The folder.
            device: "auto", "cpu", "cuda" or "cuda:N".
            data: Name of a data set whose classes and normalisation hold where the folder records none.

        Raises:
            CheckpointError: The folder is missing, foreign, unfinished or damaged.
            ConfigError: The device is unknown or not there.
            InputError: Unknown data set.
        """
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise ConfigError(f"device = {device!r} is unknown; choose 'auto', 'cpu', 'cuda' or 'cuda:N'")
        path = Path(folder)
        model = load(path, device=choose_device(device))
        config: Mapping[str, Any] = atomic.read_json(path / "config.json", is_run_config, "an ltnode run or model")
        facts = config.get("data")
        if facts is None:
            facts = _facts_of(data)
            if data is None:
                _LOG.warning(
                    "%s records neither classes nor normalisation, as it is not a training run: inputs are taken as they are. "
                    "Name the data set to use those of its training",
                    path,
                )
        try:
            return cls._described(path, model, facts)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{path / 'config.json'} is damaged: its data cannot be read ({error})") from error

    @classmethod
    def _described(cls, path: Path, model: Model, facts: Mapping[str, Any]) -> TrainedModel:
        """From the model and what was recorded about its data."""
        assert model.spec is not None  # a model of its user's own parts cannot be loaded from a folder alone
        wanted = model.spec["input"]
        shape = tuple(int(n) for n in wanted["shape"])
        constants = facts.get("normalise")
        normalise = None if constants is None else Normalisation(tuple(constants["mean"]), tuple(constants["std"]))
        if normalise is not None and len(normalise.mean) != shape[0]:
            raise InputError(f"normalisation of {len(normalise.mean)} channels for inputs of shape {shape}")
        trained = cls(
            name=path.resolve().name,
            path=path,
            model=model,
            shape=shape,
            task=model.task,
            class_names=_class_names(facts, wanted["n_classes"]),
            normalise=normalise,
            operating_point=None,
            data=facts.get("name"),
        )
        return trained.with_operating_point(OperatingPoint.read(path))

    def with_operating_point(self, point: OperatingPoint | None) -> TrainedModel:
        """The same model at another operating point; one that was chosen for other weights is left out with a warning."""
        if point is not None and point.weights is not None and point.weights != self.weights_digest():
            _LOG.warning(
                "%s: the operating point was chosen for other weights and is not used; "
                "choose it anew with: ltnode operating-point RUN",
                self.name,
            )
            point = None
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return type(self)(**{**values, "operating_point": point})

    @property
    def is_image(self) -> bool:
        """Inputs are (C, H, W)."""
        return len(self.shape) == 3

    def weights_digest(self) -> str:
        """SHA-256 of weights, posterior and buffers."""
        return tensor_file.digest({name: t.detach().cpu().contiguous() for name, t in model_tensors(self.model).items()})

    def prepare(self, raw: Num[Tensor, "B *shape"]) -> Float[Tensor, "B *shape"]:
        """Network input on the model's device, normalised with the constants of the training data.

        Args:
            raw: Images (B, C, H, W), uint8 or float in [0, 1]; or vectors (B, D) of numbers.

        Raises:
            InputError: Another shape or scale, no inputs, NaN or inf.
        """
        given = tuple(raw.shape)
        if given[1:] != self.shape or not given[0]:
            wanted = ", ".join(str(n) for n in self.shape)
            raise InputError(f"{self.name} takes inputs of shape (B, {wanted}) with B >= 1, not {given}")
        if raw.is_complex() or raw.dtype == torch.bool:
            raise InputError(f"{self.name} takes numbers, not {raw.dtype}")
        parameter = next(self.model.parameters())
        raw = raw.to(parameter.device)
        if raw.is_floating_point() and not bool(raw.isfinite().all()):
            bad = int((~raw.isfinite()).flatten(1).any(1).sum())
            raise InputError(f"NaN or inf in {bad} of {given[0]} inputs; remove or impute them")
        if self.is_image:
            check_pixels(raw)
        elif not raw.is_floating_point():
            raw = raw.to(parameter.dtype)
        if self.normalise is not None:
            return self.normalise.apply(raw, parameter.dtype)
        return raw.to(parameter.dtype) / 255 if raw.dtype == torch.uint8 else raw.to(parameter.dtype)

    def predict(self, raw: Num[Tensor, "B *shape"], samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Prediction:
        """Predictive distribution of raw inputs, in one batch; see `ltnode.Model.predict`.

        Args:
            raw: As for `prepare`.
            samples: End-times (members) S.
            draw: "quantile": every prediction depends on its input alone; "random": draws from the posterior.
            seed: Of random draws.
        """
        return self.predict_inputs(self.prepare(raw), samples, draw, seed)

    def predict_inputs(
        self, x: Float[Tensor, "B *shape"], samples: int = 10, draw: Draw = "quantile", seed: int = 0
    ) -> Prediction:
        """As `predict`, for network inputs."""
        with product_precision("fp32"):
            return self.model.predict(x, samples, draw, seed)

    def rows(
        self, raw: Num[Tensor, "B *shape"], samples: int = 10, on_predicted: Callable[[int], None] = lambda inputs: None
    ) -> list[PredictionRow]:
        """One row per raw input, predicted in batches at the quantiles of the end-time.

        Args:
            raw: As for `prepare`.
            samples: End-times (members) S.
            on_predicted: Called with the number of inputs of every predicted batch.
        """
        rows = []
        for part in torch.split(raw, BATCH):
            x = self.prepare(part)
            rows += self.rows_of(self.predict_inputs(x, samples), x)
            on_predicted(len(part))
        return rows

    def rows_of(self, prediction: Prediction, x: Float[Tensor, "B *shape"]) -> list[PredictionRow]:
        """The rows of a prediction that is there already, and of its network inputs."""
        end_times = self.end_time_quantiles(x)
        if self.task == "regression":
            return regression_rows(prediction, end_times)
        return classification_rows(prediction, self.class_names, end_times, self.operating_point)

    @torch.no_grad()
    def end_time_quantiles(self, x: Float[Tensor, "B *shape"]) -> Float[Tensor, "3 B"] | None:
        """5, 50 and 95 % quantiles of the end-time for network inputs, on the CPU; None for models without one."""
        if not isinstance(self.model, LatentTimeODE):
            return None
        end_time = self.model.end_time
        levels = torch.tensor(END_TIME_LEVELS, dtype=torch.float64, device=x.device)
        times = end_time(x if end_time.amortized else None).quantile(levels).double().cpu()
        return times if times.ndim == 2 else times[:, None].expand(-1, x.shape[0])


def _facts_of(data: str | None) -> Mapping[str, Any]:
    """What a run on a data set by name would have recorded; reads no image files."""
    if data is None:
        return {}
    known = SPECS[data] if data in SPECS else load_data(data)
    constants = known.normalise
    return {
        "name": data,
        "class_names": known.class_names,
        "normalise": None if constants is None else {"mean": constants.mean, "std": constants.std},
    }


def _class_names(facts: Mapping[str, Any], n_classes: int | None) -> tuple[str, ...]:
    if n_classes is None:
        return ()
    names = facts.get("class_names")
    if names is None and facts.get("name") in SPECS:
        names = SPECS[facts["name"]].class_names
    # A model may have been built for more classes than its data have.
    own = tuple(str(name) for name in names or ())[:n_classes]
    return own + tuple(str(label) for label in range(len(own), n_classes))
