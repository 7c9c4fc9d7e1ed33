"""Starting from the weights of another model, and keeping some parts of a model as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from ltnode.errors import ConfigError, unknown_name
from ltnode.models import Model
from ltnode.training.saving import load


def start_from(model: Model, source: Model | str | Path) -> list[str]:
    """Copy the weights of a trained model into an untrained one, wherever names and shapes agree, in place.

    Args:
        model: The untrained model, for other data as a rule.
        source: The trained model, or its run folder.

    Returns:
        The names of the parts of the model that keep some of their initial weights, such as the head for other classes.

    Raises:
        ConfigError: No weight fits.
        CheckpointError: The folder holds no trained model.
    """
    name = type(source).__name__ if isinstance(source, Model) else str(source)
    given = dict((source if isinstance(source, Model) else load(source)).named_parameters())
    kept: dict[str, None] = {}
    copied = 0
    with torch.no_grad():
        for key, value in model.named_parameters():
            if key in given and given[key].shape == value.shape:
                value.copy_(given[key])
                copied += 1
            else:
                kept[key.split(".")[0]] = None
    if not copied:
        raise ConfigError(
            f"no weight of {name} fits the model: both must be of the same kind and width (--set model_options.width=N)"
        )
    return list(kept)


def freeze(model: Model, parts: Sequence[str]) -> None:
    """Exclude parts of a model from training: their weights get no gradient, and normalisations keep their statistics.

    Args:
        model: A model in train mode.
        parts: Names of parts, such as "stem", or of modules in them, such as "stem.0".

    Raises:
        ConfigError: The model has no such part.
    """
    modules = dict(model.named_modules())
    for name in parts:
        if not name or name not in modules:
            raise ConfigError(unknown_name("part to freeze", name, [key for key, _ in model.named_children()]))
        modules[name].requires_grad_(False).eval()


def is_frozen(module: nn.Module) -> bool:
    """Whether a module has weights, none of which is trained."""
    weights = list(module.parameters())
    return bool(weights) and not any(weight.requires_grad for weight in weights)
