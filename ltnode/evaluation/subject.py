"""What is evaluated: a model, where it comes from, and the data that it was trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ltnode import files as atomic
from ltnode.data import Dataset, Split
from ltnode.data import load as load_data
from ltnode.data import names as data_names
from ltnode.data.augment import Normalisation
from ltnode.device import choose_device
from ltnode.errors import CheckpointError, InputError
from ltnode.models import Model
from ltnode.training import Run, TrainConfig, load, tensor_file
from ltnode.training.batches import check_fit
from ltnode.training.checkpoint import model_tensors
from ltnode.training.run import is_run_config


@dataclass(frozen=True, eq=False)
class Subject:
    """One trained model and its data.

    Attributes:
        model: The model.
        data: The data set that it was trained on, with the normalisation of its training.
        name: Name of the model.
        preset: Preset that it was built with; None for a model of one's own parts.
        seed: Seed of its training; None when unknown.
        config: Of its training; None when unknown.
    """

    model: Model
    data: Dataset
    name: str
    preset: str | None
    seed: int | None
    config: TrainConfig | None

    @classmethod
    def of(cls, run: Run | Model | str | Path, data: Dataset | str | None, device: str | None) -> Subject:
        """Find model and data.

        Args:
            run: A run, a model, or the folder of either.
            data: The data set or its name; None takes the one that the run records.
            device: Where to evaluate; None leaves a model where it is, and takes the best device for a folder.

        Raises:
            InputError: The data are not told, or do not fit the model.
            CheckpointError: The folder holds no finished run or model.
        """
        model, config, record = _open(run, device)
        dataset = _dataset(data, config, record)
        check_fit(dataset, model)
        constants = record.get("normalise")
        if constants is not None:
            dataset = replace(dataset, normalise=Normalisation(tuple(constants["mean"]), tuple(constants["std"])))
        spec = model.spec or {}
        return cls(
            model=model,
            data=dataset,
            name=spec.get("model") or (config.model if config else None) or type(model).__name__,
            preset=spec.get("preset") or (config.preset if config else None),
            seed=None if config is None else config.seed,
            config=config,
        )

    def weights_digest(self) -> str:
        """SHA-256 of the model's weights, posterior and buffers."""
        return tensor_file.digest({name: t.detach().cpu().contiguous() for name, t in model_tensors(self.model).items()})

    def validation_split(self) -> Split | None:
        """The examples that training held out; None if it held out none."""
        config = self.config
        if config is None or config.validation_fraction == 0:
            return None
        data = self.data if config.limit is None else self.data.subset(min(config.limit, self.data.n_train))
        return data.with_validation(config.validation_fraction, seed=config.seed)[1]


def _open(run: Run | Model | str | Path, device: str | None) -> tuple[Model, TrainConfig | None, Mapping[str, Any]]:
    """The model, its training configuration, and what was recorded about its data."""
    if isinstance(run, Model):
        return (run if device is None else run.to(choose_device(device))), None, {}
    if isinstance(run, Run):
        model = run.model if device is None else run.model.to(choose_device(device))
        return model, run.config, run.results.get("provenance", {}).get("data", {})
    folder = Path(run)
    model = load(folder, device=choose_device(device or "auto"))
    config = atomic.read_json(folder / "config.json", is_run_config, "an ltnode run or model")
    if config["kind"] != "run":
        return model, None, {}
    try:
        return model, TrainConfig.from_json(config["train"]), config.get("data") or {}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / 'config.json'} is damaged: its training configuration cannot be read ({error})"
        ) from error


def _dataset(data: Dataset | str | None, config: TrainConfig | None, record: Mapping[str, Any]) -> Dataset:
    if isinstance(data, Dataset):
        return data
    if data is None:
        data = (config.data if config else None) or record.get("name")
        if data is None:
            raise InputError("nothing records what the model was trained on: pass data, a Dataset or the name of a data set")
        if data not in data_names():
            raise InputError(
                f"the run was trained on {data!r}, which is no data set with a name of its own: pass data, the Dataset"
            )
    if not isinstance(data, str):
        raise InputError(f"data must be a Dataset or the name of a data set, not {type(data).__name__}")
    return load_data(data)


def on_device(split: Split, limit: int | None, device: torch.device) -> Split:
    """The first examples of a split, on a device."""
    return Split(split.x[:limit], split.y[:limit]).to(device)
