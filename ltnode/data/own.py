"""Data of one's own by their path: loaded for a training, and loaded again for everything that follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ltnode.data.catalogue import names
from ltnode.data.dataset import Dataset
from ltnode.data.folder import from_folder
from ltnode.data.origin import Origin
from ltnode.errors import DataError, InputError


def is_path(data: str) -> bool:
    """Whether a word is the path of one's own data, instead of the name of a built-in set."""
    return data not in names() and (Path(data).expanduser().exists() or "/" in data or "\\" in data)


def load_path(path: str | Path, *, size: int | tuple[int, int] | None = None) -> Dataset:
    """Load a folder of images for a training.

    Args:
        path: The folder; see `from_folder` for its layout.
        size: Height and width to which images are cropped and scaled, or one number for both.

    Raises:
        DataError: There is nothing at the path, or nothing that can be trained on; one line per problem.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise DataError(f"{path} does not exist; give a folder that contains one folder of images per class")
    return _named(from_folder(path, size=size))


def load_again(origin: Origin, run: Path | None, checksums: Mapping[str, str]) -> Dataset:
    """Load the data of a training again, with the same test split.

    Args:
        origin: What the run records.
        run: The run folder, near which a relative path is looked for.
        checksums: Checksums that the run records.

    Raises:
        DataError: The data are not there, or have changed since the training.
        InputError: The data are of a kind that cannot be loaded without more information.
    """
    if origin.kind != "folder":
        raise InputError(f"the model was trained on the table {origin.path}: pass data, the Dataset")
    found = origin.find(run)
    data = from_folder(found.path, size=found.size, test_fraction=found.test_fraction, seed=found.seed)
    data = _named(replace(data, origin=origin))
    changed = sorted(key for key, value in data.checksums.items() if key in checksums and checksums[key] != value)
    if changed:
        raise DataError(
            f"{found.path} has changed since the model was trained on it ({', '.join(changed)}), so that it is unknown which "
            "images the training saw: restore it, or name a folder of images that training did not see with --data"
        )
    return data


def _named(data: Dataset) -> Dataset:
    """The data set, with another name if it has that of a built-in set: a folder called "mnist" is not MNIST."""
    return replace(data, name=f"{data.name}-folder") if data.name in names() else data
