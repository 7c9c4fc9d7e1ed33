"""A trained classifier as the teacher of another model, and the check that both hold out the same examples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ltnode.data import Dataset
from ltnode.errors import ConfigError, InputError
from ltnode.models.familiar_model import FamiliarModel
from ltnode.trained.model import TrainedModel
from ltnode.training import TrainConfig
from ltnode.training.batches import held_out_parts
from ltnode.training.run_config import read_run_config
from ltnode.typing import Float, Tensor

HELD_OUT_KEYS = ("limit", "validation_fraction", "calibration_fraction", "split_seed")
"""Keys of a configuration that decide which examples are held out."""


@dataclass(frozen=True, eq=False)
class TrainedTeacher:
    """Gives the averaged class probabilities of a trained classifier for network inputs.

    Attributes:
        trained: The classifier.
        samples: Number of members of its predictions.
    """

    trained: TrainedModel
    samples: int = 10

    def __call__(self, x: Float[Tensor, "B *shape"]) -> Float[Tensor, "B C"]:
        """Compute the probabilities at the quantiles of the end-time, which draws no random numbers."""
        model = self.trained.model
        parts = model.chunks(x) if isinstance(model, FamiliarModel) else (x,)
        return torch.cat([self.trained.predict_inputs(part, self.samples).probs for part in parts])

    @cached_property
    def record(self) -> dict[str, Any]:
        """What the student's run records about its teacher."""
        trained = self.trained
        return {
            "name": trained.name,
            "model": trained.model_name,
            "weights": trained.weights_digest(),
            "samples": self.samples,
        }


def teaching_parts(trained: TrainedModel) -> dict[str, Any]:
    """Return the values of the configuration with which a student holds out the examples that its teacher held out.

    Raises:
        InputError: The teacher is no classifier, or nothing records its training.
    """
    if trained.task != "classification":
        raise InputError(f"a teacher must be a classifier, but {trained.name} is a model for {trained.task}")
    config = trained.config
    if config is None:
        raise InputError(
            f"nothing records which examples the teacher {trained.name} was trained on: use the folder of its training run"
        )
    return _held_out_values(config)


def check_teacher(trained: TrainedModel, dataset: Dataset, config: TrainConfig) -> None:
    """Require that a student with this configuration is trained on the examples of its teacher, and holds out the same.

    A teacher that has seen what the student holds out would pass it on, and nothing held out would be left.

    Raises:
        ConfigError: The held-out examples differ.
        InputError: The data differ, the teacher is no classifier, or nothing records its training.
    """
    teaching_parts(trained)
    assert trained.config is not None
    if trained.data is not None and trained.data != dataset.name:
        raise InputError(f"the teacher was trained on {trained.data}, the student would be on {dataset.name}: use the same data")
    recorded = {} if trained.path is None else (read_run_config(trained.path).get("data") or {}).get("checksums") or {}
    changed = sorted(key for key, value in dataset.checksums.items() if key in recorded and recorded[key] != value)
    if changed:
        raise InputError(f"the data are not those of the teacher: the checksums of {', '.join(changed)} differ")
    if trained.normalise is not None and trained.normalise != dataset.normalise:
        raise InputError("teacher and student must normalise their inputs in the same way: use the data set of the teacher")
    (_, theirs), (_, own) = held_out_parts(dataset, trained.config), held_out_parts(dataset, config)
    pairs = ((theirs.fit, own.fit), (theirs.validation, own.validation), (theirs.calibration, own.calibration))
    if trained.config.limit == config.limit and all(torch.equal(a, b) for a, b in pairs):
        return
    wanted, given = _held_out_values(trained.config), _held_out_values(config)
    differences = [f"{key}: {wanted[key]!r} -> {given[key]!r}" for key in wanted if wanted[key] != given[key]]
    raise ConfigError(
        f"teacher and student must hold out the same examples, but differ in {'; '.join(differences)}. "
        f"Set {', '.join(f'{key}={value}' for key, value in wanted.items())}, or train a teacher with the values of the student"
    )


def _held_out_values(config: TrainConfig) -> dict[str, Any]:
    return {**{key: getattr(config, key) for key in HELD_OUT_KEYS}, "split_seed": config.parts_seed}
