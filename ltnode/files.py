"""Atomic writes: temporary name, fsync, rename."""

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
"""Prefix of unfinished files and folders; leftovers of a killed process can be deleted."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: after a crash, either the old or the new file exists.

    Raises:
        CheckpointError: Writing failed (disk full, no permission); the old file is unchanged.
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
    """Write indented JSON with sorted keys."""
    write_bytes(path, (json.dumps(value, indent=2, sort_keys=True) + "\n").encode())


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Write a folder of files so that it appears with all files or not at all; replace an existing folder."""
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
    """Remove a folder if it exists; it is renamed first, so that a crash cannot leave part of it under the original name."""
    if not path.exists():
        return
    doomed = path.with_name(f"{TEMPORARY}removed-{path.name}")
    if doomed.exists():
        shutil.rmtree(doomed)
    path.rename(doomed)
    shutil.rmtree(doomed)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders of killed processes."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()


def sync_folder(path: Path) -> None:
    """Make renames inside a folder durable, if the operating system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_error(path: Path, error: OSError) -> CheckpointError:
    """The exception for a failed write."""
    return CheckpointError(
        f"could not write {path}: {error.strerror or error}. Free some disk space or choose another folder; earlier files are "
        "intact, and the run continues from its last checkpoint with resume=True (--resume)"
    )


def read_json(path: Path, check: Callable[[Any], bool], what: str) -> Any:
    """Read a JSON file and validate its content; ``what`` describes the folder in error messages.

    Raises:
        CheckpointError: The file is missing, is not valid JSON, or fails the check.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {path.parent} is not {what}") from None
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged (not valid JSON: {error}); restore it from a backup or train again") from error
    if not check(value):
        raise CheckpointError(f"{path} was not written by ltnode: {path.parent} is not {what}")
    return value


def _write_and_sync(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
