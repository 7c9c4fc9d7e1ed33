"""The format version of run folders and saved models, and the one reader of their config.json."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode._version import __version__
from ltnode.errors import CheckpointError

RUN_FOLDER_FORMAT = 1
"""Version that config.json records. Raise it when an older ltnode could misread a folder; older versions must stay readable."""
CONFIG = "config.json"


KINDS = ("run", "model", "estimator")
"""What a folder with a config.json can hold: a training run, a saved model, or a saved scikit-learn estimator."""


def read_run_config(
    folder: Path, what: str = "a run folder or a saved model", kinds: Collection[str] = ("run", "model")
) -> dict[str, Any]:
    """Read config.json of a run folder or of a folder that `ltnode.save` wrote.

    Args:
        folder: The folder.
        what: Description of the expected folder, for error messages.
        kinds: What the folder may hold, some of `KINDS`.

    Raises:
        CheckpointError: The file is missing, damaged, not written by ltnode, or written by a newer version, or the folder holds
            something else.
    """
    path = folder / CONFIG
    content: dict[str, Any] = files.read_json(path, lambda v: isinstance(v, dict) and v.get("kind") in KINDS, what)
    check_format(path, content.get("format"), RUN_FOLDER_FORMAT)
    if content["kind"] not in kinds:
        if content["kind"] == "estimator":
            raise CheckpointError(f"{folder} holds a scikit-learn estimator, not {what}: load it with ltnode.load")
        raise CheckpointError(f"{folder} holds a {'training run' if content['kind'] == 'run' else 'saved model'}, not {what}")
    return content


def kind_of_folder(folder: Path) -> str | None:
    """What a folder holds, one of `KINDS`; None if it has no config.json.

    Raises:
        CheckpointError: config.json is damaged, or not from ltnode.
    """
    if not (folder / CONFIG).is_file():
        return None
    return str(read_run_config(folder, kinds=KINDS)["kind"])


def check_format(path: Path | str, version: object, newest: int) -> None:
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
