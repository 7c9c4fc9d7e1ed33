"""The kind of a column, found from its cells, or the reason for which a column is left out."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.tables import cells
from ltnode.tables.column import Kind

_MOSTLY = 0.9
"""Share of numbers from which a column is meant to hold numbers, and words in it are mistakes."""
_UNIQUE_TEXT = 0.5
_FEWEST_WORDS = 20
_IDENTIFIER = re.compile(r"(^|[\s_.-])(id|uuid|guid|index|nr|no)$|^unnamed: 0$|ID$", re.IGNORECASE)


def kind_of(values: NDArray[Any]) -> Kind:
    """The kind of a column with at least one cell that is not missing.

    Raises nothing: a column of numbers among which there are words is a column of numbers, whose encoding names the words.
    """
    if values.dtype.kind == "b":
        return "boolean"
    if values.dtype.kind == "M":
        return "date"
    empty = cells.missing(values)
    converted, bad = cells.numbers(values)
    n_bad, n = int(bad.sum()), int((~empty).sum())
    if n_bad <= (1 - _MOSTLY) * n:
        only_bits = n_bad == 0 and bool(np.isin(converted[~empty], (0.0, 1.0)).all())
        return "boolean" if only_bits else "number"
    if not cells.booleans(values).bad.any():
        return "boolean"
    return "category" if cells.date_format(values) is None else "date"


def reason_to_ignore(name: str, values: NDArray[Any], kind: Kind) -> str | None:
    """Why a column says nothing about a target: it is constant, or identifies rows; None if it is of use."""
    present = values[~cells.missing(values)]
    n = len(present)
    if kind == "category":
        n_words = len(set(cells.words(present)))
        if n_words == 1:
            return "constant"
        if n_words > _FEWEST_WORDS and n_words > _UNIQUE_TEXT * n:
            return f"text that differs in {n_words} of {n} rows"
        return None
    if kind == "date":
        return "constant" if len(set(cells.words(present))) == 1 else None
    converted = (cells.booleans(present) if kind == "boolean" else cells.numbers(present)).numbers
    different = len(np.unique(converted))
    if different == 1:
        return "constant"
    if kind == "number" and different == n == len(values) and _counts(name, converted):
        return "identifier: a different whole number in every row"
    return None


def _counts(name: str, converted: NDArray[np.float64]) -> bool:
    """Whether different numbers count the rows, or are named as identifiers."""
    if not bool((converted == np.round(converted)).all()):
        return False
    return bool(_IDENTIFIER.search(name)) or (len(converted) > 2 and bool((np.diff(converted) == 1).all()))
