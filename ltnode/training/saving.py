"""Models as folders: config.json and model.safetensors."""

from __future__ import annotations

import difflib
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
from ltnode.training.run_config import CONFIG, KINDS, RUN_FOLDER_FORMAT, read_run_config
from ltnode.typing import Tensor

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
    if (hint := getattr(model, "saving_hint", None)) is not None:
        _LOG.warning("%s", hint)
    folder = prepare_folder(Path(path), "model")
    files.replace_files(folder, model_files(model, "model"))
    return folder


def prepare_folder(folder: Path, kind: str) -> Path:
    """Create a folder for a saved model or estimator; one of the same kind that is in it already will be replaced.

    Raises:
        CheckpointError: The folder holds something else, or cannot be created.
    """
    if folder.is_dir() and any(folder.iterdir()):
        found = read_run_config(folder, f"a saved {kind}; choose another folder", KINDS)["kind"]
        if found == "run":
            raise CheckpointError(f"{folder} holds a training run; save the {kind} in another folder")
        if found != kind:
            raise CheckpointError(f"{folder} holds a saved {found}; save the {kind} in another folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.write_error(folder, error) from error
    return folder


def model_files(model: Model, kind: str) -> dict[str, bytes]:
    """The weights, and config.json, without which a folder is not read and which therefore is written last."""
    config = {"format": RUN_FOLDER_FORMAT, "kind": kind, "model": portable_spec(model)}
    return {**weights_file(model), "config.json": files.json_bytes(config)}


def weights_file(model: Model) -> dict[str, bytes]:
    """The file model.safetensors."""
    return {_WEIGHTS: tensor_file.to_bytes(model_tensors(model))}


def write_weights(model: Model, folder: Path) -> None:
    """Write model.safetensors."""
    for name, content in weights_file(model).items():
        files.write_bytes(folder / name, content)


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
        raise CheckpointError(
            f"{folder} is not a folder;{_nearest(folder)} pass a run folder, which holds config.json and {_WEIGHTS}"
        )
    config: Mapping[str, Any] = read_run_config(folder)
    tensors = _read_weights(folder, config)
    if model is None:
        model = _built(folder, config, tensors)
    restore_model(model, tensors, folder / _WEIGHTS)
    return model.to(device).eval()


def restored_model(folder: Path, kind: str, dtype: torch.dtype) -> Model:
    """Load the model of a folder of another kind, in the dtype in which it was saved.

    Raises:
        CheckpointError: As `load`.
    """
    config = read_run_config(folder, f"a saved {kind}", (kind,))
    tensors = _read_weights(folder, config)
    model = _built(folder, config, tensors).to(dtype)
    restore_model(model, tensors, folder / _WEIGHTS)
    return model.eval()


def _read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    if not (folder / _WEIGHTS).exists():
        unfinished = (folder / "checkpoints").is_dir() or config["kind"] == "run"
        hint = "the run is not finished: continue it with resume=True (--resume)" if unfinished else "restore it from a backup"
        raise CheckpointError(f"{folder / _WEIGHTS} is missing; {hint}")
    return tensor_file.read(folder / _WEIGHTS)


def _built(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Model:
    if config.get("model") is None:
        raise CheckpointError(
            f"{folder} holds the weights of a model with user-defined parts: build the model and call "
            "ltnode.load(path, model=my_model)"
        )
    try:
        return build_described(config["model"], tensors)
    except InputError as error:
        raise CheckpointError(f"the model described by {folder / 'config.json'} cannot be built: {error}") from error


def _nearest(folder: Path) -> str:
    """The run folder next to a missing one that has the most similar name, as a question."""
    near = difflib.get_close_matches(folder.name, [path.parent.name for path in folder.parent.glob(f"*/{CONFIG}")], n=1)
    return f" did you mean {folder.with_name(near[0])}?" if near else ""
