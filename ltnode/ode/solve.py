"""``odesolve``: one solve, states at any number of times, gradients through the accepted steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

from ltnode.errors import InputError
from ltnode.ode.controller import check_tolerances
from ltnode.ode.dense import DenseOutput
from ltnode.ode.problem import Problem, check_adaptive, check_grid, check_per_sample, check_times
from ltnode.ode.replay import Replay, Replayer, traced
from ltnode.ode.search import Search, Tolerance, search_batch, search_per_sample
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.step import Field, add_stages, all_finite, evaluate
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.ode.trace import Snapshot, moving_buffers, no_trace
from ltnode.ode.training_grid import TrainingGrid
from ltnode.typing import Float, Tensor

Control = Literal["batch", "sample"]
Grid = Tensor | Sequence[float] | TrainingGrid | None

_MAX_ATTEMPTS = 3
"""Passes over a training grid before a solve fails: a grid that was searched on the same batch fails only for a random field."""


@dataclass(frozen=True, repr=False)
class Solution:
    """Result of a solve.

    Attributes:
        states: (S, B, ...), the states at the requested times, in the order of the times; NaN at times that a failed solve
            did not reach.
        status: ``Status.OK``, or why the solve failed.
        stats: Number of steps and field evaluations.
        grid: Step edges in float64, (n+1,), or (n+1, B) if each sample has its own steps.
        error_norms: Embedded error of each step divided by the tolerance, (n,), or (n, B) under per-sample control; empty
            for a method without an error estimate.
    """

    states: Float[Tensor, "S *state"]
    status: Status
    stats: Stats
    grid: Float[Tensor, "n1 *grid_batch"]
    error_norms: Float[Tensor, "n *norm_batch"]

    def __repr__(self) -> str:
        states = f"states {tuple(self.states.shape)} {str(self.states.dtype).removeprefix('torch.')}"
        work = f"{self.stats.n_accepted} steps, {self.stats.n_rejected} rejected, {self.stats.n_evaluations} evaluations"
        return f"Solution({self.status.value}, {states}, {work})"


def odesolve(
    f: Field,
    y0: Tensor,
    times: Tensor | Sequence[float],
    rtol: float = 1e-2,
    atol: float = 1e-2,
    method: str | ButcherTableau = "dopri5",
    *,
    t0: float = 0.0,
    grid: Grid = None,
    control: Control = "batch",
    recompute: bool = False,
    clip_last: bool = True,
    max_steps: int = 5000,
    accept_small_change: float = 0.0,
    throw: bool = True,
    replayer: Replayer | None = None,
) -> Solution:
    """Solve ``dy/dt = f(t, y)`` from ``y(t0) = y0`` once, and return the states at all requested times.

    With ``grid=None`` (the reference) the accepted steps are found without a graph and then replayed with one, so gradients
    are those of the discrete trajectory over constant step edges (discretise, then optimise). Outside of grad mode the search
    itself yields the states, unless ``f`` has buffers in train mode. The search before a replay, and a pass that fails, change
    neither the random state nor the buffers of ``f`` (a module, a method of a module, or a function that refers to one).

    Args:
        f: ``f(t, y) -> dy/dt`` with the shape of y; t is 0-dim in the state's dtype (float32 for a bf16 state), or (B,)
            under per-sample control.
        y0: Initial state of any shape; (B, ...) if times or steps are per sample.
        times: (S,) or (S, B), not before t0; any order, duplicates allowed.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        method: ``dopri5``, ``tsit5``, ``bosh3`` (adaptive), ``rk4``, ``euler`` (fixed grids only), or a tableau.
        t0: Initial time.
        grid: None for adaptive steps. Edges from t0 to at least the largest time, (n+1,), or (n+1, B) with one sequence
            per sample, for a fixed grid without error control. A `TrainingGrid` is replayed and checked by the embedded error
            of the same pass. A program compiled with a tensor stays valid for all of its values, which are then not checked.
        control: ``"batch"``: one step sequence, chosen by the RMS error over the batch. ``"sample"``: one per sample.
        recompute: Evaluate each step again in the backward pass instead of storing its activations.
        clip_last: End the last step at the largest time; otherwise the step may go beyond it.
        max_steps: Maximum number of trial steps.
        accept_small_change: Compatibility with the paper's code, which accepts a failed step whose size would change by less
            than this fraction; 0 keeps the error control.
        throw: Raise `SolverError` on failure; otherwise return a solution with the failure status.
        replayer: Faster implementation of the steps over a `TrainingGrid`; other solves, and the search for a grid, ignore it.

    Returns:
        The solution, differentiable in y0, in times and in every tensor that f uses.
    """
    tableau = get_tableau(method)
    times = check_times(times, y0, t0)
    check_tolerances(rtol, atol)
    if max_steps < 1:
        raise InputError(f"max_steps must be at least 1, not {max_steps}")
    if control not in ("batch", "sample"):
        raise InputError(f"control must be 'batch' or 'sample', not {control!r}")
    tolerance = Tolerance(rtol, atol, max_steps, clip_last, accept_small_change)
    problem = Problem(f, y0, times, t0, tableau, tolerance, control == "sample", recompute, throw)
    return _solve(problem, grid, replayer)


def _solve(problem: Problem, grid: Grid, replayer: Replayer | None) -> Solution:
    """Choose how the steps are found."""
    if grid is not None and not isinstance(grid, TrainingGrid):
        return _solve_fixed(problem, grid)
    check_adaptive(problem)
    if problem.y0.numel() == 0 or bool((problem.times.detach() == problem.t0).all()):
        return _solve_without_steps(problem)
    if isinstance(grid, TrainingGrid):
        if problem.per_sample:
            raise InputError("a training grid is shared by the batch; use control='batch', or grid=None for per-sample steps")
        return _TrainingGridSolve(problem, grid, replayer).run()
    if problem.per_sample:
        return _solve_per_sample(problem)
    return _solve_adaptive(problem)


def _solve_adaptive(problem: Problem) -> Solution:
    f, tableau, y0, tolerance = problem.f, problem.tableau, problem.y0, problem.tolerance
    if not torch.is_grad_enabled() and not moving_buffers(f):
        output = DenseOutput(tableau, problem.times)
        search = search_batch(f, tableau, y0, problem.t0, problem.t_end, tolerance, output)
        return _finish(problem, Replay(output.result(y0), search.norms), search)
    with no_trace(f, y0.device), torch.no_grad():
        search = search_batch(f, tableau, y0.detach(), problem.t0, problem.t_end, tolerance)
    return _replay_search(problem, search)


def _solve_per_sample(problem: Problem) -> Solution:
    check_per_sample(problem)
    if problem.times.ndim == 1:
        problem = replace(problem, times=problem.times[:, None].expand(-1, problem.y0.shape[0]))
    t_end = problem.times.detach().to(torch.float64).max(dim=0).values
    with no_trace(problem.f, problem.y0.device), torch.no_grad():
        search = search_per_sample(problem.f, problem.tableau, problem.y0.detach(), problem.t0, t_end, problem.tolerance)
    return _replay_search(problem, search)


def _replay_search(problem: Problem, search: Search) -> Solution:
    """The second phase: build a graph over the accepted edges, up to the point of failure if the search failed."""
    if search.status is not Status.OK and problem.throw:
        raise _failure(problem, search)
    snapshot = Snapshot(problem.f, problem.y0.device)
    result = problem.replay(search.edges)
    search.n_evaluations += problem.tableau.evaluations(len(search.edges) - 1)
    return _finish(problem, result, search, snapshot)


def _solve_fixed(problem: Problem, grid: Tensor | Sequence[float]) -> Solution:
    edges = check_grid(grid, problem.times, problem.t0, problem.y0)
    if isinstance(edges, torch.Tensor) and edges.ndim == 2 and problem.times.ndim == 1:
        problem = replace(problem, times=problem.times[:, None].expand(-1, edges.shape[1]))
    snapshot = None if traced(problem.y0) or traced(problem.times) else Snapshot(problem.f, problem.y0.device)
    result = problem.replay(edges)
    search = Search(edges, result.norms, Status.OK, 0, problem.tableau.evaluations(len(edges) - 1))
    return _finish(problem, result, search, snapshot)


def _solve_without_steps(problem: Problem) -> Solution:
    """Every requested time is t0, or the batch is empty: return y0, whose derivative in time is the field."""
    y0, times = problem.y0, problem.times
    states, evaluations = y0.expand(times.shape[0], *y0.shape), 0
    start = torch.full(y0.shape[:1] if problem.per_sample else (), problem.t0, dtype=torch.float64, device=y0.device)
    if times.requires_grad and torch.is_grad_enabled() and y0.numel():
        k, evaluations = evaluate(problem.f, start, y0), 1
        states = torch.stack([add_stages(y0, t - problem.t0, (1.0,), (k,)) for t in times])
    norms = y0.new_zeros((0, *start.shape))
    return _finish(problem, Replay(states, norms), Search(start[None], norms, Status.OK, 0, evaluations))


class _TrainingGridSolve:
    """One solve on a training grid, and the total work of its passes and searches."""

    def __init__(self, problem: Problem, grid: TrainingGrid, replayer: Replayer | None) -> None:
        self._problem, self._grid, self._replayer = problem, grid, replayer
        self._snapshot = Snapshot(problem.f, problem.y0.device)
        self._evaluations = self._rejected = self._refreshed = 0

    def run(self) -> Solution:
        problem, grid, status = self._problem, self._grid, Status.STEP_UNDERFLOW
        grid.n_solves += 1
        for attempt in range(_MAX_ATTEMPTS):
            if attempt or not grid.covers(problem.t0, problem.t_end):
                self._refreshed += attempt > 0
                search = self._search(grid.refresh)
                if search.status is not Status.OK:
                    status = search.status
                    break
            edges: list[float] = list(grid.edges or ())
            result = self._replay(edges, last_attempt=attempt == _MAX_ATTEMPTS - 1)
            if bool((result.norms < 1.0).all()):
                if grid.wants_fewer(result.norms, problem.tableau.error_order):
                    self._search(grid.try_fewer)
                return self._finish(result, edges, Status.OK)
            self._snapshot.restore()
            grid.n_failed_checks += 1
            status = Status.STEP_UNDERFLOW if bool(torch.isfinite(result.norms).all()) else Status.NON_FINITE
        states = problem.y0.expand(problem.times.shape[0], *problem.y0.shape)
        return self._finish(Replay(states, problem.y0.new_zeros(0)), [problem.t0], status)

    def _search(self, method: Callable[..., Search]) -> Search:
        """Call `TrainingGrid.refresh` or `TrainingGrid.try_fewer` without changing buffers or random state."""
        p = self._problem
        with no_trace(p.f, p.y0.device), torch.no_grad():
            search = method(p.f, p.tableau, p.y0.detach(), p.t0, p.t_end, p.tolerance)
        self._evaluations += search.n_evaluations
        self._rejected += search.n_rejected
        return search

    def _replay(self, edges: list[float], last_attempt: bool) -> Replay:
        self._evaluations += self._problem.tableau.evaluations(len(edges) - 1)
        # The last attempt uses the field itself: the replayer rounds differently and may fail on a grid that is valid for f.
        if self._replayer is not None and not last_attempt:
            return self._replayer(self._problem.y0, edges, self._problem.times)
        return self._problem.replay(edges)

    def _finish(self, result: Replay, edges: list[float], status: Status) -> Solution:
        search = Search(edges, result.norms, status, self._rejected, self._evaluations)
        return _finish(self._problem, result, search, self._snapshot, self._refreshed)


def _finish(problem: Problem, result: Replay, search: Search, snapshot: Snapshot | None = None, n_refreshed: int = 0) -> Solution:
    """Build the solution; on failure restore the snapshot, then raise or mark the unreached states as NaN."""
    states = result.states
    if search.status is Status.OK and not traced(states) and not all_finite(states):
        search.status = Status.NON_FINITE
    edges = torch.as_tensor(search.edges, dtype=torch.float64)
    if search.status is not Status.OK:
        if snapshot is not None:
            snapshot.restore()
        if problem.throw:
            raise _failure(problem, search, n_refreshed)
        reached = problem.times.detach().to(torch.float64) <= edges[-1].to(problem.times.device)
        mask = reached.reshape(*reached.shape, *[1] * (states.ndim - reached.ndim))
        states = torch.where(mask, states, torch.full_like(states, float("nan")))
    return Solution(states, search.status, _stats(search, n_refreshed), edges, result.norms)


def _failure(problem: Problem, search: Search, n_refreshed: int = 0) -> SolverError:
    """The error that describes a failed search."""
    reached = torch.as_tensor(search.edges, dtype=torch.float64)[-1]
    return SolverError(search.status, float(reached.min()), problem.t_end, _stats(search, n_refreshed))


def _stats(search: Search, n_refreshed: int) -> Stats:
    return Stats(len(search.edges) - 1, search.n_rejected, search.n_evaluations, n_refreshed)
