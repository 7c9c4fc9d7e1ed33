"""The prediction grid: edges saved with a trained model, so that a prediction depends only on its input.

Adaptive steps chosen by a batch-wide norm make a state depend on the rest of the batch. Here the edges are fixed in advance,
the embedded error is checked per sample, and only the samples that fail are solved again on a finer grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from ltnode.errors import InputError
from ltnode.ode.problem import Problem, check_times
from ltnode.ode.replay import Replay, replay
from ltnode.ode.search import Tolerance
from ltnode.ode.solve import Solution, odesolve
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.step import Field, all_finite
from ltnode.ode.tableau import get_tableau
from ltnode.ode.training_grid import balanced_edges
from ltnode.typing import Bool, Float, Int, Tensor

FieldOf = Callable[[Tensor], Field]
"""``(samples) -> field`` of the samples at some positions of a batch, in this order."""
_MAX_HALVINGS = 5
MAX_EDGES = 10_000
"""Most edges to which a grid may be extended for a late end-time."""
MAX_SAVED_EDGES = 1025
"""Most edges of a grid that is read from a file; `fit_prediction_grid` writes at most 65."""
_PASSING_SHARE = 0.95
"""Share of the calibration samples that must meet the tolerance on the prediction grid; the others need a second solve."""


def extend_edges(edges: list[float], t_end: float) -> list[float]:
    """The edges up to the first one at or after t_end, extended with the size of the last step if they end earlier.

    t_end determines the number of edges but not their values, so a later end-time in the batch changes no other state.
    """
    first = next((m for m, edge in enumerate(edges) if edge >= t_end), None)
    if first is not None:
        return edges[: max(first, 1) + 1]
    step = edges[-1] - edges[-2]
    if not step > 0 or not (t_end - edges[-1]) / step <= MAX_EDGES - len(edges):
        raise InputError(
            f"the end-time {t_end:g} is too far beyond the prediction grid, whose last step of {step:g} ends at {edges[-1]:g}: "
            f"at most {MAX_EDGES} edges are allowed"
        )
    result = list(edges)
    while result[-1] < t_end:
        result.append(edges[-1] + step * (len(result) - len(edges) + 1))
    return result


def check_edges(edges: Float[Tensor, "n1"]) -> None:
    """Require the edges of a saved grid to start at 0, to increase, to be finite and to be not too many.

    Raises:
        InputError: They do not; solving on them would take forever.
    """
    if edges.ndim != 1 or not 2 <= len(edges) <= MAX_SAVED_EDGES:
        raise InputError(f"a prediction grid must have 2 to {MAX_SAVED_EDGES} edges, not the shape {tuple(edges.shape)}")
    values = edges.detach().double().cpu()
    if not bool(values.isfinite().all()) or float(values[0]) != 0.0 or not bool((values.diff() > 0).all()):
        raise InputError("the edges of a prediction grid must be finite, start at 0 and increase")


def halve_edges(edges: list[float]) -> list[float]:
    """Split every step into two equal steps."""
    middles = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    return sorted([*edges, *middles])


def odesolve_on_prediction_grid(
    f: Field,
    y0: Tensor,
    times: Tensor,
    edges: Float[Tensor, "n1"],
    rtol: float = 1e-2,
    atol: float = 1e-2,
    method: str = "dopri5",
    field_of: FieldOf | None = None,
) -> Solution:
    """Solve on given edges, and solve the samples whose embedded error is too large again with all steps halved.

    Args:
        f: The field; it must treat samples independently (no batch statistics).
        y0: Initial states, (B, ...).
        times: (S,) or (S, B), not negative; times beyond the last edge extend the grid.
        edges: Edges of the prediction grid, starting at 0.
        rtol: Relative tolerance, per sample.
        atol: Absolute tolerance, per sample.
        method: An adaptive method.
        field_of: Returns the field of some of the samples, for samples with different fields; None: ``f`` is that of all.

    Returns:
        The solution, differentiable like that of `odesolve`. ``error_norms`` (n, B) are those of the first pass;
        ``stats.n_refreshed`` is the number of halvings.
    """
    tableau = get_tableau(method)
    times = check_times(times, y0, 0.0)
    if not tableau.adaptive:
        raise InputError(
            f"a prediction grid needs a method with an embedded error estimate, which {tableau.name!r} does not have"
        )
    if y0.ndim == 0:
        raise InputError("a prediction grid is checked per sample, so y0 needs a batch: shape (B, ...)")
    if y0.shape[0] == 0:
        return odesolve(f, y0, times, rtol, atol, method, control="sample")
    problem = Problem(f, y0, times, 0.0, tableau, Tolerance(rtol, atol), per_sample=True)
    return _PredictionGridSolve(problem, edges.double().tolist(), field_of).run()


class _PredictionGridSolve:
    """Passes over finer and finer grids until every sample meets the tolerance."""

    def __init__(self, problem: Problem, edges: list[float], field_of: FieldOf | None) -> None:
        self._problem = problem
        self._field_of = field_of or (lambda samples: problem.f)
        self._own_end = problem.times.detach().to(torch.float64).max(dim=0).values.expand(problem.y0.shape[0])
        self._edges = extend_edges(edges, float(self._own_end.max()))
        self._evaluations = self._halvings = 0

    def run(self) -> Solution:
        pending = torch.arange(self._problem.y0.shape[0], device=self._problem.y0.device)
        result = self._replay(pending)
        first_edges, first_norms = self._edges, result.norms
        parts: list[tuple[Tensor, Tensor]] = []
        while bool((failed := self._failed(pending, result.norms)).any()):
            if bool((~failed).any()):
                parts.append((pending[~failed], self._passing_states(pending, failed, result)))
            pending = pending[failed]
            if self._halvings == _MAX_HALVINGS:
                parts.append((pending, self._solve_adaptively(pending)))
                break
            self._halvings += 1
            self._edges = halve_edges(self._edges)
            result = self._replay(pending)
        else:
            parts.append((pending, result.states))
        states = _in_order(parts)
        stats = Stats(len(first_edges) - 1, 0, self._evaluations, self._halvings)
        if not all_finite(states):
            raise SolverError(Status.NON_FINITE, float(self._own_end.max()), float(self._own_end.max()), stats)
        return Solution(states, Status.OK, stats, torch.tensor(first_edges, dtype=torch.float64), first_norms)

    def _times_of(self, samples: Int[Tensor, " n"]) -> Tensor:
        times = self._problem.times
        return times if times.ndim == 1 else times[:, samples]

    def _replay(self, samples: Int[Tensor, " n"]) -> Replay:
        p, f = self._problem, self._field_of(samples)
        if p.times.ndim == 2:
            f = _stopping(f, self._edges, self._own_end[samples], p.y0[samples])
        self._evaluations += p.tableau.evaluations(len(self._edges) - 1)
        rtol, atol = p.tolerance.rtol, p.tolerance.atol
        return replay(f, p.tableau, p.y0[samples], self._edges, self._times_of(samples), rtol, atol, per_sample=True)

    def _failed(self, samples: Int[Tensor, " n"], norms: Float[Tensor, "steps n"]) -> Bool[Tensor, " n"]:
        """Which samples miss the tolerance in a step that starts before their own end."""
        left = torch.tensor(self._edges[:-1], dtype=torch.float64, device=norms.device)
        needed = left[:, None] < self._own_end[samples][None, :]
        return (needed & ~(norms < 1.0)).any(dim=0)

    def _passing_states(self, samples: Int[Tensor, " n"], failed: Bool[Tensor, " n"], result: Replay) -> Tensor:
        # A failed sample may have overflowed, and 0 * inf is NaN in the backward pass: the graph must not contain it.
        return self._replay(samples[~failed]).states if torch.is_grad_enabled() else result.states[:, ~failed]

    def _solve_adaptively(self, samples: Int[Tensor, " n"]) -> Tensor:
        p = self._problem
        times, tolerance = self._times_of(samples), p.tolerance
        solution = odesolve(
            self._field_of(samples), p.y0[samples], times, tolerance.rtol, tolerance.atol, p.tableau, control="sample"
        )
        self._evaluations += solution.stats.n_evaluations
        return solution.states


def _in_order(parts: list[tuple[Tensor, Tensor]]) -> Float[Tensor, "S B *state"]:
    """States (S, B, ...) in the order of the batch, from parts of it with the indices of their samples."""
    if len(parts) == 1:
        return parts[0][1]
    samples = torch.cat([part for part, _ in parts])
    return torch.cat([states for _, states in parts], dim=1)[:, samples.argsort()]


def _stopping(f: Field, edges: list[float], own_end: Float[Tensor, " B"], start: Float[Tensor, "B *state"]) -> Field:
    """The field, set to zero for each sample from the first edge after its end.

    Other samples may need much later times. A sample must not overflow after its own end, because its unused stages enter the
    dense output with weight zero, and 0 * inf is NaN.
    """
    grid = torch.tensor(edges, dtype=torch.float64, device=own_end.device)
    stop = grid[torch.searchsorted(grid, own_end.contiguous()).clamp_max(len(edges) - 1)]

    def stopped(t: Tensor, y: Tensor) -> Tensor:
        # The margin includes the edge itself although t is rounded to the dtype of the state.
        moving = (t.to(torch.float64) <= stop * (1 + 1e-6)).reshape(-1, *[1] * (y.ndim - 1))
        # Evaluating a stopped sample at its initial state keeps the backward pass finite.
        k = f(t, torch.where(moving, y, start))
        return torch.where(moving, k, torch.zeros_like(k))

    return stopped


@torch.no_grad()
def fit_prediction_grid(
    f: Field, y0: Tensor, t_end: float, rtol: float = 1e-2, atol: float = 1e-2, method: str = "dopri5", max_steps: int = 64
) -> Float[Tensor, "n1"]:
    """The fewest error-balanced edges of [0, t_end] on which 95 % of the samples meet the tolerance, checked per sample.

    If ``max_steps`` steps do not suffice, they are returned anyway: samples that fail on the grid are solved again.
    """
    tableau = get_tableau(method)
    start = torch.zeros(1, dtype=torch.float64, device=y0.device)
    edges, n = [0.0, t_end], 1
    while True:
        norms = replay(f, tableau, y0, edges, start, rtol, atol, per_sample=True).norms
        typical = norms.nan_to_num(nan=1e6, posinf=1e6).double().quantile(_PASSING_SHARE, dim=1)
        if bool((typical < 1.0).all()) or n == max_steps:
            return torch.tensor(edges, dtype=torch.float64)
        n += 1
        edges = balanced_edges(edges, typical.tolist(), n, tableau.error_order)
