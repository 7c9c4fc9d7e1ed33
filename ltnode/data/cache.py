"""Imported image sets on disk: memory-mapped .npy arrays and a JSON file that describes them.

The file names of the arrays contain checksums; each array is renamed into place when it is complete, and the JSON file is
replaced last. The folder therefore always contains either the old or the new set, never a mixture.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ltnode.data.dataset import array_md5
from ltnode.data.formats import RawSplit
from ltnode.errors import DataError
from ltnode.files import cache_folder

_META = "meta.json"
_FORMAT = 1
_TEMPORARY = ".partial-"
_STALE_AFTER = 3600.0  # seconds; an older temporary file belongs to a killed process


@dataclass(frozen=True)
class CachedSet:
    """An imported set on disk: "train_x", "train_y", "test_x" and "test_y", the md5 of their content, and their source.

    The arrays are copy-on-write memory maps, so that the files never change.
    """

    arrays: dict[str, NDArray[np.uint8]]
    checksums: dict[str, str]
    source: str
    n_bytes: int

    @property
    def verified(self) -> bool:
        """Whether the content was recognised."""
        return self.source != "unverified"


def data_root(root: Path | str | None = None) -> Path:
    """The data folder: ``root``, else the environment variable LTNODE_DATA, else the cache folder of the user."""
    chosen = root or os.environ.get("LTNODE_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


def write_cache(folder: Path, train: RawSplit, test: RawSplit, *, checksums: dict[str, str], source: str) -> None:
    """Write a set to ``folder`` and replace the previous one, which a failure (a DataError) leaves unchanged."""
    arrays = {"train_x": train.x, "train_y": train.y, "test_x": test.x, "test_y": test.y}
    before = set(folder.glob("*.npy"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        entries = {key: _write_array(folder, key, array) for key, array in arrays.items()}
        meta = {"format": _FORMAT, "source": source, "checksums": checksums, "arrays": entries}
        _write_whole(folder / _META, lambda stream: stream.write(json.dumps(meta, indent=1).encode()))
        _remove_leftovers(folder, keep={entry["file"] for entry in entries.values()})
    except OSError as error:
        for path in set(folder.glob("*.npy")) - before:
            path.unlink(missing_ok=True)
        raise DataError(
            f"could not write to {folder} ({error}); nothing was changed. Free some disk space, or choose another folder "
            "with LTNODE_DATA"
        ) from error


def _write_array(folder: Path, key: str, array: NDArray[np.uint8]) -> dict[str, Any]:
    array = np.ascontiguousarray(array)
    md5 = array_md5(array)
    path = folder / f"{key}-{md5[:16]}.npy"
    _write_whole(path, lambda stream: np.save(stream, array, allow_pickle=False))
    status = path.stat()
    return {"file": path.name, "md5": md5, "shape": list(array.shape), "bytes": status.st_size, "mtime_ns": status.st_mtime_ns}


def _write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write to a temporary file, fsync and rename it; on failure remove the temporary file."""
    descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)  # the 0600 of mkstemp would exclude other users of a shared folder
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _remove_leftovers(folder: Path, keep: set[str]) -> None:
    """Delete the arrays of a replaced set, and temporary files of killed processes."""
    for path in folder.glob("*.npy"):
        if path.name not in keep and not path.name.startswith("."):
            path.unlink(missing_ok=True)
    for path in folder.glob(f"{_TEMPORARY}*"):
        with suppress(FileNotFoundError):  # another process may rename or delete it in the meantime
            if time.time() - path.stat().st_mtime > _STALE_AFTER:
                path.unlink()


def read_cache(folder: Path) -> CachedSet | None:
    """Read the set in ``folder``; None if there is none, and a DataError if it is damaged.

    An array with unchanged size and modification time is trusted; otherwise its md5 is checked.
    """
    try:
        text = (folder / _META).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(folder, error) from error
    try:
        meta = json.loads(text)
        if meta["format"] != _FORMAT:
            raise ValueError(f"its format is {meta['format']}, but this version reads format {_FORMAT}")
        arrays = {key: _read_array(folder, entry) for key, entry in meta["arrays"].items()}
        if set(arrays) != {"train_x", "train_y", "test_x", "test_y"}:
            raise ValueError(f"its arrays are {sorted(arrays)}")
        n_bytes = sum(int(entry["bytes"]) for entry in meta["arrays"].values())
        return CachedSet(arrays, dict(meta["checksums"]), str(meta["source"]), n_bytes)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(folder, error) from error


def _read_array(folder: Path, entry: dict[str, Any]) -> NDArray[np.uint8]:
    path = folder / Path(entry["file"]).name
    status = path.stat()
    if status.st_size != entry["bytes"]:
        raise ValueError(f"{path.name} has {status.st_size} bytes instead of {entry['bytes']}")
    array = np.load(path, mmap_mode="c", allow_pickle=False)
    if array.dtype != np.uint8 or list(array.shape) != entry["shape"]:
        raise ValueError(f"{path.name} contains {array.dtype} of shape {array.shape}")
    if status.st_mtime_ns != entry["mtime_ns"] and array_md5(array) != entry["md5"]:
        raise ValueError(f"{path.name} was changed: its md5 is not {entry['md5']}")
    return array


def _damaged(folder: Path, why: object) -> DataError:
    return DataError(f"the cached arrays in {folder} are damaged ({why}); delete that folder and fetch or import again")
