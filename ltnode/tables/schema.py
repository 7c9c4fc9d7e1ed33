"""The schema of a table: which columns a model takes, how their cells are encoded, and what it predicts."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.errors import InputError, unknown_name
from ltnode.tables import cells, schema_json
from ltnode.tables.column import KINDS, Column, Feature, Kind
from ltnode.tables.kinds import kind_of, reason_to_ignore
from ltnode.tables.target import Target, Task

Table = Mapping[str, NDArray[Any]]
"""Columns by name, 1-D arrays of one length."""


@dataclass(frozen=True, eq=False)
class Encoded:
    """The features of some rows.

    Attributes:
        x: Features (N, D), finite.
        row_notes: By row, what was unusual about its cells: categories that training did not have, and cells that are missing
            where they never were. Rows without anything unusual are not in it.
        notes: What is said about the table as a whole, such as columns that were not used.
    """

    x: NDArray[np.float64]
    row_notes: dict[int, tuple[str, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Schema:
    """Columns, targets and everything that is needed to encode rows; it can be stored as JSON.

    Attributes:
        columns: The columns that the model takes, in their order.
        targets: The columns that it predicts: one, or several numbers.
        group: Column whose equal values keep rows together when parts are drawn; it is not an input.
        ignored: Columns that are not used, with the reason.
    """

    columns: tuple[Column, ...]
    targets: tuple[Target, ...]
    group: str | None = None
    ignored: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        names = [*(column.name for column in self.columns), *(target.name for target in self.targets)]
        if not self.columns or not self.targets:
            raise InputError("a schema must have at least one column to predict from and one target")
        if len(set(names)) != len(names):
            raise InputError("the columns and targets of a schema must have different names")
        if len(self.targets) > 1 and any(target.task != "regression" for target in self.targets):
            raise InputError("several targets must all be numbers (regression)")

    @classmethod
    def infer(
        cls,
        table: Any,
        target: str | Sequence[str],
        *,
        task: Task | None = None,
        group: str | None = None,
        ignore: Iterable[str] = (),
        kinds: Mapping[str, Kind] | None = None,
        rows: NDArray[np.int64] | None = None,
    ) -> Schema:
        """Infer the schema of a table.

        Args:
            table: A DataFrame, or a mapping from names to 1-D arrays; no cell of the target is missing.
            target: The column to predict, or several.
            task: "classification" or "regression"; None infers it from the target.
            group: Column that keeps rows together.
            ignore: Columns that are not used.
            kinds: Kinds of columns for which the inferred one is wrong, such as ``{"zip": "category"}``.
            rows: Positions of the rows that the model is fitted to. Medians, categories and the scale of the target are computed
                from these rows alone, so that nothing leaks from the others; None uses all rows.

        Raises:
            InputError: A name is not a column, the target cannot be predicted, or no column is left to predict from.
        """
        columns = as_table(table)
        names = (target,) if isinstance(target, str) else tuple(target)
        left_out, kinds = tuple(ignore), dict(kinds or {})
        for name in (*names, *left_out, *kinds, *((group,) if group else ())):
            require_column(columns, name)
        for name, kind in kinds.items():
            if kind not in KINDS:
                raise InputError(f"column {name!r}: {unknown_name('kind', kind, KINDS)}")
        _check_roles(names, left_out, group)
        targets = tuple(Target.inferred(name, columns[name], task, rows) for name in names)
        ignored = dict.fromkeys(left_out, "on request") | ({group: "group"} if group else {})
        used: list[Column] = []
        for name, values in columns.items():
            if name in names or name in ignored:
                continue
            fitting = values if rows is None else values[rows]
            reason = _reason(name, values, fitting, kinds.get(name), [columns[other] for other in names])
            if reason is None:
                used.append(_fitted(name, kinds.get(name) or kind_of(values), values, rows))
            else:
                ignored[name] = reason
        if not used:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in ignored.items()) or "the table has only the target"
            raise InputError(f"no column is left to predict {', '.join(names)} from ({reasons})")
        return cls(tuple(used), targets, group, tuple(ignored.items()))

    @property
    def task(self) -> Task:
        """Task of the targets."""
        return self.targets[0].task

    @property
    def target(self) -> Target:
        """The target of a schema that has one.

        Raises:
            InputError: There are several.
        """
        if len(self.targets) != 1:
            raise InputError(f"there are {len(self.targets)} targets: {', '.join(target.name for target in self.targets)}")
        return self.targets[0]

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """The encoded features, in their order."""
        return tuple(feature for column in self.columns for feature in column.features)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the encoded features."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def feature_columns(self) -> tuple[int, ...]:
        """For each feature, the position of its column in ``columns``."""
        return tuple(place for place, column in enumerate(self.columns) for _ in column.features)

    def encode(self, table: Any) -> Encoded:
        """Encode rows, with or without the targets.

        Args:
            table: A DataFrame, or a mapping from names to 1-D arrays, with all columns of the schema in any order. Other columns
                are not used, and a note says so.

        Raises:
            InputError: A column is missing, or a cell is not of the kind of its column.
        """
        given = as_table(table)
        self.require_columns(given)
        parts = [column.encode(given[column.name]) for column in self.columns]
        row_notes: dict[int, tuple[str, ...]] = {}
        for part in parts:
            for row, note in part.notes.items():
                row_notes[row] = (*row_notes.get(row, ()), note)
        known = {column.name for column in self.columns} | {target.name for target in self.targets} | {n for n, _ in self.ignored}
        extra = [name for name in given if name not in known]
        notes = (f"columns that the model does not know are not used: {', '.join(extra)}",) if extra else ()
        return Encoded(np.concatenate([part.x for part in parts], axis=1), row_notes, notes)

    def encode_target(self, table: Any) -> NDArray[Any]:
        """Encode the targets of rows: labels (N,), numbers (N,), or numbers (N, targets) where there are several.

        Raises:
            InputError: A target is not in the table, or a cell is missing or unusable.
        """
        given = as_table(table)
        for target in self.targets:
            require_column(given, target.name)
        encoded = [target.encode(given[target.name]) for target in self.targets]
        return encoded[0] if len(encoded) == 1 else np.stack(encoded, axis=1)

    def decode_target(self, values: NDArray[Any]) -> NDArray[Any]:
        """Names of the classes of labels; numbers of a regression stay as they are."""
        return self.targets[0].decode(values)

    def has_target(self, table: Any) -> bool:
        """Whether a table has all targets."""
        given = as_table(table)
        return all(target.name in given for target in self.targets)

    def to_json(self) -> dict[str, Any]:
        """All values as JSON types."""
        return schema_json.to_json(self)

    @classmethod
    def from_json(cls, content: Any) -> Schema:
        """Make a schema of the content of a file, which may be anything.

        Raises:
            InputError: It is not a schema; the message says what is wrong.
        """
        return schema_json.from_json(cls, content)

    def require_columns(self, given: Table) -> None:
        """Require that a table has all columns of the schema.

        Raises:
            InputError: One is missing; the message names the nearest one of the table.
        """
        absent = [column.name for column in self.columns if column.name not in given]
        if not absent:
            return
        hints = [(name, difflib.get_close_matches(name, list(given), n=1, cutoff=0.6)) for name in absent[:5]]
        named = ", ".join(f"{name!r}" + (f" (is it {near[0]!r}?)" if near else "") for name, near in hints)
        more = f" and {len(absent) - 5} more" if len(absent) > 5 else ""
        raise InputError(
            f"the table must have the columns of the training, but {named}{more} "
            f"{'is' if len(absent) == 1 else 'are'} missing; it has: {shortened(given)}"
        )


def as_table(table: Any) -> Table:
    """The columns of a DataFrame or of a mapping as 1-D arrays of one length.

    Raises:
        InputError: It is neither, column names repeat, there are no rows, or the columns differ in length.
    """
    names = [str(name) for name in getattr(table, "columns", table)]
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise InputError(f"column names must differ, but {', '.join(map(repr, repeated[:5]))} appears more than once: rename one")
    if not hasattr(table, "keys"):
        raise InputError(f"a table must be a DataFrame or a mapping from names to columns, not {type(table).__name__}")
    columns = {str(name): _array(str(name), table[name]) for name in table.keys()}  # noqa: SIM118 -- a DataFrame is no mapping
    lengths = {len(values) for values in columns.values()}
    if len(lengths) > 1:
        raise InputError(f"all columns must have the same number of rows, not {', '.join(map(str, sorted(lengths)))}")
    if not columns or lengths == {0}:
        raise InputError("the table has no rows: at least one is required")
    return columns


def _array(name: str, values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise InputError(f"column {name!r} must have one value per row, not an array of shape {array.shape}")
    return array.astype(object) if array.dtype.kind in "US" else array


def require_column(table: Table, name: str) -> None:
    """Require that a table has a column.

    Raises:
        InputError: It has not; the message names the nearest column.
    """
    if name not in table:
        near = difflib.get_close_matches(name.lower(), {other.lower(): other for other in table}, n=1, cutoff=0.5)
        folded = {other.lower(): other for other in table}
        hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
        raise InputError(f"the table has no column {name!r}.{hint} It has: {shortened(table)}")


def shortened(names: Iterable[str], most: int = 20) -> str:
    """The first names of a list, separated by commas."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _check_roles(targets: Sequence[str], ignore: Sequence[str], group: str | None) -> None:
    if not targets or len(set(targets)) != len(targets):
        raise InputError(f"the target must be one column or several different ones, not {list(targets)}")
    for name in targets:
        if name == group:
            raise InputError(f"{name!r} cannot be the target and the group: rows of one group stay together and share no target")
        if name in ignore:
            raise InputError(f"{name!r} cannot be the target and be ignored")


def _fitted(name: str, kind: Kind, values: NDArray[Any], rows: NDArray[np.int64] | None) -> Column:
    try:
        return Column.fitted(name, kind, values, rows)
    except InputError as error:
        raise InputError(
            f"{error}, leave the column out with --ignore (ignore=), or name its kind with --kind (kinds=)"
        ) from error


def _reason(
    name: str, values: NDArray[Any], fitting: NDArray[Any], kind: Kind | None, targets: Sequence[NDArray[Any]]
) -> str | None:
    """Why a column is not used; None if it is. A kind that was asked for is used whatever its cells are."""
    if cells.missing(fitting).all():
        return "no values"
    words = cells.words(values)
    if any(bool((words == cells.words(target)).all()) for target in targets):
        return "the same as the target"
    return None if kind is not None else reason_to_ignore(name, fitting, kind_of(values))
