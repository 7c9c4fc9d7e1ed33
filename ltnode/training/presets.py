"""Values of the training configuration per model and data set: those of the paper's tables, and defaults for users."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

from ltnode.errors import ConfigError, unknown_name
from ltnode.models import MODELS, PRESETS, InputSpec, input_spec

_PAPER_EPOCHS = {"cifar10": 300}
_PAPER_MILESTONES = {"cifar10": (150, 225)}
_PAPER_ONLY = ("sde-net", "node-gp")
"""Models for comparison, which have the paper's values for images in every preset, no averaging and no held-out parts."""
_EPOCHS = {"cifar10": 300, "svhn": 45, "mnist": 20, "fashion-mnist": 60}
_OTHER_EPOCHS = 60
_HELD_OUT = {"calibration_fraction": 0.05, "split_seed": 0}
"""Every default training holds out a part that chooses nothing, the same for all seeds."""


@dataclass(frozen=True)
class Recipe:
    """What the default preset for images chooses for each model.

    Attributes:
        lr: Learning rate until the milestone.
        weight_decay: L2 penalty of the weights.
        variational_weight_decay: L2 penalty of the inference network.
        averaging: Decay per step of the averaged weights.
        milestone: Share of the epochs after which the learning rate is multiplied by ``decay``.
        decay: Factor of the learning rate.
    """

    lr: float = 0.1
    weight_decay: float = 5e-4
    variational_weight_decay: float = 0.0
    averaging: float = 0.999
    milestone: float = 2 / 3
    decay: float = 0.2


RECIPES: Mapping[str, Recipe] = {
    "node": Recipe(weight_decay=3e-4),
    "uni-node": Recipe(weight_decay=2e-4),
    "lt-node": Recipe(),
    "alt-node": Recipe(variational_weight_decay=5e-4),
}
"""Recipes of the default preset for images; other models take that of NODE."""
_VECTOR_STEPS = 1500
_FULL_BATCH = 2048
"""Largest vector set that is trained with all examples in every step."""


def preset_values(model: str, data: str | InputSpec | Any, preset: str = "default") -> dict[str, Any]:
    """Return the values of `TrainConfig` for a model on a data set; see `ltnode.train_preset`."""
    if model not in MODELS:
        raise ConfigError(unknown_name("model", model, MODELS))
    if preset not in PRESETS:
        raise ConfigError(unknown_name("preset", preset, PRESETS))
    spec = input_spec(data)
    name = data if isinstance(data, str) else getattr(data, "name", None)
    if spec.is_image:
        values = _paper_images(model, name) if preset == "paper" or model in _PAPER_ONLY else _images(model, name)
    elif preset == "paper":
        values = _paper_vectors(model)
    else:
        train = getattr(data, "train", None)
        values = _vectors(len(train) if isinstance(train, Sized) else None)
        if model not in _PAPER_ONLY:
            # Nothing is averaged: the cosine ends at a rate of 0, and short trainings would keep a share of their first weights.
            values |= {**_HELD_OUT, "validation_fraction": 0.1}
    return {**values, "model": model, "data": name, "preset": preset}


def _images(model: str, data: str | None) -> dict[str, Any]:
    """SGD at a high learning rate with averaged weights, which calibrate; two parts of the training set are held out."""
    recipe = RECIPES.get(model, RECIPES["node"])
    epochs = _EPOCHS.get(data or "", _OTHER_EPOCHS)
    return {
        **_HELD_OUT,
        "validation_fraction": 0.02,
        "epochs": epochs,
        "batch_size": 256,
        "optimizer": "sgd",
        "lr": recipe.lr,
        "momentum": 0.9,
        "weight_decay": recipe.weight_decay,
        "role_lr": {"variational": 0.01},
        "role_weight_decay": {"variational": recipe.variational_weight_decay} if model == "alt-node" else {},
        "milestones": (round(recipe.milestone * epochs),),
        "decay": recipe.decay,
        "averaging": recipe.averaging,
        "checkpoint_epochs": 1,
    }


def _paper_images(model: str, data: str | None) -> dict[str, Any]:
    """Values of the paper's tables 'Hyperparameter values', with two swapped columns corrected, and 'Training configurations'."""
    role_lr: dict[str, float] = {"variational": 0.01}
    role_weight_decay: dict[str, float] = {}
    values: dict[str, Any] = {}
    if model == "alt-node":
        role_weight_decay["variational"] = 5e-4
    elif model == "sde-net":
        # The code of SDE-Net has one learning rate for grey images and another for colour images.
        role_lr["diffusion"] = 0.005 if data in ("cifar10", "svhn") else 0.01
        role_weight_decay["diffusion"] = 5e-4
        values["drop_last"] = True
    elif model == "node-gp":
        # Kernel parameters learn at a hundredth of the rate.
        role_lr |= {"variational": 0.1, "gp_hyper": 1e-3}
        role_weight_decay["gp_hyper"] = 0.0
        values["nesterov"] = True
    return {
        **values,
        "epochs": _PAPER_EPOCHS.get(data or "", 90),
        "batch_size": 256,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4 if model in ("lt-node", "alt-node", "lt-node-mixture", "node-gp") else 5e-4,
        "role_lr": role_lr,
        "role_weight_decay": role_weight_decay,
        "milestones": _PAPER_MILESTONES.get(data or "", (40, 70)),
        "checkpoint_epochs": 1,
    }


def _paper_vectors(model: str) -> dict[str, Any]:
    """Values of the paper's 1-D experiments: 3,000 iterations on all points, learning rate divided by 10 at 1,000 and 2,000."""
    if model == "node-gp":
        # A Gaussian process cannot be trained by the mean square that the paper names.
        return {"epochs": 600, "batch_size": None, "optimizer": "adam", "lr": 0.01}
    return {
        "epochs": 3000,
        "batch_size": None,
        "optimizer": "sgd",
        "lr": 1e-3,
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "role_lr": {"variational": 1e-3},
        "role_weight_decay": {"variational": 5e-4} if model == "alt-node" else {},
        "milestones": (1000, 2000),
    }


def _vectors(n_train: int | None) -> dict[str, Any]:
    """Adam with a cosine schedule and about 1,500 steps, whatever the size of the set is."""
    common = {"lr": 1e-2, "schedule": "cosine"}
    if n_train is None or n_train <= _FULL_BATCH:
        return {**common, "epochs": _VECTOR_STEPS, "batch_size": None}
    return {**common, "epochs": max(10, math.ceil(_VECTOR_STEPS / math.ceil(n_train / 256))), "batch_size": 256}
