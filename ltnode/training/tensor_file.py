"""Named tensors in one safetensors file with a checksum; nothing is ever pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ltnode.errors import CheckpointError
from ltnode.typing import Tensor

_KEY = "ltnode"


def digest(tensors: Mapping[str, Tensor]) -> str:
    """Compute the SHA-256 of names, dtypes, shapes and values."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        total.update(tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else b"")
    return total.hexdigest()


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return the content of the file: the same bytes for the same tensors, without time, path or host."""
    # The tensors are cloned because safetensors refuses tensors that share memory (tied weights).
    plain = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    # There is only one metadata key, because the order of several keys would not be deterministic.
    return save(plain, metadata={_KEY: json.dumps({"format": 1, "sha256": digest(plain)}, sort_keys=True)})


def from_bytes(content: bytes, path: Path) -> dict[str, Tensor]:
    """Return the tensors in the content of a file.

    Raises:
        CheckpointError: The content is truncated, altered, or not from ltnode.
    """
    try:
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({error}); restore it from a backup") from error
    note = header.get("__metadata__", {}).get(_KEY)
    if note is None:
        raise CheckpointError(f"{path} was not written by ltnode: its header has no {_KEY!r} entry")
    try:
        expected = json.loads(note)["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: its header cannot be read ({error}); restore it from a backup") from error
    if expected != digest(tensors):
        raise CheckpointError(f"{path} is damaged: its tensors do not match the checksum in its header; restore it from a backup")
    return tensors


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file; see `from_bytes`."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    return from_bytes(content, path)
