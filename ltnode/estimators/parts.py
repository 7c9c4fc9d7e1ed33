"""Three disjoint parts of the rows: those that are trained on, those that choose, and those that choose nothing.

The *select* rows determine the epoch, the confidence of the predictions and how they widen. The *calibration* rows determine
nothing of this: only among rows that had no influence is the rank of a distance a valid p-value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import train_test_split

from ltnode.errors import InputError

_SELECT_FROM = 50
_CALIBRATE_FROM = 100
_SMALLEST_CALIBRATION = 19
"""Fewest calibration rows: with 19, the smallest p-value is 0.05."""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """Row numbers of the three parts, each sorted; None for a part that is not held out."""

    fit: Rows
    select: Rows | None = None
    calibrate: Rows | None = None

    @property
    def known(self) -> Rows:
        """The rows that may be learnt from: all but those that calibrate."""
        return self.fit if self.select is None else np.sort(np.concatenate([self.fit, self.select]))


def draw_parts(
    rows: int,
    labels: NDArray[Any] | None,
    early_stopping: bool | str,
    validation_fraction: float,
    calibration_fraction: float,
    seed: int,
) -> Parts:
    """Draw the parts at random.

    Nothing is held out without early stopping, or by ``"auto"`` with fewer than 50 rows. Calibration rows are held out only of
    100 rows or more, and are then at least 19; the select part is a share of the others.

    Args:
        rows: Number of rows.
        labels: Classes of the rows, by which the select part is stratified if every class has enough rows; None for regression.
        early_stopping: True, False or ``"auto"``.
        validation_fraction: Share of the select part.
        calibration_fraction: Share of the calibration part; 0 for none.
        seed: Seed of the draws.
    """
    everything = np.arange(rows)
    if not (rows >= _SELECT_FROM if early_stopping == "auto" else early_stopping):
        return Parts(everything)
    kept, calibrate = everything, None
    if calibration_fraction > 0 and rows >= _CALIBRATE_FROM:
        # Not stratified: like new rows, calibration rows must be drawn from all rows alike.
        held = max(_SMALLEST_CALIBRATION, round(calibration_fraction * rows))
        kept, calibrate = train_test_split(everything, test_size=held, random_state=seed)
    held = round(validation_fraction * len(kept))
    if not 1 <= held < len(kept):
        raise InputError(
            f"validation_fraction must hold out at least 1 row and keep at least 1, but {validation_fraction} of {len(kept)} "
            f"rows holds out {held}; give more rows, or early_stopping=False"
        )
    classes = None
    if labels is not None:
        counts = np.bincount(labels[kept])
        counts = counts[counts > 0]
        classes = labels[kept] if counts.min() >= 2 and min(held, len(kept) - held) >= len(counts) else None
    fit, select = train_test_split(kept, test_size=held, random_state=seed, stratify=classes)
    return Parts(np.sort(fit), np.sort(select), None if calibrate is None else np.sort(calibrate))
