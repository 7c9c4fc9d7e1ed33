"""How long to train on a table of some size: rows per step, passes over the rows, and steps over which weights are averaged."""

from __future__ import annotations

_STEPS_PER_EPOCH = 8
_BATCHES = (16, 256)
_STEPS = 3000
_EPOCHS = (30, 400)
_AVERAGED = 0.05
"""Share of the steps of a training over which weights are averaged."""


def automatic_batch(rows: int) -> int:
    """An eighth of the rows, between 16 and 256."""
    low, high = _BATCHES
    return min(max(rows // _STEPS_PER_EPOCH, low), high)


def automatic_epochs(rows: int, batch: int) -> int:
    """As many passes over the rows as give 3,000 steps, between 30 and 400."""
    fewest, most = _EPOCHS
    return min(max(round(_STEPS / -(-rows // batch)), fewest), most)


def averaging(steps: int) -> float | None:
    """Decay per step of an average over a twentieth of the steps; None for trainings that are too short for one."""
    averaged = _AVERAGED * steps
    return 1 - 1 / averaged if averaged > 1 else None
