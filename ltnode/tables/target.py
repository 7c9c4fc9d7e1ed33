"""The target column of a table: its task, and its values as labels or numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ltnode.errors import InputError, unknown_name
from ltnode.tables import cells

Task = Literal["classification", "regression"]
TASKS: tuple[Task, ...] = get_args(Task)
MOST_CLASSES = 1000
_FEW_INTEGERS = 10
"""Whole numbers with at most this many different values are classes."""


@dataclass(frozen=True)
class Target:
    """A column that is predicted.

    Attributes:
        name: Name of the column.
        task: "classification" or "regression".
        classes: Names of the classes; empty for regression.
        mean: Mean of a regression target over the fitting rows.
        std: Standard deviation over the fitting rows, by which training divides; 1 for classification.
    """

    name: str
    task: Task
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def inferred(cls, name: str, values: NDArray[Any], task: Task | None = None, rows: NDArray[np.int64] | None = None) -> Target:
        """Find the task of a target without missing cells, its classes, or its mean and standard deviation.

        Text, booleans, and whole numbers with at most 10 different values are classes; other numbers are a regression.

        Args:
            name: Name of the column.
            values: Its cells, none of which is missing.
            task: The task, if it is known.
            rows: Positions of the rows from which mean and standard deviation are computed; None for all.

        Raises:
            InputError: The target cannot be predicted; the message says why.
        """
        if task is not None and task not in TASKS:
            raise InputError(unknown_name("task", task, TASKS))
        if cells.date_format(values) is not None:
            raise InputError(
                f"the target {name!r} holds dates, which cannot be predicted: use the number of days from a fixed date to them"
            )
        converted, bad = cells.numbers(values)
        if (task or _task(values, converted, bad)) == "classification":
            return cls(name, "classification", _classes(name, values))
        if bad.any():
            raise cells.bad_cells(name, values, bad, "numbers, as it is the target of a regression")
        if np.isinf(converted).any():
            raise cells.bad_cells(name, values, np.isinf(converted), "finite numbers")
        chosen = converted if rows is None else converted[rows]
        if np.ptp(converted) == 0 or np.ptp(chosen) == 0:
            raise InputError(f"the target {name!r} is {converted[0]:g} in all rows: there is nothing to predict")
        return cls(name, "regression", mean=float(chosen.mean()), std=float(chosen.std()))

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Labels int64 (N,) or numbers float64 (N,) in the units of the table.

        Raises:
            InputError: A cell is missing, is not a number, or is of a class that the schema does not have.
        """
        empty = cells.missing(values)
        if empty.any():
            raise cells.bad_cells(self.name, values, empty, "a value in every row, as it is the target")
        if self.task == "regression":
            converted, bad = cells.numbers(values)
            bad = bad | ~np.isfinite(converted)
            if bad.any():
                raise cells.bad_cells(self.name, values, bad, "finite numbers, as it is the target of a regression")
            return converted
        known = {name: label for label, name in enumerate(self.classes)}
        named = cells.words(values)
        strange = sorted({word for word in named if word not in known})
        if strange:
            raise InputError(f"target {self.name!r}: {unknown_name('class', strange[0][:40], self.classes)}")
        return np.array([known[word] for word in named], dtype=np.int64)

    def decode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Names of the classes of labels; numbers of a regression stay as they are."""
        if self.task == "regression":
            return np.asarray(values, dtype=np.float64)
        return np.array(self.classes, dtype=object)[np.asarray(values, dtype=np.int64)]


def _task(values: NDArray[Any], converted: NDArray[np.float64], bad: NDArray[np.bool_]) -> Task:
    if values.dtype.kind == "b" or (bad.any() and bad.mean() > 0.5):
        return "classification"
    if bad.any():
        # Mostly numbers: words among them are mistakes, which the message about the regression names.
        return "regression" if len(np.unique(converted[~bad])) > _FEW_INTEGERS else "classification"
    whole = np.isfinite(converted).all() and bool((converted == np.round(converted)).all())
    return "classification" if whole and len(np.unique(converted)) <= _FEW_INTEGERS else "regression"


def _classes(name: str, values: NDArray[Any]) -> tuple[str, ...]:
    counts = Counter(cells.words(values))
    if len(counts) == 1:
        raise InputError(f"the target {name!r} is {next(iter(counts))[:40]} in all rows: there is nothing to predict")
    if len(counts) > MOST_CLASSES or 3 * len(counts) > len(values):
        raise InputError(
            f"the target {name!r} has {len(counts)} classes in {len(values)} rows, and at least 3 rows per class are required: "
            "choose another target, merge classes, or use --task regression if they are numbers"
        )
    alone = sorted(word for word, n in counts.items() if n == 1)
    if alone:
        raise InputError(
            f"the class {alone[0][:40]!r} of the target {name!r} has one row, and at least 2 are required, to train and to test "
            f"({len(alone)} of {len(counts)} classes have one row): remove these rows or merge classes"
        )
    return tuple(sorted(counts, key=_class_order))


def _class_order(word: str) -> tuple[int, float, str]:
    """Numbers in their order, then words in theirs."""
    try:
        return (0, float(word), word)
    except ValueError:
        return (1, 0.0, word)
