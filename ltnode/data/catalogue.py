"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ltnode.data import specs
from ltnode.data.dataset import Dataset
from ltnode.data.images import load_images
from ltnode.data.synthetic import concentric_annuli, gap_data, reflection
from ltnode.errors import InputError, unknown_name

_GENERATED: dict[str, Callable[[], Dataset]] = {
    "synthetic": gap_data,
    "gap": gap_data,
    "concentric": concentric_annuli,
    "reflection": reflection,
}


def names() -> list[str]:
    """All names that :func:`load` accepts."""
    return sorted([*specs.SPECS, *_GENERATED])


def load(name: str, root: Path | str | None = None, limit: int | None = None) -> Dataset:
    """Load a data set by its name.

    Args:
        name: "mnist", "fashion-mnist", "cifar10", "svhn", or generated: "synthetic" (also called "gap"), "concentric",
            "reflection".
        root: Folder of the image sets; by default LTNODE_DATA, else the cache folder of the user. Official files in this
            folder are imported at the first use.
        limit: Maximum number of training examples (drawn with seed 0); the test split is not reduced.

    Raises:
        InputError: The name is unknown; the message suggests the nearest one.
        DataError: The set is missing or damaged; the message names the remedy.
    """
    if name not in names():
        raise InputError(unknown_name("data set", name, names()))
    data = _GENERATED[name]() if name in _GENERATED else load_images(name, root)
    return data if limit is None else data.subset(min(limit, data.n_train))
