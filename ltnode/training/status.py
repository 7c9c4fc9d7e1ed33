"""How a training run ended, and what to change when it failed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from ltnode.errors import LTNodeError

if TYPE_CHECKING:
    from ltnode.training.run import Run


class RunStatus(StrEnum):
    """State of a run."""

    RUNNING = "running"
    """It is being trained, or was killed: resume it."""
    COMPLETE = "complete"
    """All epochs are done and the model is saved."""
    INTERRUPTED = "interrupted"
    """Stopped by Ctrl-C or a termination signal, with a checkpoint where it stopped."""
    NON_FINITE = "non_finite"
    """The loss or a parameter became NaN or infinite."""
    SOLVER_FAILED = "solver_failed"
    """The ODE could not be solved within its limits."""
    PEER_LOST = "peer_lost"
    """Another process of the same run died or stopped answering."""

    @property
    def remedy(self) -> str:
        """What the caller can change."""
        return _REMEDIES[self]


_REMEDIES = {
    RunStatus.RUNNING: "continue it with resume=True (--resume)",
    RunStatus.COMPLETE: "nothing to do",
    RunStatus.INTERRUPTED: "continue it with resume=True (--resume)",
    RunStatus.NON_FINITE: "lower lr (and variational_lr), check the scale of inputs and targets, or use precision='fp32'; "
    "then train anew in another folder",
    RunStatus.SOLVER_FAILED: "lower lr, loosen the solver's rtol/atol or raise max_steps (model_options.solver), or bound the "
    "field (normalisation, tanh); then train anew in another folder",
    RunStatus.PEER_LOST: "look into the log of the other processes (out of memory, killed by the system?), start all of them "
    "again and continue with resume=True (--resume)",
}


class TrainingError(LTNodeError, RuntimeError):
    """A training run stopped early.

    Attributes:
        status: How it ended.
        what: What happened, without the remedy.
        run: The run as far as it got, with its history; None where there is none.
    """

    def __init__(self, status: RunStatus, what: str, run: Run | None = None) -> None:
        super().__init__(f"{what} ({status.value}). What to do: {status.remedy}")
        self.status, self.what = status, what
        self.run = run
