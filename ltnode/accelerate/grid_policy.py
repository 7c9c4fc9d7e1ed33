"""Which training grid captured steps replay, and when a new one is searched.

A captured step cannot decide anything on the host. Its error norms are copied to the host asynchronously and read a few steps
later, so that the host stays ahead of the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from ltnode.device import autocast
from ltnode.models.latent_time import LatentTimeODE
from ltnode.ode import SolverError, Stats, Status
from ltnode.ode.search import Tolerance
from ltnode.ode.tableau import get_tableau
from ltnode.ode.trace import no_trace
from ltnode.typing import Tensor

_LAG = 3
"""Number of steps that the host runs ahead of the device before it reads an error check."""


class GridPolicy:
    """Keeps the training grid of a network valid from the error norms of captured steps.

    ``generation`` counts the grids searched so far; captured steps compare it to know when their edges are out of date.
    """

    def __init__(self, network: LatentTimeODE, precision: str) -> None:
        self._network, self._precision = network, precision
        self.grid, self.tableau = network.training_grid, get_tableau(network.solver.method)
        self.generation = 0
        self._pending: deque[tuple[torch.cuda.Event, Tensor, int]] = deque()
        self._spare: list[tuple[torch.cuda.Event, Tensor]] = []

    def edges_for(self, x: Tensor) -> Sequence[float]:
        """Edges for the next step; searches a new grid on its inputs x when an earlier step failed or fewer steps would do.

        Raises:
            SolverError: The search failed.
        """
        self._read_oldest_check(x)
        if self.grid.edges is None:
            self._search(x)
        assert self.grid.edges is not None
        return self.grid.edges

    def record(self, norms: Tensor) -> Stats:
        """Start copying the error norms of a step to the host; returns the work of its solve."""
        reusable = self._spare and self._spare[-1][1].shape == norms.shape
        event, host = self._spare.pop() if reusable else (torch.cuda.Event(), torch.empty(norms.shape, pin_memory=True))
        host.copy_(norms, non_blocking=True)
        event.record()
        self._pending.append((event, host, self.generation))
        self.grid.n_solves += 1
        return Stats(len(norms), 0, self.tableau.evaluations(len(norms)))

    def release(self) -> None:
        """Forget the checks that have not been read."""
        self._pending.clear()

    def _read_oldest_check(self, x: Tensor) -> None:
        if len(self._pending) < _LAG:
            return
        event, norms, generation = self._pending.popleft()
        event.synchronize()
        self._spare = [(event, norms)]
        if generation != self.generation:
            return
        if not all(norm < 1.0 for norm in norms.tolist()):
            self.grid.n_failed_checks += 1
            self._search(x)
        elif self.grid.wants_fewer(norms, self.tableau.error_order):
            self._search(x, fewer=True)

    def _search(self, x: Tensor, fewer: bool = False) -> None:
        network, o, end = self._network, self._network.solver, self._network.end_time.window[1]
        search = self.grid.try_fewer if fewer else self.grid.refresh
        with torch.no_grad(), no_trace(network.field, x.device), autocast(self._precision, x.device):
            h = network.initial_state(x).float()
            result = search(network.field, self.tableau, h, 0.0, end, Tolerance(o.rtol, o.atol, o.max_steps))
        if result.status is not Status.OK:
            raise SolverError(result.status, 0.0, end, Stats(0, result.n_rejected, result.n_evaluations))
        self.generation += 1
