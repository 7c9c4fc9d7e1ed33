"""Checkpoints: everything that the next step depends on, in folders that are complete or recognised as damaged.

``checkpoints/step-0000000120/`` holds ``tensors.safetensors`` (model, optimisers, averages of the weights, states of
the random generators) and ``state.json`` (counters, position in the data, sums of the log, training grid, checksums).
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ltnode import files
from ltnode.errors import CheckpointError, InputError
from ltnode.models.averaging import Averages
from ltnode.models.latent_time import TRAINING_GRID
from ltnode.training import tensor_file
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
_PREFIX = "step-"
_NAME = re.compile(r"step-[0-9]{10,18}")
_TENSORS = "tensors.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """State of a run after ``step`` steps: named tensors (model, optimisers, random generators), and the rest as JSON.

    ``run`` identifies the run; None in folders of earlier versions.
    """

    step: int
    tensors: dict[str, Tensor]
    state: dict[str, Any]
    run: str | None = None


def write(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write a checkpoint, and remove older ones of this run beyond the last ``keep`` that are whole.

    The new checkpoint always stays. Folders that are damaged, or that belong to another run, neither count nor are removed.

    Raises:
        CheckpointError: The checkpoint cannot be written; earlier ones are unchanged.
    """
    tensors = tensor_file.to_bytes(checkpoint.tensors)
    payload = {
        "step": checkpoint.step,
        "run": checkpoint.run,
        "tensors_sha256": hashlib.sha256(tensors).hexdigest(),
        "state": checkpoint.state,
    }
    envelope = {"sha256": _checksum(payload), "payload": payload}
    path = folder / f"{_PREFIX}{checkpoint.step:010d}"
    files.write_folder(path, {_TENSORS: tensors, "state.json": json.dumps(envelope).encode()})
    _prune(folder, checkpoint, keep)
    return path


def _prune(folder: Path, newest: Checkpoint, keep: int) -> None:
    kept = 1
    for old in reversed(_paths(folder)):
        if _step_of(old) >= newest.step:
            continue
        try:
            if _read_payload(old)[0].get("run") != newest.run:
                continue
            # Whether a checkpoint is whole matters only while it is needed.
            if kept < keep:
                read(old)
                kept += 1
                continue
        except CheckpointError:
            continue
        try:
            files.remove_folder(old)
        except OSError as error:  # the new checkpoint is whole, and one too many does no harm
            _LOG.warning("the old checkpoint %s cannot be removed: %s", old, error.strerror or error)


def read(path: Path) -> Checkpoint:
    """Read one checkpoint.

    Raises:
        CheckpointError: A file is missing, truncated or altered, or the folder has the name of another step.
    """
    payload, content = _read_payload(path)
    step = payload["step"]
    if isinstance(step, bool) or not isinstance(step, int) or step != _step_of(path):
        raise CheckpointError(f"{path} is damaged: state.json is that of step {step!r}")
    return Checkpoint(step, tensor_file.from_bytes(content(), path / _TENSORS), payload["state"], payload.get("run"))


def _read_payload(path: Path) -> tuple[dict[str, Any], Callable[[], bytes]]:
    """The content of state.json, and a function that reads the tensor file that belongs to it."""
    envelope = files.read_json(path / "state.json", _is_envelope, "a checkpoint")
    payload = envelope["payload"]
    if _checksum(payload) != envelope["sha256"]:
        raise CheckpointError(f"{path / 'state.json'} is damaged: its content does not match its checksum")

    def tensors() -> bytes:
        file = path / _TENSORS
        try:
            content = files.read_bytes(file, files.MAX_TENSOR_BYTES)
        except FileNotFoundError:
            raise CheckpointError(f"{file} is missing") from None
        if hashlib.sha256(content).hexdigest() != payload["tensors_sha256"]:
            raise CheckpointError(f"{file} is damaged: it does not match the checksum in state.json")
        return content

    return payload, tensors


def latest(folder: Path, check: Callable[[Checkpoint], None] = lambda checkpoint: None) -> Checkpoint | None:
    """Return the newest checkpoint that can be used; None if there are no checkpoints.

    Args:
        folder: The folder of the checkpoints.
        check: Raises a CheckpointError for a checkpoint from which the run cannot continue.

    Raises:
        CheckpointError: None of the checkpoints can be used.
    """
    paths = _paths(folder)
    for path in reversed(paths):
        try:
            found = read(path)
            check(found)
            return found
        except CheckpointError as error:
            _LOG.warning("checkpoint %s cannot be used, trying the previous one: %s", path.name, error)
    if paths:
        raise CheckpointError(
            f"all {len(paths)} checkpoints in {folder} are damaged or belong to another run; restore one from a backup, or "
            "delete the folder to start over"
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
    """Return parameters and buffers by name, without the training grid, which checkpoints hold as JSON.

    Raises:
        CheckpointError: The state dict contains something that is not a tensor.
    """
    state = {name: value for name, value in model.state_dict().items() if name.rpartition(".")[2] != TRAINING_GRID}
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{name} is a {type(value).__name__}, and only tensors can be saved: make it a buffer")
    return state


def restore_model(model: nn.Module, tensors: dict[str, Tensor], source: Path) -> None:
    """Load parameters and buffers into a model of the same architecture.

    Raises:
        CheckpointError: Names or shapes differ, or a prediction grid is not one.
    """
    try:
        model.load_state_dict(tensors)
    except InputError as error:
        raise CheckpointError(f"{source} is damaged: {error}; restore it from a backup or train again") from error
    except (RuntimeError, KeyError) as error:
        raise CheckpointError(f"{source} does not fit this model; build it with the options of its training: {error}") from error


def training_tensors(
    model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], averages: Averages | None = None
) -> dict[str, Tensor]:
    """Return all tensors of a training: model, optimisers, averages of the weights and random generators."""
    tensors = {f"model.{name}": value for name, value in model_tensors(model).items()}
    for phase, optimizer in optimizers.items():
        tensors |= optimizer_tensors(phase, optimizer)
    for phase, average in (averages or {}).items():
        tensors |= {f"average.{phase}.{name}": value for name, value in average.tensors().items()}
    return tensors | generator_tensors()


def restore_training(
    model: nn.Module,
    optimizers: Mapping[str, torch.optim.Optimizer],
    checkpoint: Checkpoint,
    source: Path,
    averages: Averages | None = None,
) -> None:
    """Restore model, optimisers and averages; see `restore_generators` for the rest of the tensors.

    Raises:
        CheckpointError: Names or shapes differ, or the checkpoint has no averages.
    """
    tensors = checkpoint.tensors
    restore_model(model, _with_prefix(tensors, "model."), source)
    for phase, optimizer in optimizers.items():
        restore_optimizer(phase, optimizer, tensors)
    for phase, average in (averages or {}).items():
        try:
            average.load(_with_prefix(tensors, f"average.{phase}."))
        except (KeyError, RuntimeError) as error:
            raise CheckpointError(f"{source} holds no averages of these weights: {error}") from error


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def _paths(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name) and path.is_dir()), key=_step_of)


def _step_of(path: Path) -> int:
    return int(path.name.removeprefix(_PREFIX))


def _checksum(payload: Any) -> str:
    return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def _is_envelope(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("sha256"), str)
        and isinstance(value.get("payload"), dict)
        and {"step", "tensors_sha256", "state"} <= value["payload"].keys()
        and isinstance(value["payload"]["state"], dict)
    )
