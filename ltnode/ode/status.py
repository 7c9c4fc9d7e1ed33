"""Outcome of a solve, and what to do after a failure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ltnode.errors import LTNodeError


class Status(StrEnum):
    """Outcome of a solve."""

    OK = "ok"
    """Every requested time was reached within the tolerance."""
    MAX_STEPS = "max_steps"
    """The step limit was reached before the last requested time."""
    STEP_UNDERFLOW = "step_underflow"
    """The step size fell below the resolution of the time: the tolerance cannot be met."""
    NON_FINITE = "non_finite"
    """The state or the field became NaN or infinite."""

    @property
    def remedy(self) -> str:
        """Advice on how to avoid this failure."""
        return _REMEDIES[self]


_REMEDIES = {
    Status.OK: "nothing to do",
    Status.MAX_STEPS: "raise max_steps, loosen rtol/atol, or shorten the largest time; a stiff field needs many steps",
    Status.STEP_UNDERFLOW: "loosen rtol/atol, use float64, or look for a discontinuity or a blow-up of the field",
    Status.NON_FINITE: "check input and parameters for NaN or inf, lower the learning rate, or bound the field "
    "(normalisation, tanh)",
}


@dataclass(frozen=True)
class Stats:
    """Amount of work of one solve.

    Attributes:
        n_accepted: Number of steps of the final trajectory.
        n_rejected: Number of trial steps that the step-size control rejected.
        n_evaluations: Number of field evaluations in search and replay; recomputation in the backward pass is not counted.
        n_refreshed: How often a training grid failed its check in this call and was replaced. For a prediction grid, the number
            of halvings of its steps.
    """

    n_accepted: int
    n_rejected: int
    n_evaluations: int
    n_refreshed: int = 0


class SolverError(LTNodeError, RuntimeError):
    """A solve failed. ``status`` is the reason, ``stats`` the work up to the failure."""

    def __init__(self, status: Status, reached: float, t_end: float, stats: Stats) -> None:
        super().__init__(
            f"the ODE solve stopped at t = {reached:.6g} of {t_end:.6g} ({status.value}) after {stats.n_accepted} accepted and "
            f"{stats.n_rejected} rejected steps: {status.remedy}"
        )
        self.status = status
        self.stats = stats
