"""Named tensors in one safetensors file with a checksum; nothing is ever pickled."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from ltnode import files
from ltnode.errors import CheckpointError
from ltnode.typing import Tensor

_KEY = "ltnode"
_MAX_HEADER = 16 << 20
_MAX_TENSORS = 100_000
_BYTES_OF_DTYPE = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
"""The dtypes of weights, buffers, optimiser states and generators."""


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
        note = _checked_header(content).get("__metadata__", {}).get(_KEY)
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, MemoryError) as error:
        raise CheckpointError(f"{path} is damaged or not a safetensors file ({error}); restore it from a backup") from error
    if note is None:
        raise CheckpointError(f"{path} was not written by ltnode: its header has no {_KEY!r} entry")
    try:
        expected = files.parse_json(note)["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is damaged: its header cannot be read ({error}); restore it from a backup") from error
    if expected != digest(tensors):
        raise CheckpointError(f"{path} is damaged: its tensors do not match the checksum in its header; restore it from a backup")
    return tensors


def read(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a file; see `from_bytes`."""
    try:
        content = files.read_bytes(path, files.MAX_TENSOR_BYTES)
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing") from None
    return from_bytes(content, path)


def _checked_header(content: bytes) -> dict[str, Any]:
    """The header, in which every tensor has a dtype that ltnode writes and a shape that its bytes can hold.

    Raises:
        ValueError: It has not.
    """
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(_MAX_HEADER, len(content) - 8):
        raise ValueError(f"its header has {length} bytes, but the file only {len(content)}")
    header = files.parse_json(content[8 : 8 + length])
    if not isinstance(header, dict) or len(header) > _MAX_TENSORS:
        raise ValueError("its header is not a table of tensors")
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not isinstance(entry, dict) or entry.get("dtype") not in _BYTES_OF_DTYPE:
            raise ValueError(f"{name[:80]!r} must be a tensor of one of the dtypes {', '.join(_BYTES_OF_DTYPE)}")
        shape, (start, end) = entry["shape"], entry["data_offsets"]
        if not all(isinstance(n, int) and n >= 0 for n in (start, end, *shape)):
            raise ValueError(f"{name[:80]!r} has a shape or a place that is not made of whole numbers")
        if math.prod(shape) * _BYTES_OF_DTYPE[entry["dtype"]] != end - start or end > len(content) - 8 - length:
            raise ValueError(f"{name[:80]!r} has the shape {shape[:8]}, which does not fit its {end - start} bytes")
    return header
