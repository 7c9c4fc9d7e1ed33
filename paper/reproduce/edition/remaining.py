"""How far a session is, and how long the rest is expected to take at the pace so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paper.reproduce.edition.expected import Expected, Seconds
from paper.reproduce.images.cells import State
from paper.reproduce.images.grid import Cell

_SHARE = {State.MISSING: 1.0, State.INTERRUPTED: 0.5, State.TRAINED: 0.0, State.DONE: 0.0}
"""Part of the training that is left; one that runs is half done on average."""


class Remaining:
    """The work that is left, in expected seconds of the device.

    Args:
        cells: The cells of the session.
        state: Says how far a cell is.
        expected: Estimates of the times.
        evaluators: Number of processes that evaluate at the same time.
    """

    def __init__(self, cells: Sequence[Cell], state: Callable[[Cell], State], expected: Expected, evaluators: int) -> None:
        self._state, self._expected, self._evaluators = state, expected, max(1, evaluators)
        self._count = len(cells)
        self._left = [cell for cell in cells if state(cell) is not State.DONE]
        self._at_first = self._work()

    def text(self, used: float) -> str:
        """One line: the cells that are done, the seconds used, and the rest."""
        left = self._work()
        done = f"{self._count - len(self._left)} of {self._count} cells done, {Seconds(used).text} used"
        if not self._left:
            return done
        if left.value < self._at_first.value:
            left = Seconds(left.value * used / (self._at_first.value - left.value))
        return f"{done}; the rest is expected to take {left.text}" if left.value else done

    def _work(self) -> Seconds:
        states = {cell: self._state(cell) for cell in self._left}
        self._left = [cell for cell in self._left if states[cell] is not State.DONE]  # what is done stays done
        times = [self._time(cell, states[cell]) for cell in self._left]
        return sum(times, Seconds(0.0))

    def _time(self, cell: Cell, state: State) -> Seconds:
        training, evaluation = self._expected.training(cell) or Seconds(0.0), self._expected.evaluation(cell) or Seconds(0.0)
        share = _SHARE[state]
        value = share * training.value + evaluation.value / self._evaluators
        return Seconds(value, training.at_most and share > 0)
