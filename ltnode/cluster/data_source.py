"""The data set that a specification names: a built-in set, a table, a folder of images, or a file of arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ltnode import data as data_sets
from ltnode.checks import is_finite_number
from ltnode.data import Dataset
from ltnode.data.arrays import Task
from ltnode.data.own import load_path
from ltnode.errors import ConfigError, DataError, unknown_name
from ltnode.tables.read import read_arrays, read_content
from ltnode.training import TrainConfig
from ltnode.training.own_tables import OwnTable

_TABLES = (".csv", ".tsv", ".parquet", ".npz")
_MOST_CLASSES = 20
"""Whole numbers from 0 with at most this many different values are labels; all other targets are those of a regression."""


@dataclass(frozen=True)
class Source:
    """What a training needs to load its data in another process.

    Attributes:
        where: Name of a built-in set; a table (.csv, .tsv, .parquet, .npz); a folder of images for `ltnode.data.from_folder`.
            Without ``table``, a ``.npz`` file has arrays ``x`` and ``y`` and possibly ``x_test`` and ``y_test``, and a
            ``.csv`` file has numbers with the target in the last column.
        table: How the table is read.
        image_size: Height and width to which the images of the folder are cropped and scaled.
        split_seed: Seed of the held-out parts of a table, where several trainings share them; None takes that of the training.
    """

    where: str
    table: OwnTable | None = None
    image_size: int | None = None
    split_seed: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The source as plain values; paths are absolute, since a worker may have another working folder."""
        if is_built_in(self.where):
            return asdict(self)
        table = self.table
        if table is not None and table.test is not None:
            table = replace(table, test=_absolute(table.test))
        return asdict(replace(self, where=_absolute(self.where), table=table))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Source:
        """Make a source from plain values."""
        table = values["table"]
        return cls(values["where"], None if table is None else own_table(table), values["image_size"], values["split_seed"])

    def check(self) -> None:
        """Require that the options fit the data.

        Raises:
            ConfigError: They do not.
        """
        folder, built_in = Path(self.where).expanduser().is_dir(), is_built_in(self.where)
        if self.image_size is not None and (built_in or not folder):
            raise ConfigError(f"image_size belongs to folders of images, and {self.where} is none")
        if self.table is not None and (built_in or folder):
            raise ConfigError(f"[table] belongs to tables ({', '.join(_TABLES)}), and {self.where} is none")

    def load(self, config: TrainConfig) -> Dataset:
        """Load the data with the held-out parts that a configuration asks for.

        Raises:
            ConfigError: The options do not fit the data.
            DataError, InputError: There are no such data, or they cannot be used.
        """
        self.check()
        path = Path(self.where).expanduser()
        if is_built_in(self.where):
            return data_sets.load(self.where)
        if path.is_dir():
            return load_path(path, size=self.image_size)
        if not path.is_file():
            raise DataError(
                f"{unknown_name('data set', self.where, data_sets.names())} There is no file or folder of this name either."
            )
        kind = path.suffix.lower()
        if kind not in _TABLES:
            raise DataError(
                f"{path} must be a folder of images or a table ({', '.join(_TABLES)}), not {kind or 'without suffix'}"
            )
        if self.table is not None:
            shared = {} if self.split_seed is None else {"split_seed": self.split_seed}
            return self.table.load(path, config.replace(**shared))
        if kind == ".npz":
            return _from_npz(path)
        if kind == ".csv":
            return _from_csv(path)
        raise ConfigError(f'{path} needs a [table] with its target, such as target = "price"')


def own_table(values: Mapping[str, Any]) -> OwnTable:
    """How a table is read, from plain values; ``kinds`` is a table, or a list of pairs.

    Raises:
        ConfigError: A key is unknown or missing, or a value has another type.
    """
    for key, value in values.items():
        if key not in _OF_A_TABLE:
            raise ConfigError(unknown_name("key of [table]", key, tuple(_OF_A_TABLE)))
        allowed, words = _OF_A_TABLE[key]
        if not allowed(value):
            raise ConfigError(f"{key} of [table] must be {words}, not {value!r}")
    given = {key: value for key, value in values.items() if value is not None}
    if "target" not in given:
        raise ConfigError('[table] needs target, the column to predict, such as target = "price"')
    kinds = given.pop("kinds", {})
    pairs = kinds.items() if isinstance(kinds, Mapping) else kinds
    ignored = tuple(given.pop("ignore", ()))
    return OwnTable(**given, ignore=ignored, kinds=tuple((str(column), str(kind)) for column, kind in pairs))


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


_OF_A_TABLE: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "target": (_is_text, "the name of a column"),
    "task": (lambda value: value in (None, "classification", "regression"), '"classification" or "regression"'),
    "group": (_is_text, "the name of a column"),
    "ignore": (lambda value: isinstance(value, list | tuple) and all(map(_is_text, value)), "a list of columns"),
    "kinds": (lambda value: isinstance(value, Mapping | list | tuple), 'a table, such as { zip = "category" }'),
    "test": (_is_text, "the path of a table"),
    "test_fraction": (lambda value: value is None or is_finite_number(value), "a number"),
}
"""Keys of ``[table]`` and what their values must be; None in a record is a key that was not given."""


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


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
