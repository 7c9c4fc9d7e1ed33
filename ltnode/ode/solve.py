"""``odesolve``: one solve, states at any number of times, gradients through the accepted steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ltnode.errors import InputError
from ltnode.ode.controller import check_tolerances
from ltnode.ode.dense import DenseOutput
from ltnode.ode.kept_grid import KeptGrid
from ltnode.ode.replay import Edges, Replay, replay
from ltnode.ode.search import Search, Tolerance, search_batch, search_per_sample
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.step import Field, evaluate, expand_like
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.ode.trace import Snapshot, no_trace
from ltnode.typing import Float, Tensor

Control = Literal["batch", "sample"]

_KEPT_ATTEMPTS = 3
"""Passes over kept grids before giving up: a grid searched on this very batch fails only where the field is not a function."""


@dataclass(frozen=True)
class Solution:
    """Result of a solve.

    Attributes:
        states: (S, B, ...), the states at the requested times in their given order; NaN at times a failed solve did not reach.
        status: ``Status.OK``, or how the solve failed.
        stats: Work done.
        grid: Edges of the steps, float64, (n+1,), or (n+1, B) under per-sample control.
        error_norms: Embedded error of every step in units of the tolerance, (n,) or (n, B); empty for a method without one.
    """

    states: Float[Tensor, "S *state"]
    status: Status
    stats: Stats
    grid: Float[Tensor, "n1 *batch"]
    error_norms: Float[Tensor, "n *batch"]


def odesolve(
    f: Field,
    y0: Tensor,
    times: Tensor | Sequence[float],
    rtol: float = 1e-2,
    atol: float = 1e-2,
    method: str | ButcherTableau = "dopri5",
    *,
    t0: float = 0.0,
    grid: Tensor | Sequence[float] | KeptGrid | None = None,
    control: Control = "batch",
    recompute: bool = False,
    clip_last: bool = True,
    max_steps: int = 5000,
    accept_small_change: float = 0.0,
    throw: bool = True,
) -> Solution:
    """Solve ``dy/dt = f(t, y)`` from ``y(t0) = y0`` once, and give the states at all requested times.

    With ``grid=None`` (the reference) the accepted steps are found without a graph and then replayed with one, so gradients
    are those of the discrete trajectory over constant step edges (discretise, then optimise). Without grad mode the search
    itself gives the states. The search leaves no trace in the buffers of ``f`` or in the random state.

    Args:
        f: ``f(t, y) -> dy/dt`` with the shape of y; t is 0-dim in the state's dtype (float32 for a bf16 state), or (B,)
            under per-sample control.
        y0: State of any shape, (B, ...) where times or steps are per sample.
        times: (S,) or (S, B), not before t0; any order, duplicates allowed.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        method: ``dopri5``, ``tsit5``, ``bosh3`` (adaptive), ``rk4``, ``euler`` (fixed grids only), or a tableau.
        t0: Start.
        grid: None for adaptive steps; given edges from t0 to at least the largest time for a fixed grid without error control;
            or a `KeptGrid`, replayed and checked by the embedded error of the same pass.
        control: ``"batch"``: one step sequence by the RMS over the batch. ``"sample"``: each sample its own.
        recompute: Evaluate each step again in the backward pass instead of keeping its activations.
        clip_last: End the last step at the largest time; otherwise it may pass it, and the field is evaluated beyond.
        max_steps: Limit of trial steps.
        accept_small_change: Compatibility with the paper's code, which accepts a failed step whose size would change by less
            than this share; 0 keeps the error control.
        throw: Raise `SolverError` on failure; otherwise return with a status.

    Returns:
        The solution; differentiable in y0, in times and in every tensor that f uses.
    """
    tableau = get_tableau(method)
    times = check_times(times, y0, t0)
    check_tolerances(rtol, atol)
    if max_steps < 1:
        raise InputError(f"max_steps = {max_steps} is impossible: at least 1")
    if control not in ("batch", "sample"):
        raise InputError(f"control must be 'batch' or 'sample', not {control!r}")
    tolerance = Tolerance(rtol, atol, max_steps, clip_last, accept_small_change)
    if grid is not None and not isinstance(grid, KeptGrid):
        return _solve_fixed(f, tableau, y0, times, t0, grid, tolerance, recompute, control == "sample", throw)
    if not tableau.adaptive:
        raise InputError(
            f"method {tableau.name!r} has no error estimate, so it cannot choose its steps: give grid=[t0, ..., t_end], or use "
            "'dopri5', 'tsit5' or 'bosh3'"
        )
    t_end = float(times.detach().max())
    if t_end == t0:
        return _solve_nothing(f, y0, times, t0)
    if isinstance(grid, KeptGrid):
        if control == "sample":
            raise InputError("a kept grid is shared by the batch; use control='batch', or grid=None for per-sample steps")
        return _solve_kept(f, tableau, y0, times, t0, t_end, grid, tolerance, recompute, throw)
    if control == "sample":
        return _solve_per_sample(f, tableau, y0, times, t0, tolerance, recompute, throw)
    return _solve_adaptive(f, tableau, y0, times, t0, t_end, tolerance, recompute, throw)


def _solve_adaptive(
    f: Field,
    tableau: ButcherTableau,
    y0: Tensor,
    times: Tensor,
    t0: float,
    t_end: float,
    tolerance: Tolerance,
    recompute: bool,
    throw: bool,
) -> Solution:
    needs_graph = torch.is_grad_enabled()
    output = None if needs_graph else DenseOutput(tableau, times)
    if needs_graph:
        with no_trace(f, y0.device), torch.no_grad():
            found = search_batch(f, tableau, y0.detach(), t0, t_end, tolerance)
    else:
        found = search_batch(f, tableau, y0, t0, t_end, tolerance, output)
    n_steps = len(found.edges) - 1
    if output is not None:
        result = Replay(output.result(y0), found.norms)
        evaluations = found.n_evaluations
    elif n_steps:
        result = replay(f, tableau, y0, found.edges, times, tolerance.rtol, tolerance.atol, recompute=recompute)
        evaluations = found.n_evaluations + tableau.evaluations(n_steps)
    else:
        result = Replay(y0.expand(times.shape[0], *y0.shape), found.norms)
        evaluations = found.n_evaluations
    return _finish(result, found, times, t_end, evaluations, 0, throw)


def _solve_per_sample(
    f: Field,
    tableau: ButcherTableau,
    y0: Tensor,
    times: Tensor,
    t0: float,
    tolerance: Tolerance,
    recompute: bool,
    throw: bool,
) -> Solution:
    if y0.ndim == 0:
        raise InputError("per-sample step control needs a batch: y0 of shape (B, ...)")
    if not tolerance.clip_last or tolerance.accept_small_change:
        raise InputError("per-sample step control always clips the last step and keeps its error control")
    _refuse_batch_statistics(f)
    times = times if times.ndim == 2 else times[:, None].expand(-1, y0.shape[0])
    t_end = times.detach().to(torch.float64).max(dim=0).values
    with no_trace(f, y0.device), torch.no_grad():
        found = search_per_sample(f, tableau, y0.detach(), t0, t_end, tolerance)
    result = replay(f, tableau, y0, found.edges, times, tolerance.rtol, tolerance.atol, per_sample=True, recompute=recompute)
    evaluations = found.n_evaluations + tableau.evaluations(len(found.edges) - 1)
    return _finish(result, found, times, float(t_end.max()), evaluations, 0, throw)


def _solve_kept(
    f: Field,
    tableau: ButcherTableau,
    y0: Tensor,
    times: Tensor,
    t0: float,
    t_end: float,
    kept: KeptGrid,
    tolerance: Tolerance,
    recompute: bool,
    throw: bool,
) -> Solution:
    evaluations = rejected = refreshed = 0

    def refresh() -> Search:
        nonlocal evaluations, rejected
        with no_trace(f, y0.device), torch.no_grad():
            found = kept.refresh(f, tableau, y0.detach(), t0, t_end, tolerance)
        evaluations += found.n_evaluations
        rejected += found.n_rejected
        return found

    kept.n_solves += 1
    snapshot = Snapshot(f, y0.device)
    failure = Status.STEP_UNDERFLOW
    for attempt in range(_KEPT_ATTEMPTS):
        if attempt or not kept.covers(t0, t_end):
            found = refresh()
            refreshed += attempt > 0
            if found.status is not Status.OK:
                failure = found.status
                break
        edges: list[float] = list(kept.edges or ())
        result = replay(f, tableau, y0, edges, times, tolerance.rtol, tolerance.atol, recompute=recompute)
        evaluations += tableau.evaluations(len(edges) - 1)
        if bool((result.norms < 1.0).all()):
            if kept.wants_fewer(result.norms, tableau.error_order):
                refresh()
                kept.attempted(succeeded=len(kept.edges or ()) < len(edges))
            found = Search(edges, result.norms, Status.OK, rejected, evaluations)
            return _finish(result, found, times, t_end, evaluations, refreshed, throw)
        snapshot.restore()
        kept.n_failed_checks += 1
        failure = Status.STEP_UNDERFLOW if bool(torch.isfinite(result.norms).all()) else Status.NON_FINITE
    nothing = Replay(torch.full((times.shape[0], *y0.shape), float("nan"), dtype=y0.dtype, device=y0.device), torch.zeros(0))
    found = Search([t0], nothing.norms, failure, rejected, evaluations)
    return _finish(nothing, found, times, t_end, evaluations, refreshed, throw)


def _solve_fixed(
    f: Field,
    tableau: ButcherTableau,
    y0: Tensor,
    times: Tensor,
    t0: float,
    grid: Tensor | Sequence[float],
    tolerance: Tolerance,
    recompute: bool,
    per_sample: bool,
    throw: bool,
) -> Solution:
    edges = _check_grid(grid, times, t0)
    result = replay(f, tableau, y0, edges, times, tolerance.rtol, tolerance.atol, per_sample=per_sample, recompute=recompute)
    n_steps = len(edges) - 1
    stats = Stats(n_steps, 0, tableau.evaluations(n_steps))
    edge_tensor = torch.as_tensor(edges, dtype=torch.float64)
    status = Status.OK
    if not _traced(result.states) and not bool(torch.isfinite(result.states).all()):
        status = Status.NON_FINITE
        if throw:
            raise SolverError(status, float(edge_tensor.max()), float(edge_tensor.max()), stats)
    return Solution(result.states, status, stats, edge_tensor, result.norms)


def _solve_nothing(f: Field, y0: Tensor, times: Tensor, t0: float) -> Solution:
    """Every requested time is t0: the state itself, with the field as its derivative in time."""
    states = y0.expand(times.shape[0], *y0.shape)
    evaluations = 0
    if times.requires_grad and torch.is_grad_enabled():
        k = evaluate(f, t0, y0)
        evaluations = 1
        states = torch.stack([y0 + expand_like(t - t0, y0) * k for t in times])
    edges = torch.tensor([t0], dtype=torch.float64)
    return Solution(states, Status.OK, Stats(0, 0, evaluations), edges, torch.zeros(0))


def _finish(
    result: Replay, found: Search, times: Tensor, t_end: float, evaluations: int, refreshed: int, throw: bool
) -> Solution:
    """Turn a finished or failed solve into a Solution, or raise."""
    edges = torch.as_tensor(found.edges, dtype=torch.float64)
    stats = Stats(len(edges) - 1, found.n_rejected, evaluations, refreshed)
    states = result.states
    status = found.status
    if status is Status.OK and not bool(torch.isfinite(states).all()):
        status = Status.NON_FINITE
    if status is not Status.OK:
        if throw:
            raise SolverError(status, float(edges[-1].min()), t_end, stats)
        reached = times.detach() <= edges[-1].to(times.device)
        shaped = reached.reshape(*reached.shape, *[1] * (states.ndim - reached.ndim))
        states = torch.where(shaped, states, torch.full_like(states, float("nan")))
    return Solution(states, status, stats, edges, result.norms)


def check_times(times: Tensor | Sequence[float], y0: Tensor, t0: float) -> Tensor:
    """The times as a tensor of shape (S,) or (S, B) on the device of y0, checked against it."""
    if not isinstance(y0, torch.Tensor) or not y0.is_floating_point():
        got = y0.dtype if isinstance(y0, torch.Tensor) else type(y0).__name__
        raise InputError(f"y0 must be a floating-point tensor, not {got}")
    if not isinstance(times, torch.Tensor):
        times = torch.as_tensor(times, dtype=torch.float64)
    if not times.is_floating_point():
        times = times.to(torch.float64)
    times = times.to(y0.device)
    if times.ndim not in (1, 2) or times.shape[0] == 0:
        raise InputError(f"times must have shape (S,) or (S, B) with S >= 1, not {tuple(times.shape)}")
    if times.ndim == 2 and (y0.ndim == 0 or times.shape[1] != y0.shape[0]):
        raise InputError(f"times of shape {tuple(times.shape)} need y0 with a batch of {times.shape[1]}, not {tuple(y0.shape)}")
    if _traced(times):
        return times
    values = times.detach()
    if not bool(torch.isfinite(values).all()):
        raise InputError("times hold NaN or inf; every end-time must be a finite number")
    if bool((values < t0).any()):
        raise InputError(f"times must not lie before t0 = {t0}; the smallest is {float(values.min()):.6g}")
    return times


def _check_grid(grid: Tensor | Sequence[float], times: Tensor, t0: float) -> Edges:
    """Floats where the values may be read, the tensor itself where they must not (compiled, or on a device)."""
    if isinstance(grid, torch.Tensor):
        if grid.ndim not in (1, 2) or grid.shape[0] < 2:
            raise InputError(f"grid must hold at least two edges, (n+1,) or (n+1, B), not shape {tuple(grid.shape)}")
        if torch.compiler.is_compiling() or _traced(grid) or _traced(times) or grid.device.type != "cpu":
            return grid
        values = grid.detach().to(torch.float64)
    else:
        values = torch.tensor(list(grid), dtype=torch.float64)
        if values.ndim != 1 or len(values) < 2:
            raise InputError("grid must hold at least two edges")
        if _traced(times):
            return values.tolist()
    if values.ndim == 1 and bool((values.diff() <= 0).any()):
        raise InputError("grid edges must increase strictly")
    if bool((values.diff(dim=0) < 0).any()):
        raise InputError("grid edges must not decrease")
    if not bool((values[0] == t0).all()):
        raise InputError(f"the grid starts at {float(values[0].min()):.6g}, not at t0 = {t0}")
    latest = times.detach().to(torch.float64).cpu()
    end = values[-1]
    if bool((latest > end + 1e-9 * end.abs()).any()):
        raise InputError(f"the largest time {float(latest.max()):.6g} lies beyond the end of the grid, {float(end.min()):.6g}")
    return values.tolist() if values.ndim == 1 else values


def _refuse_batch_statistics(f: Field) -> None:
    if isinstance(f, nn.Module):
        for name, module in f.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                raise InputError(
                    f"per-sample step control cannot be used with BatchNorm in train mode ({name or 'the field'}): its statistics "
                    "couple the samples, so no sample has steps of its own; use control='batch', LayerNorm or GroupNorm"
                )


def _traced(x: Tensor) -> bool:
    """Whether the values of x must not be read: under torch.compile, export or a function transform."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x)
