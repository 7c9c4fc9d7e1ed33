"""``ltnode.save`` and ``ltnode.load``: a model as config.json and model.safetensors."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ltnode import files
from ltnode.errors import CheckpointError, InputError
from ltnode.models import Model
from ltnode.training import tensor_file
from ltnode.training.building import build_described
from ltnode.training.checkpoint import model_tensors, restore_model
from ltnode.training.run_config import RUN_FOLDER_FORMAT, read_run_config

_LOG = logging.getLogger("ltnode")
_WEIGHTS = "model.safetensors"


def portable_spec(model: Model) -> dict[str, Any] | None:
    """Return the description from which the model can be rebuilt, as JSON; None for a model with user-defined parts."""
    if model.spec is None:
        return None
    try:
        spec: dict[str, Any] = json.loads(json.dumps(model.spec))
    except TypeError:
        return None
    return spec


def save(model: Model, path: str | Path) -> Path:
    """Save a model: weights, posterior, buffers and prediction grid, and the description from which it can be rebuilt.

    Args:
        model: Any model; load one with user-defined parts by ``ltnode.load(path, model=my_model)``.
        path: A folder, which is created; an earlier saved model in it is replaced.

    Raises:
        CheckpointError: The folder holds a training run or other files, or cannot be written.
    """
    if not isinstance(model, Model):
        raise InputError(
            f"ltnode.save takes a model, not a {type(model).__name__}; save a scikit-learn estimator with joblib.dump or pickle"
        )
    if (hint := getattr(model, "saving_hint", None)) is not None:
        _LOG.warning("%s", hint)
    folder = Path(path)
    if folder.is_dir() and any(folder.iterdir()):
        config = read_run_config(folder, "a saved model; choose another folder")
        if config["kind"] != "model":
            raise CheckpointError(f"{folder} holds a training run; save the model in another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.write_error(folder, error) from error
    write_weights(model, folder)
    files.write_json(folder / "config.json", {"format": RUN_FOLDER_FORMAT, "kind": "model", "model": portable_spec(model)})
    return folder


def write_weights(model: Model, folder: Path) -> None:
    """Write model.safetensors."""
    files.write_bytes(folder / _WEIGHTS, tensor_file.to_bytes(model_tensors(model)))


def load(path: str | Path, model: Model | None = None, device: str | torch.device = "cpu") -> Model:
    """Load the model of a run folder or of a folder written by `save`; it is in eval mode.

    Args:
        path: The folder.
        model: A model with user-defined parts of the same shapes, whose weights are replaced; not needed for models of
            `ltnode.build`.
        device: Device of the model.

    Raises:
        CheckpointError: The folder is missing, damaged, incomplete or not from ltnode, or the weights do not fit the model.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder; pass a run folder, which holds config.json and {_WEIGHTS}")
    config: Mapping[str, Any] = read_run_config(folder)
    if not (folder / _WEIGHTS).exists():
        unfinished = (folder / "checkpoints").is_dir() or config["kind"] == "run"
        hint = "the run is not finished: continue it with resume=True (--resume)" if unfinished else "restore it from a backup"
        raise CheckpointError(f"{folder / _WEIGHTS} is missing; {hint}")
    tensors = tensor_file.read(folder / _WEIGHTS)
    if model is None:
        if config.get("model") is None:
            raise CheckpointError(
                f"{folder} holds the weights of a model with user-defined parts: build the model and call "
                "ltnode.load(path, model=my_model)"
            )
        try:
            model = build_described(config["model"], tensors)
        except InputError as error:
            raise CheckpointError(f"the model described by {folder / 'config.json'} cannot be built: {error}") from error
    restore_model(model, tensors, folder / _WEIGHTS)
    return model.to(device).eval()
