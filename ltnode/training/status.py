"""How a training run ended, and the remedy if it failed."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from ltnode.errors import LTNodeError

if TYPE_CHECKING:
    from ltnode.training.run import Run


class RunStatus(StrEnum):
    """State of a run."""

    RUNNING = "running"
    """The run is training, or its process was killed."""
    COMPLETE = "complete"
    """All epochs are complete and the model is saved."""
    INTERRUPTED = "interrupted"
    """The run was stopped by Ctrl-C or a termination signal and has a checkpoint of its last step."""
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
    RunStatus.NON_FINITE: "lower lr (and role_lr), check the scale of inputs and targets, or use precision='fp32'; "
    "then start over in another folder",
    RunStatus.SOLVER_FAILED: "lower lr, loosen rtol and atol or raise max_steps of the solver (model_options.solver), or bound "
    "the field (normalisation, tanh); then start over in another folder",
    RunStatus.PEER_LOST: "check the logs of the other processes (out of memory, killed by the system?), restart all of them "
    "and continue with resume=True (--resume)",
}


class TrainingError(LTNodeError, RuntimeError):
    """A training run stopped early.

    Attributes:
        status: How it ended.
        what: Description of the failure, without the remedy.
        run: The incomplete run with its history; None if there is none.
    """

    def __init__(self, status: RunStatus, what: str, run: Run | None = None) -> None:
        super().__init__(f"{what} ({status.value}). What to do: {status.remedy}")
        self.status, self.what = status, what
        self.run = run
