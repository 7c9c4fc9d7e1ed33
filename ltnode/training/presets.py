"""Values of the training configuration per model and data set: those of the paper's tables, and defaults for users."""

from __future__ import annotations

import math
from collections.abc import Sized
from typing import Any

from ltnode.errors import ConfigError, unknown_name
from ltnode.models import MODELS, PRESETS, InputSpec, input_spec

_EPOCHS = {"cifar10": 300}
_MILESTONES = {"cifar10": (150, 225)}
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
        values = _images(model, name)
    elif preset == "paper":
        values = _paper_vectors(model)
    else:
        train = getattr(data, "train", None)
        values = _vectors(len(train) if isinstance(train, Sized) else None)
    return {**values, "model": model, "data": name, "preset": preset}


def _images(model: str, data: str | None) -> dict[str, Any]:
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
        "epochs": _EPOCHS.get(data or "", 90),
        "batch_size": 256,
        "optimizer": "sgd",
        "lr": 0.1,
        "momentum": 0.9,
        "weight_decay": 1e-4 if model in ("lt-node", "alt-node", "lt-node-mixture", "node-gp") else 5e-4,
        "role_lr": role_lr,
        "role_weight_decay": role_weight_decay,
        "milestones": _MILESTONES.get(data or "", (40, 70)),
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
