"""The cache of fetched models: a folder per content, in which a model appears as a whole or not at all."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ltnode import files
from ltnode.errors import CheckpointError, DataError
from ltnode.training.run_config import CONFIG


def cached(digest: str, name: str) -> Path:
    """Where a model is cached: models of one name but another content have folders of their own."""
    return _root() / digest[:16] / name


def is_cached(folder: Path) -> bool:
    """Whether a folder is that of a fetched model, which others use, too."""
    return folder.resolve().is_relative_to(_root().resolve())


def install(folder: Path, content: Mapping[str, bytes]) -> None:
    """Write the files of a model to its folder in the cache; several processes may do so at once.

    Raises:
        DataError: They cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=files.TEMPORARY, dir=_root()) as scratch:
            prepared = Path(scratch) / folder.name
            files.write_folder(prepared, dict(content))
            prepared.rename(folder)
    except (OSError, CheckpointError) as error:
        if not (folder / CONFIG).is_file():  # otherwise another process was faster
            raise DataError(f"could not write {folder} ({error}); choose another cache folder with LTNODE_CACHE") from error


def remember(name: str, content: bytes) -> None:
    """Keep a small file, which can be fetched again: a failure does not matter."""
    path = files.cache_folder() / name
    with contextlib.suppress(OSError, CheckpointError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, content)


def recall(name: str, most: int) -> bytes:
    """The content of a file of at most ``most`` bytes that was kept; empty if there is none."""
    try:
        return files.read_bytes(files.cache_folder() / name, most)
    except (FileNotFoundError, CheckpointError):
        return b""


def _root() -> Path:
    return files.cache_folder() / "models"
