"""The data set that a specification names: a built-in set, a folder of images, or a file of arrays or a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ltnode import data as data_sets
from ltnode.data import Dataset
from ltnode.data.arrays import Task
from ltnode.errors import DataError, unknown_name
from ltnode.tables.read import read_arrays, read_content

_MOST_CLASSES = 20
"""Whole numbers from 0 with at most this many different values are labels; all other targets are those of a regression."""


def load_source(where: str) -> Dataset:
    """Load a data set.

    Args:
        where: Name of a built-in set; a folder with one folder of images per class; a ``.npz`` file with arrays ``x`` and ``y``
            and possibly ``x_test`` and ``y_test``; a ``.csv`` file of numbers whose last column is the target.

    Raises:
        DataError: It is none of these, or cannot be read.
    """
    if where in data_sets.names():
        return data_sets.load(where)
    path = Path(where).expanduser()
    if path.is_dir():
        return data_sets.from_folder(path)
    if not path.is_file():
        raise DataError(f"{unknown_name('data set', where, data_sets.names())} There is no file or folder of this name either.")
    if path.suffix.lower() == ".npz":
        return _from_npz(path)
    if path.suffix.lower() == ".csv":
        return _from_csv(path)
    raise DataError(
        f"{path} must be a folder of images, a .npz file or a .csv file, not {path.suffix or 'a file without suffix'}"
    )


def is_built_in(where: str) -> bool:
    """Whether this is the name of a data set, and not that of a file or folder."""
    return where in data_sets.names()


def _from_npz(path: Path) -> Dataset:
    try:
        found = read_arrays(read_content(path))
    except DataError as error:
        raise DataError(f"{path} cannot be read as a .npz file: {error}") from error
    arrays: dict[str, Any] = {name: found[name] for name in ("x", "y", "x_test", "y_test") if name in found}
    if not {"x", "y"} <= arrays.keys():
        raise DataError(f"{path} must hold the arrays x and y, not {', '.join(arrays) or 'none of them'}")
    return Dataset.from_arrays(**arrays, task=_task(arrays["y"]), name=path.stem)


def _from_csv(path: Path) -> Dataset:
    try:
        lines = read_content(path).decode("utf-8-sig").splitlines()
        header = bool(lines) and not _is_number(lines[0].split(",")[0])
        table = np.loadtxt(lines, delimiter=",", skiprows=int(header), ndmin=2)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} must be a table of numbers with commas and at most one header: {error}") from error
    if table.shape[1] < 2:
        raise DataError(
            f"{path} must have at least one input column and the target in the last column, not {table.shape[1]} columns"
        )
    return Dataset.from_arrays(table[:, :-1], _labels(table[:, -1]), task=_task(table[:, -1]), name=path.stem)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _task(y: np.ndarray) -> Task:
    values = np.unique(y)
    whole = bool((values == values.round()).all())
    return "classification" if whole and values.min() >= 0 and len(values) <= _MOST_CLASSES else "regression"


def _labels(y: np.ndarray) -> np.ndarray:
    return y.astype(np.int64) if _task(y) == "classification" else y
