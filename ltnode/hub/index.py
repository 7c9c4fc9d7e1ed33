"""The index of a place: its models with their sizes and checksums. It comes from elsewhere, and everything in it is checked."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.errors import CheckpointError, DataError
from ltnode.training.run_config import KINDS, check_format, read_run_config

INDEX = "index.json"
MAX_INDEX_BYTES = 4 << 20
MAX_ARCHIVE_BYTES = 1 << 30
"""Largest archive of a model; it is unpacked in memory."""
NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,62}[a-z0-9])?")
"""Names of models: they are names of files and folders on every operating system, and never lead out of a folder."""
_FORMAT = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MAX_MODELS = 10_000


@dataclass(frozen=True)
class Entry:
    """A model of a place.

    Attributes:
        model: Kind of the model, as in `ltnode.build`.
        task: "classification" or "regression".
        data: Name of the data set that it was trained on; "" if unknown.
        shape: Shape of one input.
        size: Size of the archive in bytes; for a run folder, that of its weights.
        sha256: Checksum of the archive; "" for a run folder, which is used where it is.
    """

    model: str
    task: str
    data: str
    shape: tuple[int, ...]
    size: int
    sha256: str


Index = Mapping[str, Entry]
"""The models of a place by name."""


def read_index(content: bytes, source: str) -> Index:
    """Read an index.

    Args:
        content: The file, which anybody may have written.
        source: Where it comes from, for error messages.

    Raises:
        DataError: It is not an index, or one of a newer version.
    """
    try:
        value = files.parse_json(content)
        check_format(source, value["format"], _FORMAT)
        entries = {name: _entry(name, entry) for name, entry in value["models"].items()}
        if len(entries) > _MAX_MODELS:
            raise ValueError(f"it has {len(entries)} models, more than {_MAX_MODELS}")
    except (ValueError, KeyError, TypeError, AttributeError, CheckpointError) as error:
        raise DataError(f"{source} is not an index of models: {error}") from error
    return entries


def index_bytes(models: Index) -> bytes:
    """Return the file of an index: the same bytes for the same models."""
    entries = {name: asdict(entry) for name, entry in models.items()}
    return (json.dumps({"format": _FORMAT, "models": entries}, indent=1, sort_keys=True) + "\n").encode()


def describe(folder: Path, archive: bytes | None = None) -> Entry:
    """Describe a run folder and, if it is given, the archive of it.

    Raises:
        CheckpointError: The folder is no run folder.
    """
    config = read_run_config(folder, kinds=KINDS)
    try:
        spec, data = config["model"], config.get("data") or {}
        if spec is None:
            raise ValueError("its model has user-defined parts")
        given, weights = spec["input"], folder / "model.safetensors"
        size = weights.stat().st_size if archive is None else len(archive)
        digest = "" if archive is None else hashlib.sha256(archive).hexdigest()
        facts = {"model": spec["model"], "task": given["task"], "data": data.get("name") or "", "shape": given["shape"]}
        return _entry(folder.name, {**facts, "size": size, "sha256": digest}, packed=archive is not None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{folder} cannot be offered by name: {error}") from error


def _entry(name: str, entry: Any, *, packed: bool = True) -> Entry:
    """An entry, in which everything has the right type and a sensible size."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name[:80]!r} is not the name of a model: lower-case letters, digits, '-', '_' and '.', at most 64")
    model, task, data, shape, size, digest = (entry[key] for key in ("model", "task", "data", "shape", "size", "sha256"))
    if not all(isinstance(text, str) and len(text) <= 200 for text in (model, task, data)):
        raise ValueError(f"{name}: model, task and data must be short texts")
    if not (isinstance(shape, list) and 1 <= len(shape) <= 4 and all(type(n) is int and 1 <= n <= 1 << 24 for n in shape)):
        raise ValueError(f"{name}: shape must be a list of one to four sizes")
    if type(size) is not int or not 0 < size <= MAX_ARCHIVE_BYTES:
        raise ValueError(f"{name}: size must be from 1 to {MAX_ARCHIVE_BYTES:,} bytes")
    if not isinstance(digest, str) or (packed and not _SHA256.fullmatch(digest)):
        raise ValueError(f"{name}: sha256 must be 64 hexadecimal digits")
    return Entry(model, task, data, tuple(shape), size, digest)
