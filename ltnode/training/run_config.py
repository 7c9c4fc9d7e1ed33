"""The format version of run folders and saved models, and the one reader of their config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ltnode import files
from ltnode._version import __version__
from ltnode.errors import CheckpointError

RUN_FOLDER_FORMAT = 1
"""Version that config.json records. Raise it when an older ltnode could misread a folder; older versions must stay readable."""
CONFIG = "config.json"


def read_run_config(folder: Path, what: str = "a run folder or a saved model") -> dict[str, Any]:
    """Read config.json of a run folder or of a model that `ltnode.save` wrote.

    Args:
        folder: The folder.
        what: Description of the expected folder, for error messages.

    Raises:
        CheckpointError: The file is missing, damaged, not written by ltnode, or written by a newer version.
    """
    path = folder / CONFIG
    content: dict[str, Any] = files.read_json(path, lambda v: isinstance(v, dict) and v.get("kind") in ("run", "model"), what)
    check_format(path, content.get("format"), RUN_FOLDER_FORMAT)
    return content


def check_format(path: Path, version: object, newest: int) -> None:
    """Require a format version from 1 to ``newest``.

    Raises:
        CheckpointError: A newer ltnode wrote the file, or the version is not a valid number.
    """
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise CheckpointError(f"{path} is damaged: format must be an integer >= 1, not {version!r}; restore it from a copy")
    if version > newest:
        raise CheckpointError(
            f"{path} has format {version} and was written by a newer ltnode; ltnode {__version__} reads formats up to {newest}: "
            "upgrade ltnode"
        )
