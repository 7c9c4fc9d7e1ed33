"""Checkpoints: everything that the next step depends on, in folders that are whole or recognised as damaged.

``checkpoints/step-00000120/`` holds ``tensors.safetensors`` (model, optimisers, states of the random generators) and
``state.json`` (counters, position in the data, sums of the log, the solver's kept grid, checksums).
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ltnode import files as atomic
from ltnode.errors import CheckpointError
from ltnode.training import tensor_file
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_PREFIX = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """State of a run between two steps.

    Attributes:
        step: Optimiser steps done.
        tensors: Model, optimisers and random generators, by name.
        state: The rest, as JSON.
    """

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]


def write(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint and remove all but the last ``keep``.

    Raises:
        CheckpointError: The system refused; earlier checkpoints are untouched.
    """
    tensors = tensor_file.to_bytes(checkpoint.tensors)
    payload = {"step": checkpoint.step, "tensors_sha256": hashlib.sha256(tensors).hexdigest(), "state": checkpoint.state}
    envelope = {"sha256": _checksum(payload), "payload": payload}
    path = folder / f"{_PREFIX}{checkpoint.step:010d}"
    atomic.write_folder(path, {"tensors.safetensors": tensors, "state.json": json.dumps(envelope).encode()})
    for old in _paths(folder)[:-keep]:
        atomic.remove_folder(old)
    return path


def read(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        CheckpointError: Anything in it is missing, truncated or altered.
    """
    envelope = atomic.read_json(path / "state.json", _is_envelope, "a checkpoint")
    payload = envelope["payload"]
    if _checksum(payload) != envelope["sha256"]:
        raise CheckpointError(f"{path / 'state.json'} is damaged: it does not have its own checksum")
    file = path / "tensors.safetensors"
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read {file}: {error.strerror or error}") from error
    if hashlib.sha256(content).hexdigest() != payload["tensors_sha256"]:
        raise CheckpointError(f"{file} is damaged: it does not have the checksum that state.json gives")
    return Checkpoint(payload["step"], tensor_file.from_bytes(content, file), payload["state"])


def latest(folder: Path) -> Checkpoint | None:
    """The newest whole checkpoint; None where there is none at all.

    Raises:
        CheckpointError: There are checkpoints, and every one is damaged.
    """
    paths = _paths(folder)
    for path in reversed(paths):
        try:
            return read(path)
        except CheckpointError as error:
            _LOG.warning("checkpoint %s cannot be used, trying the one before: %s", path.name, error)
    if paths:
        raise CheckpointError(
            f"all {len(paths)} checkpoints in {folder} are damaged; restore one from a copy, or delete the folder to train anew"
        )
    return None


def generator_tensors() -> dict[str, Tensor]:
    """States of torch's random generators: the CPU's and every CUDA device's."""
    states = {"rng.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states |= {f"rng.cuda.{m}": state for m, state in enumerate(torch.cuda.get_rng_state_all())}
    return states


def restore_generators(tensors: dict[str, Tensor]) -> None:
    """Put the generators back; devices that were not there then stay as they are."""
    torch.set_rng_state(tensors["rng.cpu"])
    for m in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        if f"rng.cuda.{m}" in tensors:
            torch.cuda.set_rng_state(tensors[f"rng.cuda.{m}"], m)


def optimizer_tensors(phase: str, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of an optimiser (momenta, moments, counters), by position of the parameter and name."""
    return {
        f"optimizer.{phase}.{index}.{name}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for name, value in entries.items()
        if isinstance(value, Tensor)
    }


def restore_optimizer(phase: str, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put an optimiser's state back; learning rates are a function of the epoch and not part of it."""
    prefix = f"optimizer.{phase}."
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith(prefix):
            index, _, name = key.removeprefix(prefix).partition(".")
            state.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, by name.

    Raises:
        CheckpointError: A part keeps something in its state dict that is not a tensor.
    """
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{name} is a {type(value).__name__}: only tensors can be saved; make it a buffer")
    return state


def restore_model(model: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Load parameters and buffers into a model of the same architecture.

    Raises:
        CheckpointError: Names or shapes do not fit.
    """
    try:
        model.load_state_dict(tensors)
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(
            f"{source} does not fit this model; build it with the options it was trained with: {error}"
        ) from error


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
