"""What the run says about a hypothesis: how much of the difference it explains.

The rule was fixed before the runs that were made for the hypotheses. ``left`` is the distance of the changed number to the
target, relative to that of ours. A change *explains* a difference if at most a quarter is left, and explains it *in part* if at
most three quarters are left. It is *undecided* if that could be chance: the change is at most two standard deviations over seeds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ltnode.report.aggregate import Measured
from paper.reproduce.causes.cause import Cause

EXPLAINED, IN_PART, NOISE = 0.25, 0.75, 2.0


class Effect(StrEnum):
    """What a run says about a hypothesis."""

    EXPLAINS = "explains it"
    IN_PART = "explains it in part"
    UNDECIDED = "undecided: within the spread over seeds"
    NO = "does not explain it"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Compared:
    """A hypothesis with the numbers of its run.

    Attributes:
        cause: The hypothesis.
        what: The number that differs, as text.
        ours: Our number.
        target: The number that it should reach.
        changed: The number of the run that tests the hypothesis; None if it has not been run.
        digits: Decimal places to show.
        one_sided: Whether numbers beyond the target reach it, too.
    """

    cause: Cause
    what: str
    ours: Measured | None
    target: float | None
    changed: Measured | None
    digits: int
    one_sided: bool = False

    @property
    def left(self) -> float | None:
        """The part of the difference that is left; None if it is not known, or there is no difference."""
        if self.ours is None or self.target is None or self.changed is None or self.ours.mean == self.target:
            return None
        left = (self.changed.mean - self.target) / (self.ours.mean - self.target)
        return max(left, 0.0) if self.one_sided else abs(left)

    @property
    def effect(self) -> Effect:
        """What the run says."""
        if self.left is None or self.ours is None or self.changed is None:
            return Effect.NOT_RUN
        if self.left > IN_PART:
            return Effect.NO
        if abs(self.changed.mean - self.ours.mean) <= NOISE * self.ours.std:
            return Effect.UNDECIDED
        return Effect.EXPLAINS if self.left <= EXPLAINED else Effect.IN_PART

    @property
    def line(self) -> str:
        """The numbers in one line: ours, what it changed to, the target, and what is left."""
        if self.ours is None or self.target is None:
            return "our number is missing"
        target = f"target {self.target:.{self.digits}f}"
        if self.changed is None:
            return f"{self.ours.text(self.digits)}; {target}"
        seeds = "" if self.cause.reading else " (1 seed)" if self.changed.seeds == 1 else f" ({self.changed.seeds} seeds)"
        share = "" if self.left is None else f", {100 * self.left:.0f} % of the difference left"
        return f"{self.ours.text(self.digits)} → {self.changed.text(self.digits)}{seeds}; {target}{share}"
