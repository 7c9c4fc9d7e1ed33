"""The training grid: edges reused from one solve to the next, the fewest error-balanced steps that meet the tolerance."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ltnode.errors import InputError
from ltnode.ode.replay import replay
from ltnode.ode.search import Search, Tolerance, search_batch
from ltnode.ode.status import Status
from ltnode.ode.step import Field
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Float, Tensor

_MAX_EDGES = 100_000
TARGET = 0.8
"""Error norm that a new grid aims at; below 1, so that the grid stays valid while training changes the field."""


def balanced_edges(edges: Sequence[float], norms: Sequence[float], n: int, error_order: int) -> list[float]:
    """Edges of n steps over the same interval with equal predicted error norms.

    A step of size h at t has the error norm ``C(t) h^p`` with p = error_order + 1. Norms are therefore equal if all steps have
    equal shares of the integral of ``C^(1/p)``, which the measured steps give as a piecewise constant function.
    """
    p = error_order + 1
    # The floor avoids steps of infinite length where the measured error is zero.
    shares = [max(norm, 1e-12) ** (1 / p) for norm in norms]
    cumulative = [0.0]
    for share in shares:
        cumulative.append(cumulative[-1] + share)
    result, m = [edges[0]], 0
    for j in range(1, n):
        target = cumulative[-1] * j / n
        while cumulative[m + 1] < target:
            m += 1
        result.append(edges[m] + (edges[m + 1] - edges[m]) * (target - cumulative[m]) / shares[m])
    return [*result, edges[-1]]


def predicted_steps(norms: Sequence[float], error_order: int, target: float = TARGET) -> int:
    """Smallest number of balanced steps whose predicted norms meet the target."""
    p = error_order + 1
    return max(1, math.ceil(sum(max(norm, 0.0) ** (1 / p) for norm in norms) / target ** (1 / p) - 1e-9))


@dataclass
class TrainingGrid:
    """A grid that is reused by consecutive solves, and its state.

    Each solve checks the embedded error of its own pass. If the norm of a step reaches 1, the pass is discarded and a new grid
    is searched; if fewer steps are predicted to suffice, the next solve tries them.

    Args:
        t_end: The grid covers [0, t_end]; None for the largest time so far.
        patience: Number of solves between two attempts with fewer steps (doubled after each failed attempt).

    Attributes:
        edges: The current edges, or None before the first solve.
        n_solves: Number of solves.
        n_failed_checks: Number of passes that failed their error check and were discarded.
        n_searches: Number of grid searches, including the first one.
    """

    t_end: float | None = None
    patience: int = 50
    edges: list[float] | None = None
    n_solves: int = 0
    n_failed_checks: int = 0
    n_searches: int = 0
    _largest: float = field(default=0.0, repr=False)
    _next_attempt: int = field(default=0, repr=False)
    _wait: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        if self.t_end is not None and not 0 < self.t_end < math.inf:
            raise InputError(f"t_end of a training grid must be a finite number > 0, not {self.t_end}")
        if self.patience < 0:
            raise InputError(f"patience must be at least 0 solves, not {self.patience}")
        self._largest = self.t_end or 0.0

    def state_dict(self) -> dict[str, Any]:
        """The state that determines the next solve, as plain numbers."""
        return {
            "edges": self.edges,
            "n_solves": self.n_solves,
            "n_failed_checks": self.n_failed_checks,
            "n_searches": self.n_searches,
            "largest": self._largest,
            "next_attempt": self._next_attempt,
            "wait": self._wait,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            InputError: The edges are not finite, do not increase, or are too many; solving on them would take forever.
        """
        edges = None if state["edges"] is None else [float(t) for t in state["edges"]]
        if edges is not None and not (
            2 <= len(edges) <= _MAX_EDGES and all(map(math.isfinite, edges)) and all(a < b for a, b in itertools.pairwise(edges))
        ):
            raise InputError(f"a training grid must have 2 to {_MAX_EDGES} finite edges that increase, not {len(edges)} others")
        self.edges = edges
        self.n_solves, self.n_failed_checks = int(state["n_solves"]), int(state["n_failed_checks"])
        self.n_searches = int(state["n_searches"])
        self._largest = float(state["largest"])
        self._next_attempt, self._wait = int(state["next_attempt"]), int(state["wait"])

    def to_tensor(self) -> Float[Tensor, " n"]:
        """Return `state_dict` as one float64 tensor, so that the state of a model consists of tensors."""
        numbers = [float(value) for name, value in self.state_dict().items() if name != "edges"]
        return torch.tensor([*numbers, *(self.edges or ())], dtype=torch.float64)

    def load_tensor(self, state: Float[Tensor, " n"]) -> None:
        """Restore what `to_tensor` returned.

        Raises:
            InputError: As `load_state_dict`.
        """
        values = state.tolist()
        names = [name for name in self.state_dict() if name != "edges"]
        counts, edges = values[: len(names)], values[len(names) :]
        if len(counts) < len(names) or not all(map(math.isfinite, counts)):
            raise InputError(f"the state of a training grid begins with {len(names)} finite numbers")
        self.load_state_dict({**dict(zip(names, counts, strict=True)), "edges": edges or None})

    @contextmanager
    def restored_on(self, error: type[Exception]) -> Iterator[None]:
        """Restore the state of the grid if the block raises this error, so that a call that is rejected leaves no trace."""
        before = self.state_dict()
        try:
            yield
        except error:
            self.load_state_dict(before)
            raise

    def covers(self, t0: float, t_end: float) -> bool:
        """Whether the current grid starts at t0 and reaches t_end."""
        return self.edges is not None and self.edges[0] == t0 and self.edges[-1] >= t_end

    def wants_fewer(self, norms: Tensor, error_order: int) -> bool:
        """Whether the norms of a valid pass predict that fewer steps suffice, and the patience is over."""
        assert self.edges is not None
        if self.n_solves < self._next_attempt or len(norms) <= 1:
            return False
        return predicted_steps(norms.tolist(), error_order) < len(norms)

    def refresh(self, f: Field, tableau: ButcherTableau, y: Tensor, t0: float, t_end: float, tolerance: Tolerance) -> Search:
        """Search a grid for this batch and balance its errors; the caller restores buffers and random state of f.

        The evaluations of the search include those of the balancing. If it failed, the current grid is unchanged.
        """
        self.n_searches += 1
        self._largest = max(self._largest, t_end)
        search = search_batch(f, tableau, y, t0, self._largest, tolerance)
        if search.status is not Status.OK:
            return search
        edges, norms, evaluations = balance(f, tableau, y, search, tolerance)
        self.edges = edges
        self._next_attempt = self.n_solves + self.patience
        return Search(edges, norms, Status.OK, search.n_rejected, search.n_evaluations + evaluations)

    def try_fewer(self, f: Field, tableau: ButcherTableau, y: Tensor, t0: float, t_end: float, tolerance: Tolerance) -> Search:
        """Search a grid with fewer steps; keep the current, valid one if there is none. Otherwise like `refresh`."""
        before = self.edges or []
        search = self.refresh(f, tableau, y, t0, t_end, tolerance)
        if len(self.edges or ()) < len(before):
            self._wait = self.patience
        else:
            self.edges = before
            self._wait = 2 * max(self._wait, self.patience)
        self._next_attempt = self.n_solves + self._wait
        return search


