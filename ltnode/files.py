"""Atomic writes (temporary name, fsync, rename), and reads of files that may be hostile: regular, bounded, not too deep."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ltnode.errors import CheckpointError

TEMPORARY = ".tmp-"
"""Prefix of unfinished files and folders; leftovers of a killed process can be deleted."""
MAX_JSON_BYTES = 64 << 20
MAX_TENSOR_BYTES = 16 << 30
_MAX_DEPTH = 64
_MAX_DIGITS = 40


def cache_folder() -> Path:
    """The folder for what can be fetched again: the environment variable LTNODE_CACHE, else a folder in the user's cache."""
    if chosen := os.environ.get("LTNODE_CACHE"):
        return Path(chosen).expanduser()
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ltnode"


def write_bytes(path: Path, content: bytes, owner: str = "") -> None:
    """Write a file atomically: after a crash, either the old or the new file exists.

    Args:
        path: The file.
        content: Its content.
        owner: Part of the temporary name, for a file that several processes may write at the same time.

    Raises:
        CheckpointError: Writing failed (disk full, no permission); the old file is unchanged.
    """
    temporary = path.with_name(f"{TEMPORARY}{owner}{path.name}")
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
    write_bytes(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Indented JSON with sorted keys."""
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()


def replace_files(folder: Path, content: dict[str, bytes]) -> None:
    """Write files that belong together, so that either all of them are the new ones or all the old ones.

    The last one makes the folder valid: if the process is killed in the middle, that file is missing, and the folder is refused
    instead of being read as a mixture.

    Raises:
        CheckpointError: Writing failed; the old files are unchanged.
    """
    prepared = {folder / name: folder / f"{TEMPORARY}new-{name}" for name in content}
    aside = {path: folder / f"{TEMPORARY}old-{path.name}" for path in prepared}
    placed: list[Path] = []
    try:
        for path, temporary in prepared.items():
            _write_and_sync(temporary, content[path.name])
        for path in reversed(prepared):
            if path.exists():
                path.replace(aside[path])
        for path, temporary in prepared.items():
            temporary.replace(path)
            placed.append(path)
        sync_folder(folder)
    except OSError as error:
        for path, temporary in prepared.items():
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                if aside[path].exists():
                    aside[path].replace(path)
                elif path in placed:
                    path.unlink()
        raise write_error(folder, error) from error
    for old in aside.values():
        with contextlib.suppress(OSError):
            old.unlink(missing_ok=True)


def write_folder(path: Path, files: dict[str, bytes]) -> None:
    """Write a folder of files so that it appears with all files or not at all; replace an existing folder."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}")
    try:
        remove_folder(temporary)
        temporary.mkdir(parents=True)
        for name, content in files.items():
            _write_and_sync(temporary / name, content)
        sync_folder(temporary)
        _swap(path, temporary)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            remove_folder(temporary)
        raise write_error(path, error) from error


def _swap(path: Path, prepared: Path) -> None:
    """Put a prepared folder in the place of another one, which is removed once the new one is there."""
    aside = path.with_name(f"{TEMPORARY}removed-{path.name}")
    if path.exists():
        if aside.exists():
            shutil.rmtree(aside)
        path.rename(aside)
    try:
        prepared.rename(path)
    except OSError:
        if aside.exists():
            aside.rename(path)
        raise
    if aside.exists():
        shutil.rmtree(aside)


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
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return CheckpointError(f"could not write {path}: {path.parent} is not a folder; make it, or choose another one")
    return CheckpointError(
        f"could not write {path}: {error.strerror or error}. Free some disk space or choose another folder; earlier files are "
        "intact, and the run continues from its last checkpoint with resume=True (--resume)"
    )


def read_bytes(path: Path, most: int) -> bytes:
    """Read a regular file of at most ``most`` bytes; a pipe or a device would never end.

    Raises:
        FileNotFoundError: There is no such file.
        CheckpointError: It is not a regular file, is too large, or cannot be read.
    """
    try:
        # Opening a pipe without a writer would wait for one.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError(f"{path} must be a regular file, not a folder, pipe or device; restore it from a backup")
            if status.st_size > most:
                raise CheckpointError(
                    f"{path} must have at most {most:,} bytes, not {status.st_size:,}; restore it from a backup"
                )
            return file.read(status.st_size)  # a larger number would be allocated
    except FileNotFoundError:
        raise
    except OSError as error:
        if path.is_dir():
            raise CheckpointError(f"{path} must be a regular file, not a folder; restore it from a backup") from error
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error


def parse_json(content: bytes | str) -> Any:
    """Parse JSON whose nesting and integers are of sensible size.

    Raises:
        ValueError: It is not JSON, is nested too deeply, or has an integer with too many digits.
    """
    try:
        value = json.loads(content, parse_int=_bounded_int)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level: list[Any] = [value]
    for _ in range(_MAX_DEPTH):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _values(outer)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _values(container: dict[str, Any] | list[Any]) -> list[Any]:
    return list(container.values()) if isinstance(container, dict) else container


def _bounded_int(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"an integer has {len(digits)} digits")
    return int(digits)


def read_json(path: Path, check: Callable[[Any], bool], what: str) -> Any:
    """Read a JSON file and validate its content; ``what`` describes the folder in error messages.

    Raises:
        CheckpointError: The file is missing, is not valid JSON, or fails the check.
    """
    try:
        value = parse_json(read_bytes(path, MAX_JSON_BYTES))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing: {path.parent} is not {what}") from None
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
        written = os.fstat(file.fileno()).st_size
    if written != len(content):
        raise OSError(errno.EIO, f"only {written} of {len(content)} bytes were written")
