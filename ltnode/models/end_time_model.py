"""The contract of models whose loss follows from one solve at the end-times of a step, eager or captured."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from ltnode.models.contract import Model
from ltnode.objective import LossParts
from ltnode.typing import Tensor

if TYPE_CHECKING:
    from ltnode.models.latent_time import LatentTimeODE


class PosteriorTerms(NamedTuple):
    """What a posterior over the end-time contributes to a loss; both None without a learnt posterior.

    Attributes:
        log_q: Log-densities of the training times, (S,) or (S, B).
        kl: KL(q || p), 0-dim or (B,).
    """

    log_q: Tensor | None = None
    kl: Tensor | None = None


class EndTimeModel(Model):
    """A model whose loss follows from the outputs of one ODE solve at the end-times of a training step.

    Such a step can be captured as a CUDA graph: the solve replays the training grid, and the remaining operations do not depend
    on values.
    """

    @property
    @abstractmethod
    def solving_network(self) -> LatentTimeODE:
        """The network whose outputs enter `compose_loss`."""

    @abstractmethod
    def compose_loss(self, outputs: Tensor, y: Tensor, times: Tensor, posterior: PosteriorTerms, n_data: int | None) -> LossParts:
        """Compose the loss without reading any value on the host; eager and captured steps share it.

        Args:
            outputs: Outputs (S, B, ...) of the `solving_network` at the training times.
            y: Targets.
            times: Training times, (S,) or (S, B).
            posterior: `LatentTimeODE.posterior_terms` at these times.
            n_data: Number of training points.
        """

    def solver_state(self) -> dict[str, Any]:
        """Return the state of the training grid."""
        return self.solving_network.training_grid.state_dict()

    def load_solver_state(self, state: dict[str, Any]) -> None:
        """Restore the training grid."""
        self.solving_network.training_grid.load_state_dict(state)
