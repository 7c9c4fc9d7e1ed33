"""How a solve ended, and what to do when it failed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ltnode.errors import LTNodeError


class Status(StrEnum):
    """Outcome of a solve."""

    OK = "ok"
    """Every requested time was reached within the tolerance."""
    MAX_STEPS = "max_steps"
    """The step limit was used up before the last requested time."""
    STEP_UNDERFLOW = "step_underflow"
    """The step size fell below what the time can resolve: the tolerance cannot be met."""
    NON_FINITE = "non_finite"
    """The state or the field became NaN or infinite."""

    @property
    def remedy(self) -> str:
        """What the caller can change."""
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
    """Work done by one solve.

    Attributes:
        n_accepted: Steps of the trajectory that the states come from.
        n_rejected: Trial steps thrown away by the step control.
        n_evaluations: Calls of the field in all, grid search and replay together; not those of a backward pass that
            evaluates each step again.
        n_refreshed: How often a kept grid failed its check in this call and was searched anew.
    """

    n_accepted: int
    n_rejected: int
    n_evaluations: int
    n_refreshed: int = 0


class SolverError(LTNodeError, RuntimeError):
    """A solve failed; ``status`` says how, ``stats`` what it had done by then."""

    def __init__(self, status: Status, reached: float, wanted: float, stats: Stats) -> None:
        super().__init__(
            f"the ODE solve stopped at t = {reached:.6g} of {wanted:.6g} ({status.value}) after {stats.n_accepted} accepted and "
            f"{stats.n_rejected} rejected steps: {status.remedy}"
        )
        self.status = status
        self.stats = stats
