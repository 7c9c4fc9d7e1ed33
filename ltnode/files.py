"""Files that are either whole or not there: temporary name, fsync, rename."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ltnode.errors import CheckpointError

TEMPORARY = ".tmp-"
"""Names of unfinished files and folders begin with this; what a killed process leaves can be deleted."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a crash at any moment leaves the old one or the new one.

    Raises:
        CheckpointError: The system refused (disk full, no permission); the old file is untouched and nothing is left over.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        _write_and_sync(temporary, content)
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise write_error(path, error) from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people and programs: indented, keys in order."""
    write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Write a folder of files that appears as a whole or not at all; an old folder of that name is replaced."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        remove_folder(temporary)
        temporary.mkdir(parents=True)
        for name, content in files.items():
            _write_and_sync(temporary / name, content)
        sync_folder(temporary)
        remove_folder(path)
        temporary.rename(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_folder(temporary)
        raise write_error(path, error) from error


def remove_folder(path: Path) -> None:
    """Remove a folder if it is there; it first gets a temporary name, so that a crash leaves no half of it under its own."""
    if not path.exists():
        return
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Delete what a killed process left under temporary names."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_error(path: Path, error: OSError) -> CheckpointError:
    """The error for a write that the system refused."""
    return CheckpointError(
        f"could not write {path}: {error.strerror or error}. Free some space or choose another folder; what was written before "
        "is whole, and the run continues from its last checkpoint with resume=True (--resume)"
    )


def read_json(path: Path, check: Callable[[Any], bool], what: str) -> Any:
    """Read a JSON file that must pass a check.

    Raises:
        CheckpointError: It is missing, not JSON, or not what it should be.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {path.parent} is not {what}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged (no valid JSON: {error}); restore it from a copy or train anew") from error
    if not check(value):
        raise CheckpointError(f"{path} was not written by ltnode: {path.parent} is not {what}")
    return value


def _write_and_sync(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
