"""One column of a table: its kind, and the constants with which its cells become features."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ltnode.errors import InputError
from ltnode.tables import cells

Kind = Literal["number", "category", "boolean", "date"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PARTS = ("days", "season", "weekday", "hour")
"""What a date becomes: days since the first training date, and points on circles for the year, the week and the day."""
MOST_CATEGORIES = 60
"""Categories of a column that have a feature of their own; the others share one."""
_FEWEST_ROWS = 2
PERIODS = {"season": 365.2425, "weekday": 7.0, "hour": 1.0}
"""Days after which a part of a date repeats."""


class Feature(NamedTuple):
    """One feature of a column; an indicator is 0 or 1."""

    name: str
    indicator: bool


class Cells(NamedTuple):
    """Encoded cells (N, F), and by row what was unusual about a cell."""

    x: NDArray[np.float64]
    notes: dict[int, str]


@dataclass(frozen=True)
class Column:
    """A column and how its cells are encoded. The constants come from the rows that the model is fitted to.

    Attributes:
        name: Name of the column.
        kind: "number", "category", "boolean" or "date".
        missing: Whether there is a feature that says that the cell is missing.
        fill: Value of a missing number, boolean or date: the median. Dates are days since 1970-01-01.
        low: Smallest value of a number or date.
        high: Largest value of a number or date.
        categories: The categories that have a feature of their own, the most frequent first.
        other: Whether rare categories share a feature; categories that were never seen then count as rare.
        form: Format of the dates, one of `ltnode.tables.cells.DATE_FORMATS`.
        parts: What a date becomes, some of `PARTS`.
    """

    name: str
    kind: Kind
    missing: bool = False
    fill: float = 0.0
    low: float = 0.0
    high: float = 0.0
    categories: tuple[str, ...] = ()
    other: bool = False
    form: str = "iso"
    parts: tuple[str, ...] = ()

    @classmethod
    def fitted(cls, name: str, kind: Kind, values: NDArray[Any], rows: NDArray[np.int64] | None = None) -> Column:
        """Compute the constants from the cells of the fitting rows.

        Args:
            name: Name of the column.
            kind: Its kind, of which all cells must be.
            values: Its cells.
            rows: Positions of the fitting rows; None for all.

        Raises:
            InputError: A cell is not of this kind, or all those of the fitting rows are missing.
        """
        chosen = np.arange(len(values)) if rows is None else rows
        empty = cells.missing(values)[chosen]
        if empty.all():
            raise InputError(f"column {name!r} has no values in the rows that are trained on: fill some in")
        bare = cls(name, kind, missing=bool(empty.any()))
        if kind == "category":
            return _with_categories(bare, values[chosen])
        if kind == "date":
            form = cells.date_format(values)
            if form is None:
                raise cells.bad_cells(name, values, cells.dates(values, "iso").bad, "dates such as 2024-03-31")
            bare = replace(bare, form=form)
        x = bare.real(values)[chosen][~empty]
        bare = replace(bare, fill=float(np.median(x)), low=float(x.min()), high=float(x.max()))
        return replace(bare, parts=_date_parts(x)) if kind == "date" else bare

    @property
    def features(self) -> tuple[Feature, ...]:
        """Names of the encoded features, in their order."""
        named: list[Feature] = []
        match self.kind:
            case "number":
                named.append(Feature(self.name, indicator=False))
            case "boolean":
                named.append(Feature(self.name, indicator=True))
            case "category":
                named += [Feature(f"{self.name} = {category}", indicator=True) for category in self.categories]
                if self.other:
                    named.append(Feature(f"{self.name} = (other)", indicator=True))
            case "date":
                for part in self.parts:
                    ends = ("",) if part == "days" else (" (sin)", " (cos)")
                    named += [Feature(f"{self.name}: {part}{end}", indicator=False) for end in ends]
        if self.missing:
            named.append(Feature(f"{self.name} is missing", indicator=True))
        return tuple(named)

    def encode(self, values: NDArray[Any]) -> Cells:
        """Encode cells as features (N, F).

        A category that was not in the fitting rows counts as rare where rare categories share a feature, and otherwise belongs to
        no category: all features of the column are 0. A missing cell in a column that had none is filled in. Both are noted, so
        that an answer about them can be flagged instead of being refused together with the other rows of a file.

        Raises:
            InputError: A cell is not of the kind of the column; the message names the row.
        """
        empty = cells.missing(values)
        notes: dict[int, str] = {}
        if self.kind == "category":
            x = self._one_hot(values, notes)
        else:
            real = self.real(values)
            x = (
                self._dated(np.where(empty, self.fill, real))
                if self.kind == "date"
                else np.where(empty, self.fill, real)[:, None]
            )
        if self.missing:
            x = np.concatenate([x, empty[:, None].astype(np.float64)], axis=1)
        else:
            treated = "counts as unknown" if self.kind == "category" else "is replaced by the median of the training rows"
            for row in np.flatnonzero(empty):
                notes[int(row)] = f"{self.name} is missing, as in no training row, and {treated}"
        return Cells(x, notes)

    def date(self, days: float) -> str:
        """The date that is some days after 1970-01-01, without its time."""
        return str(np.datetime64("1970-01-01") + np.timedelta64(math.floor(days), "D"))

    def real(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Cells of a column that is no category as numbers, 0 and 1, or days since 1970-01-01; NaN where a cell is missing.

        Raises:
            InputError: A cell is not of the kind of the column; the message names the row.
        """
        if self.kind == "number":
            converted, required = cells.numbers(values), "numbers"
        elif self.kind == "boolean":
            converted, required = cells.booleans(values), "yes or no, true or false, 1 or 0"
        else:
            converted, required = cells.dates(values, self.form), f"dates ({'ISO 8601' if self.form == 'iso' else self.form})"
        if converted.bad.any():
            raise cells.bad_cells(self.name, values, converted.bad, required)
        infinite = np.isinf(converted.numbers)
        if infinite.any():
            raise cells.bad_cells(self.name, values, infinite, "finite numbers")
        return converted.numbers

    def _one_hot(self, values: NDArray[Any], notes: dict[int, str]) -> NDArray[np.float64]:
        position = {category: place for place, category in enumerate(self.categories)}
        width = len(self.categories) + self.other
        x = np.zeros((len(values), width))
        for row, word in enumerate(cells.words(values)):
            if word is None:
                continue
            place = position.get(word, width - 1 if self.other else None)
            if place is not None:
                x[row, place] = 1.0
            if word not in position:
                treated = "was rare or absent in training and counts as other" if self.other else "was not in training: unknown"
                notes[row] = f"{self.name} = {word[:40]!r} {treated}"
        return x

    def _dated(self, days: NDArray[np.float64]) -> NDArray[np.float64]:
        features: list[NDArray[np.float64]] = []
        for part in self.parts:
            if part == "days":
                features.append(days - self.low)
                continue
            angle = 2 * math.pi * days / PERIODS[part]
            features += [np.sin(angle), np.cos(angle)]
        return np.stack(features, axis=1)


def _with_categories(column: Column, values: NDArray[Any]) -> Column:
    counts = Counter(word for word in cells.words(values) if word is not None)
    ordered = sorted(counts, key=lambda word: (-counts[word], word))
    kept = tuple(word for word in ordered if counts[word] >= _FEWEST_ROWS)[:MOST_CATEGORIES]
    return replace(column, categories=kept, other=len(kept) < len(ordered))


def _date_parts(days: NDArray[np.float64]) -> tuple[str, ...]:
    """The parts that can tell the dates apart: a season needs months of data, an hour needs times of the day."""
    span = float(days.max() - days.min())
    varies = {"days": True, "season": span > 60, "weekday": span >= 7, "hour": bool((days % 1 != 0).any())}
    return tuple(part for part in PARTS if varies[part])
