"""Data sets from tables: a file or a DataFrame becomes encoded rows with drawn or given parts."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data.augment import Normalisation
from ltnode.data.dataset import Dataset, Split, checksums
from ltnode.data.origin import Origin, file_sha256
from ltnode.data.parts import Parts, draw_parts
from ltnode.errors import InputError
from ltnode.tables import Kind, Schema, Table, Target, Task, cells, read_table
from ltnode.tables.schema import require_column
from ltnode.typing import Tensor

_LOG = logging.getLogger("ltnode")
FEWEST_ROWS = 30
"""Fewer rows cannot be divided into four parts that mean anything."""
SMALLEST_SPREAD = 0.25
"""Rare indicators are divided by this instead of their small standard deviation, which would make them huge."""


@dataclass(frozen=True)
class Shares:
    """Shares of the rows that are held out, and the seed with which they are drawn.

    Attributes:
        test: Share of the test rows, unless they are given.
        validation: Share of the other rows on which temperature and widening are chosen.
        calibration: Share of the other rows that choose nothing.
        seed: Seed of the draw.
    """

    test: float = 0.2
    validation: float = 0.1
    calibration: float = 0.05
    seed: int = 0


def from_table(
    source: Any,
    target: str | Sequence[str],
    *,
    task: Task | None = None,
    group: str | None = None,
    ignore: Iterable[str] = (),
    kinds: Mapping[str, Kind] | None = None,
    test: Any = None,
    shares: Shares | None = None,
    name: str | None = None,
) -> Dataset:
    """Create a data set from a table; its schema is inferred from the rows that are trained on.

    Args:
        source: A .csv, .tsv, .parquet or .npz file, a DataFrame, or a mapping from names to columns. Rows without a target are
            left out.
        target: The column to predict.
        task: "classification" or "regression"; None infers it: words, booleans and up to 10 different whole numbers are classes.
        group: Column whose equal values keep rows on one side when parts are drawn, such as a customer; it is not an input.
        ignore: Columns that are not used.
        kinds: Kinds of columns for which the inferred one is wrong, such as ``{"zip": "category"}``.
        test: A table of test rows; None draws them.
        shares: Shares of the held-out parts, and the seed of the draw.
        name: Name in reports; by default that of the file.

    Raises:
        DataError: A file is missing or cannot be read.
        InputError: The table cannot be learnt from; the message says why.
    """
    shares, names = shares or Shares(), (target,) if isinstance(target, str) else tuple(target)
    if len(names) != 1:
        raise InputError(f"a network predicts one target, not {len(names)}: train one model per target, or use the estimators")
    table, test_table = _labelled(read_table(source), names, source), None
    if test is not None:
        test_table = _labelled(read_table(test), names, test)
    rows = _Rows.drawn(table, names, task, group, shares, given_test=test is not None)
    schema = Schema.infer(table, names, task=task, group=group, ignore=ignore, kinds=kinds, rows=rows.fitting)
    origin = _origin(source, test, shares)
    return _dataset(name or _name(source), table, test_table, rows, schema, origin)


def load_table(origin: Origin, schema: Schema) -> Dataset:
    """Load the table of a training again, with the schema and the parts of the training.

    Raises:
        DataError: The file cannot be read.
        InputError: The rows do not fit the schema.
    """
    names = tuple(target.name for target in schema.targets)
    shares = Shares(origin.test_fraction, origin.validation_fraction, origin.calibration_fraction, origin.seed)
    table = _labelled(read_table(origin.path), names, origin.path)
    test_table = None if origin.test is None else _labelled(read_table(origin.test), names, origin.test)
    rows = _Rows.drawn(table, names, schema.task, schema.group, shares, given_test=test_table is not None)
    return _dataset(_name(origin.path), table, test_table, rows, schema, origin)


def labelled_rows(source: Any, schema: Schema) -> Split:
    """Encode the rows of another table, which has the target as well, for an evaluation.

    Raises:
        DataError: The file cannot be read.
        InputError: The rows do not fit the schema.
    """
    names = tuple(target.name for target in schema.targets)
    return _split(_labelled(read_table(source), names, source), schema)


@dataclass(frozen=True, eq=False)
class _Rows:
    """Positions of the test rows and of the others in the table, and the parts of the others."""

    test: NDArray[np.int64]
    train: NDArray[np.int64]
    parts: Parts

    @property
    def fitting(self) -> NDArray[np.int64]:
        return self.train[self.parts.fit.numpy()]

    @classmethod
    def drawn(
        cls, table: Table, names: Sequence[str], task: Task | None, group: str | None, shares: Shares, *, given_test: bool
    ) -> _Rows:
        targets = [Target.inferred(name, table[name], task) for name in names]
        n = len(table[names[0]])
        if n < FEWEST_ROWS:
            raise InputError(f"a table must have at least {FEWEST_ROWS} rows with a target, not {n}")
        groups = None
        if group is not None:
            require_column(table, group)
            if group in names:
                raise InputError(f"{group!r} cannot be the target and the group: choose another group column")
            groups = _codes(table[group])
        test, parts = draw_parts(
            n,
            test_fraction=0.0 if given_test else shares.test,
            validation_fraction=shares.validation,
            calibration_fraction=shares.calibration,
            seed=shares.seed,
            groups=groups,
            classes=targets[0].encode(table[names[0]]) if targets[0].task == "classification" else None,
        )
        mask = np.ones(n, dtype=bool)
        mask[test.numpy()] = False
        return cls(test.numpy(), np.flatnonzero(mask), parts)


def _codes(values: NDArray[Any]) -> NDArray[np.int64]:
    """Numbers of groups; each row without a group is a group of its own."""
    known: dict[str, int] = {}
    words = cells.words(values)
    return np.array(
        [known.setdefault(f"row {row}" if word is None else f"= {word}", len(known)) for row, word in enumerate(words)]
    )


def _labelled(table: Table, names: Sequence[str], source: Any) -> Table:
    """The rows that have all targets."""
    for name in names:
        require_column(table, name)
    empty = np.zeros(len(table[names[0]]), dtype=bool)
    for name in names:
        empty |= cells.missing(table[name])
    if empty.all():
        raise InputError(f"the target {', '.join(names)} is missing in all {len(empty)} rows of {_name(source)}")
    if empty.any():
        _LOG.warning(
            "%s: %d of %d rows have no %s and are left out; messages count the others",
            *(_name(source), empty.sum(), len(empty), ", ".join(names)),
        )
        return {name: values[~empty] for name, values in table.items()}
    return table


def _dataset(name: str, table: Table, test_table: Table | None, rows: _Rows, schema: Schema, origin: Origin | None) -> Dataset:
    whole = _split(table, schema)
    train = whole.select(torch.from_numpy(rows.train))
    test = whole.select(torch.from_numpy(rows.test)) if test_table is None else _split(test_table, schema)
    target = schema.target
    return Dataset(
        name=name,
        task=target.task,
        train=train,
        test=test,
        n_classes=len(target.classes) or None,
        class_names=target.classes or None,
        normalise=normalisation(train.x[rows.parts.fit], schema),
        checksums=checksums(train, test),
        source="table",
        schema=schema,
        parts=rows.parts,
        origin=origin,
    )


def _split(table: Table, schema: Schema) -> Split:
    x = torch.from_numpy(schema.encode(table).x).float()
    y = torch.from_numpy(schema.encode_target(table))
    return Split(x, y if schema.task == "classification" else y.float())


def normalisation(x: Tensor, schema: Schema) -> Normalisation:
    """Standardisation of features by the fitting rows; rare indicators are scaled less than to unit variance."""
    fitted = Normalisation.fitted(x)
    std = (
        max(spread, SMALLEST_SPREAD) if feature.indicator else spread
        for spread, feature in zip(fitted.std, schema.features, strict=True)
    )
    return Normalisation(fitted.mean, tuple(std))


def _origin(source: Any, test: Any, shares: Shares) -> Origin | None:
    """The record of the files; None for tables in memory, which nobody can load again."""
    if not isinstance(source, str | Path) or not isinstance(test, str | Path | None):
        return None
    return Origin(
        "table",
        Path(source).as_posix(),
        file_sha256(Path(source).expanduser()),
        None if test is None else Path(test).as_posix(),
        "" if test is None else file_sha256(Path(test).expanduser()),
        shares.test,
        shares.validation,
        shares.calibration,
        shares.seed,
    )


def _name(source: Any) -> str:
    return Path(source).name if isinstance(source, str | Path) else "table"
