"""Cells of a table: which are missing, and their values as numbers, words or dates.

A column is a 1-D numpy array of numbers, booleans or dates, or of objects: text, numbers, dates and missing values in any
mixture, as CSV readers and DataFrames give them.
"""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ltnode.errors import InputError

MISSING_WORDS = frozenset({"", "?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none", "nat"})
"""Text that stands for a missing value, in lower case."""
BOOLEAN_WORDS = {"true": True, "false": False, "yes": True, "no": False, "y": True, "n": False, "t": True, "f": False}
DATE_FORMATS = ("iso", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%d.%m.%Y %H:%M", "%d/%m/%Y %H:%M")
"""Formats of dates in the order in which they are tried; "iso" is ISO 8601, such as 2024-03-31 or 2024-03-31T12:30:00."""
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""Days from 1970-01-01 to 0001-01-01 and to 9999-12-31, between which Python has dates."""
_DAY = np.timedelta64(1, "D")


class Values(NamedTuple):
    """Cells as float64, NaN where a cell is missing, and a mask of the cells that could not be converted."""

    numbers: NDArray[np.float64]
    bad: NDArray[np.bool_]


def missing(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each cell is missing: NaN, NaT, None, or text such as "" and "NA"."""
    if values.dtype.kind == "f":
        return np.isnan(values)
    if values.dtype.kind in "mM":
        return np.isnat(values)
    if values.dtype.kind in "biu":
        return np.zeros(len(values), dtype=bool)
    return np.fromiter((_is_missing(cell) for cell in values), dtype=bool, count=len(values))


def _is_missing(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().lower() in MISSING_WORDS
    # pandas has a missing value of its own, which cannot be compared.
    return (
        cell is None
        or type(cell).__name__ in ("NAType", "NaTType")
        or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))
    )


def numbers(values: NDArray[Any]) -> Values:
    """Cells as numbers; text is read as Python reads it, without underscores, and booleans are 0 and 1."""
    if values.dtype.kind in "biuf":
        return Values(values.astype(np.float64), np.zeros(len(values), dtype=bool))
    if values.dtype.kind in "mM":
        return Values(np.full(len(values), np.nan), ~missing(values))
    converted = np.full(len(values), np.nan)
    empty = missing(values)
    for position in np.flatnonzero(~empty):
        converted[position] = _number(values[position])
    # A cell that is missing, or text that is "nan", is no error.
    return Values(converted, np.isnan(converted) & ~empty)


def _number(cell: Any) -> float:
    if isinstance(cell, str) and "_" in cell:
        return math.nan  # Python reads 1_000 as a number, tables do not
    try:
        return float(cell)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def words(values: NDArray[Any]) -> NDArray[np.object_]:
    """Cells as text without outer spaces, None where a cell is missing; 3.0 and 3 are the same word."""
    result = np.empty(len(values), dtype=object)
    for position, (cell, empty) in enumerate(zip(values.tolist(), missing(values).tolist(), strict=True)):
        result[position] = None if empty else _word(cell)
    return result


def _word(cell: Any) -> str:
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, bool | np.bool_):
        return str(bool(cell)).lower()
    return str(cell).strip()


def booleans(values: NDArray[Any]) -> Values:
    """Cells as 0 and 1; text such as yes, no, true and false is read in any case."""
    if values.dtype.kind in "biuf":
        as_numbers = values.astype(np.float64)
        return Values(as_numbers, ~np.isin(as_numbers, (0.0, 1.0)) & ~np.isnan(as_numbers))
    converted = np.full(len(values), np.nan)
    bad = np.zeros(len(values), dtype=bool)
    for position, word in enumerate(words(values)):
        if word is None:
            continue
        known = {"1": True, "0": False, **BOOLEAN_WORDS}.get(word.lower())
        bad[position] = known is None
        converted[position] = math.nan if known is None else float(known)
    return Values(converted, bad)


def dates(values: NDArray[Any], form: str) -> Values:
    """Cells as days since 1970-01-01 in UTC; ``form`` is one of `DATE_FORMATS`, and dates in ISO 8601 are always read."""
    if values.dtype.kind == "M":
        moments = values.astype("datetime64[us]")
        days = ((moments - np.datetime64("1970-01-01", "us")) / _DAY).astype(np.float64)
        return Values(days, (days < FIRST_DAY) | (days >= LAST_DAY + 1))
    if values.dtype.kind not in "OU":
        return Values(np.full(len(values), np.nan), ~missing(values))
    converted, empty = np.full(len(values), np.nan), missing(values)
    known: dict[Any, float] = {}
    for position in np.flatnonzero(~empty):
        cell = values[position]
        key = cell if isinstance(cell, str) else None
        if key is None or key not in known:
            known[key] = _days(cell, form)
        converted[position] = known[key]
    return Values(converted, np.isnan(converted) & ~empty)


def _days(cell: Any, form: str) -> float:
    moment: Any = cell
    if isinstance(cell, str):
        text = cell.strip()
        # A plain number such as 20240331 or 2024 is not read as a date.
        if len(text) < 8 or text.isdecimal():
            return math.nan
        moment = _parsed(text, form) or _parsed(text, "iso")
    if isinstance(cell, np.datetime64):
        moment = cell.astype("datetime64[us]").item()
    if isinstance(moment, date) and not isinstance(moment, datetime):
        moment = datetime(moment.year, moment.month, moment.day)
    if not isinstance(moment, datetime):
        return math.nan
    try:
        naive = moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo is not None else moment
    except OverflowError:  # in UTC it is before the year 1 or after the year 9999
        return math.nan
    return (naive - datetime(1970, 1, 1)).total_seconds() / 86400


def _parsed(text: str, form: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if form == "iso" else datetime.strptime(text, form)
    except ValueError:
        return None


def date_format(values: NDArray[Any]) -> str | None:
    """The first format in which all cells that are not missing are dates; None if there is none."""
    if values.dtype.kind == "M":
        return "iso"
    if values.dtype.kind not in "OU":
        return None
    for form in DATE_FORMATS:
        converted, bad = dates(values, form)
        if not bad.any() and not np.isnan(converted).all():
            return form
    return None


def bad_cells(column: str, values: NDArray[Any], bad: NDArray[np.bool_], required: str) -> InputError:
    """The error for cells that could not be converted, which names the first of them; rows are counted from 1."""
    first = int(np.flatnonzero(bad)[0])
    several = f" ({int(bad.sum())} of {len(bad)} rows have such cells)" if bad.sum() > 1 else ""
    return InputError(
        f"column {column!r} must hold {required}, but row {first + 1} has {str(values[first])[:40]!r}{several}: correct the cells"
    )
