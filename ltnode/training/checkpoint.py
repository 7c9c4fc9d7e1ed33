"""Checkpoints: everything that the next step depends on, in folders that are complete or recognised as damaged.

``checkpoints/step-0000000120/`` holds ``tensors.safetensors`` (model, optimisers, states of the random generators) and
``state.json`` (counters, position in the data, sums of the log, training grid, checksums).
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ltnode import files
from ltnode.errors import CheckpointError
from ltnode.training import tensor_file
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after ``step`` steps: named tensors (model, optimisers, random generators), and the rest as JSON."""

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint and remove all but the last ``keep``.

    Raises:
        CheckpointError: The checkpoint cannot be written; earlier ones are unchanged.
    """
    tensors = tensor_file.to_bytes(checkpoint.tensors)
    payload = {"step": checkpoint.step, "tensors_sha256": hashlib.sha256(tensors).hexdigest(), "state": checkpoint.state}
    envelope = {"sha256": _checksum(payload), "payload": payload}
    path = folder / f"{_PREFIX}{checkpoint.step:010d}"
    files.write_folder(path, {"tensors.safetensors": tensors, "state.json": json.dumps(envelope).encode()})
    for old in _paths(folder)[:-keep]:
        files.remove_folder(old)
    return path


def read(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        CheckpointError: A file is missing, truncated or altered.
    """
    envelope = files.read_json(path / "state.json", _is_envelope, "a checkpoint")
    payload = envelope["payload"]
    if _checksum(payload) != envelope["sha256"]:
        raise CheckpointError(f"{path / 'state.json'} is damaged: its content does not match its checksum")
    file = path / "tensors.safetensors"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != payload["tensors_sha256"]:
        raise CheckpointError(f"{file} is damaged: it does not match the checksum in state.json")
    return Checkpoint(payload["step"], tensor_file.from_bytes(content, file), payload["state"])


def latest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is not damaged; None if there are no checkpoints.

    Raises:
        CheckpointError: All checkpoints are damaged.
    """
    paths = _paths(folder)
    for path in reversed(paths):
        try:
            return read(path)
        except CheckpointError as error:
            _LOG.warning("checkpoint %s cannot be used, trying the previous one: %s", path.name, error)
    if paths:
        raise CheckpointError(
            f"all {len(paths)} checkpoints in {folder} are damaged; restore one from a backup, or delete the folder to start over"
        )
    return None


def generator_tensors() -> dict[str, Tensor]:
    """Return the states of torch's random generators, of the CPU and of every CUDA device."""
    states = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"rng.cuda.{m}": state for m, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_generators(tensors: dict[str, Tensor]) -> None:
    """Restore the generators; those of devices that are not in the checkpoint stay unchanged."""
    torch.set_rng_state(tensors["rng.cpu"])
    for m in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"rng.cuda.{m}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng.cuda.{m}"], m)


def optimizer_tensors(phase: str, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the state of an optimiser (momenta, moments, counters), by position of the parameter and name."""
    return {
        f"optimizer.{phase}.{index}.{name}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(phase: str, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the state of an optimiser, which excludes learning rates: they are a function of the epoch."""
    prefix = f"optimizer.{phase}."
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix):
            index, _, name = key.removeprefix(prefix).partition(".")
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name.

    Raises:
        CheckpointError: The state dict contains something that is not a tensor.
    """
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{name} is a {type(value).__name__}, and only tensors can be saved: make it a buffer")
    return state


def restore_model(model: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Load parameters and buffers into a model of the same architecture.

    Raises:
        CheckpointError: Names or shapes differ.
    """
    try:
        model.load_state_dict(tensors)
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"{source} does not fit this model; build it with the options of its training: {error}") from error


def training_tensors(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return all tensors of a training: model, optimisers and random generators."""
    tensors = {f"model.{name}": value for name, value in model_tensors(model).items()}
    for phase, optimizer in optimizers.items():
        tensors |= optimizer_tensors(phase, optimizer)
    return tensors | generator_tensors()


def restore_training(
    model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], checkpoint: Checkpoint, source: Path
) -> None:
    """Restore model and optimisers; see `restore_generators` for the rest of the tensors."""
    tensors = checkpoint.tensors
    weights = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    restore_model(model, weights, source)
    for phase, optimizer in optimizers.items():
        restore_optimizer(phase, optimizer, tensors)


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.is_dir()) if folder.is_dir() else []


def _checksum(payload: Any) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def _is_envelope(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("sha256"), str)
        and isinstance(value.get("payload"), dict)
        and {"step", "tensors_sha256", "state"} <= value["payload"].keys()
    )