@torch.no_grad()
def balance(
    f: Field, tableau: ButcherTableau, y: Tensor, search: Search, tolerance: Tolerance
) -> tuple[list[float], Tensor, int]:
    """Find the fewest error-balanced steps whose norms on this batch stay below the target: edges, norms, evaluations.

    The number of steps starts at the prediction, increases until the target is met, and then decreases while it is met. A grid
    whose norms are close to 1 gets slightly more steps, so that it survives the next change of the field. If no number of steps
    up to that length meets the target, the adaptive grid stays.
    """
    edges: list[float] = list(search.edges)
    norms = [float(x) for x in search.norms]
    best, best_norms, met = edges, norms, False
    longest = math.ceil(len(norms) * TARGET ** (-1 / (tableau.error_order + 1))) + 1
    nowhere = torch.tensor([edges[0]], dtype=torch.float64, device=y.device)
    spent, n = 0, min(predicted_steps(norms, tableau.error_order), longest)
    while 1 <= n <= longest:
        candidate = balanced_edges(edges, norms, n, tableau.error_order)
        spent += tableau.evaluations(n)
        measured = replay(f, tableau, y, candidate, nowhere, tolerance.rtol, tolerance.atol).norms.tolist()
        if all(norm < TARGET for norm in measured):  # unlike max(), this fails on NaN
            best, best_norms, met = candidate, measured, True
            edges, norms = candidate, measured
            n -= 1
        elif met:
            break
        elif all(math.isfinite(norm) for norm in measured):
            edges, norms = candidate, measured
            n = max(n + 1, predicted_steps(norms, tableau.error_order))
        else:
            n += 1
    return best, torch.tensor(best_norms), spent
