"""``odesolve``: one solve, states at any number of times, gradients through the accepted steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from ltnode.errors import InputError
from ltnode.ode.controller import check_tolerances
from ltnode.ode.dense import DenseOutput
from ltnode.ode.replay import Edges, Replay, Replayer, replay, traced
from ltnode.ode.search import Search, Tolerance, TrialStep, search_batch, search_per_sample
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.step import Field, add_stages, all_finite, evaluate
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.ode.trace import Snapshot, moving_buffers, no_trace
from ltnode.ode.training_grid import TrainingGrid
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
        grid: Edges of the steps, float64, (n+1,), or (n+1, B) where each sample has its own.
        error_norms: Embedded error of every step in units of the tolerance, (n,), or (n, B) under per-sample control; empty
            for a method without one.
    """

    states: Float[Tensor, "S *state"]
    status: Status
    stats: Stats
    grid: Float[Tensor, "n1 *grid_batch"]
    error_norms: Float[Tensor, "n *norm_batch"]


def odesolve(
    f: Field,
    y0: Tensor,
    times: Tensor | Sequence[float],
    rtol: float = 1e-2,
    atol: float = 1e-2,
    method: str | ButcherTableau = "dopri5",
    *,
    t0: float = 0.0,
    grid: Tensor | Sequence[float] | TrainingGrid | None = None,
    control: Control = "batch",
    recompute: bool = False,
    clip_last: bool = True,
    max_steps: int = 5000,
    accept_small_change: float = 0.0,
    throw: bool = True,
    replayer: Replayer | None = None,
    trial_step: TrialStep | None = None,
) -> Solution:
    """Solve ``dy/dt = f(t, y)`` from ``y(t0) = y0`` once, and give the states at all requested times.

    With ``grid=None`` (the reference) the accepted steps are found without a graph and then replayed with one, so gradients
    are those of the discrete trajectory over constant step edges (discretise, then optimise). Without grad mode the search
    itself gives the states, unless ``f`` has buffers in train mode. A search before a replay, and a pass that fails, leave no
    trace in the random state or in the buffers of ``f`` (a module, a method of one, or a function that names it).

    Args:
        f: ``f(t, y) -> dy/dt`` with the shape of y; t is 0-dim in the state's dtype (float32 for a bf16 state), or (B,)
            under per-sample control.
        y0: State of any shape, (B, ...) where times or steps are per sample.
        times: (S,) or (S, B), not before t0; any order, duplicates allowed.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        method: ``dopri5``, ``tsit5``, ``bosh3`` (adaptive), ``rk4``, ``euler`` (fixed grids only), or a tableau.
        t0: Start.
        grid: None for adaptive steps; given edges from t0 to at least the largest time, (n+1,), or (n+1, B) with one sequence
            per sample, for a fixed grid without error control; or a `TrainingGrid`, replayed and checked by the embedded error of
            the same pass. A tensor keeps one compiled program valid for all its values, which are then not checked.
        control: ``"batch"``: one step sequence by the RMS over the batch. ``"sample"``: each sample its own.
        recompute: Evaluate each step again in the backward pass instead of keeping its activations.
        clip_last: End the last step at the largest time; otherwise it may pass it, and the field is evaluated beyond.
        max_steps: Limit of trial steps.
        accept_small_change: Compatibility with the paper's code, which accepts a failed step whose size would change by less
            than this share; 0 keeps the error control.
        throw: Raise `SolverError` on failure; otherwise return with a status.
        replayer: A faster way to step over a `TrainingGrid` with this field and method; grids are searched by ``f`` itself. Other
            solves do not use it.
        trial_step: A faster way to take the steps of an adaptive solve without grad mode.

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
    if grid is not None and not isinstance(grid, TrainingGrid):
        return _solve_fixed(f, tableau, y0, times, t0, grid, tolerance, recompute, control == "sample", throw)
    if not tableau.adaptive:
        raise InputError(
            f"method {tableau.name!r} has no error estimate, so it cannot choose its steps: give grid=[t0, ..., t_end], or use "
            "'dopri5', 'tsit5' or 'bosh3'"
        )
    if _batched(y0) or _batched(times):
        raise InputError("torch.func.vmap hides the values that steps are chosen by: give grid=[t0, ..., t_end] for a fixed grid")
    if y0.numel() == 0 or bool((times.detach() == t0).all()):
        return _solve_nothing(f, y0, times, t0, control == "sample", throw)
    if isinstance(grid, TrainingGrid):
        if control == "sample":
            raise InputError("a kept grid is shared by the batch; use control='batch', or grid=None for per-sample steps")
        return _solve_kept(f, tableau, y0, times, t0, grid, tolerance, recompute, throw, replayer)
    if control == "sample":
        return _solve_per_sample(f, tableau, y0, times, t0, tolerance, recompute, throw)
    return _solve_adaptive(f, tableau, y0, times, t0, tolerance, recompute, throw, trial_step)


def _solve_adaptive(
    f: Field,
    tableau: ButcherTableau,
    y0: Tensor,
    times: Tensor,
    t0: float,
    tolerance: Tolerance,
    recompute: bool,
    throw: bool,
    trial_step: TrialStep | None,
) -> Solution:
    t_end = float(times.detach().max())
    if not torch.is_grad_enabled() and not moving_buffers(f):
        output = DenseOutput(tableau, times)
        found = search_batch(f, tableau, y0, t0, t_end, tolerance, output, trial_step)
        return _finish(Replay(output.result(y0), found.norms), found, times, throw)
    with no_trace(f, y0.device), torch.no_grad():
        found = search_batch(f, tableau, y0.detach(), t0, t_end, tolerance)
    return _replay_found(f, tableau, y0, times, found, tolerance, recompute, throw)


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
    return _replay_found(f, tableau, y0, times, found, tolerance, recompute, throw, per_sample=True)


def _replay_found(
    f: Field,
    tableau: ButcherTableau,
    y0: Tensor,
    times: Tensor,
    found: Search,
    tolerance: Tolerance,
    recompute: bool,
    throw: bool,
    per_sample: bool = False,
) -> Solution:
    """The second phase: a graph over the edges that the search found, up to where it failed if it did."""
    if found.status is not Status.OK and throw:
        raise _failure(found, times)
    snapshot = Snapshot(f, y0.device)
    result = replay(f, tableau, y0, found.edges, times, tolerance.rtol, tolerance.atol, per_sample, recompute)
    found.n_evaluations += tableau.evaluations(len(found.edges) - 1)
    return _finish(result, found, times, throw, snapshot)


def _solve_kept(
    f: Field,
    tableau: ButcherTableau,
    y0: Tensor,
    times: Tensor,
    t0: float,
    kept: TrainingGrid,
    tolerance: Tolerance,
    recompute: bool,
    throw: bool,
    replayer: Replayer | None,
) -> Solution:
    t_end = float(times.detach().max())
    evaluations = rejected = refreshed = 0

    def search(how: Callable[..., Search]) -> Search:
        nonlocal evaluations, rejected
        with no_trace(f, y0.device), torch.no_grad():
            found = how(f, tableau, y0.detach(), t0, t_end, tolerance)
        evaluations += found.n_evaluations
        rejected += found.n_rejected
        return found

    kept.n_solves += 1
    snapshot = Snapshot(f, y0.device)
    failure = Status.STEP_UNDERFLOW
    for attempt in range(_KEPT_ATTEMPTS):
        if attempt or not kept.covers(t0, t_end):
            found = search(kept.refresh)
            refreshed += attempt > 0
            if found.status is not Status.OK:
                failure = found.status
                break
        edges: list[float] = list(kept.edges or ())
        # The last word has the field itself: another rounding may fail on a grid that the search found good.
        if replayer is not None and attempt < _KEPT_ATTEMPTS - 1:
            result = replayer(y0, edges, times)
        else:
            result = replay(f, tableau, y0, edges, times, tolerance.rtol, tolerance.atol, recompute=recompute)
        evaluations += tableau.evaluations(len(edges) - 1)
        if bool((result.norms < 1.0).all()):
            if kept.wants_fewer(result.norms, tableau.error_order):
                search(kept.try_fewer)
            found = Search(edges, result.norms, Status.OK, rejected, evaluations)
            return _finish(result, found, times, throw, snapshot, refreshed)
        snapshot.restore()
        kept.n_failed_checks += 1
        failure = Status.STEP_UNDERFLOW if bool(torch.isfinite(result.norms).all()) else Status.NON_FINITE
    nothing = Replay(y0.expand(times.shape[0], *y0.shape), y0.new_zeros(0))
    found = Search([t0], nothing.norms, failure, rejected, evaluations)
    return _finish(nothing, found, times, throw, snapshot, refreshed)


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
    edges = _check_grid(grid, times, t0, y0)
    if isinstance(edges, torch.Tensor) and edges.ndim == 2 and times.ndim == 1:
        times = times[:, None].expand(-1, edges.shape[1])
    snapshot = None if traced(y0) or traced(times) else Snapshot(f, y0.device)
    result = replay(f, tableau, y0, edges, times, tolerance.rtol, tolerance.atol, per_sample, recompute)
    found = Search(edges, result.norms, Status.OK, 0, tableau.evaluations(len(edges) - 1))
    return _finish(result, found, times, throw, snapshot)


def _solve_nothing(f: Field, y0: Tensor, times: Tensor, t0: float, per_sample: bool, throw: bool) -> Solution:
    """Every requested time is t0, or there is no sample: the state itself, with the field as its derivative in time."""
    states, evaluations = y0.expand(times.shape[0], *y0.shape), 0
    start = torch.full(y0.shape[:1] if per_sample else (), t0, dtype=torch.float64, device=y0.device)
    if times.requires_grad and torch.is_grad_enabled() and y0.numel():
        k, evaluations = evaluate(f, start, y0), 1
        states = torch.stack([add_stages(y0, t - t0, (1.0,), (k,)) for t in times])
    norms = y0.new_zeros((0, *start.shape))
    return _finish(Replay(states, norms), Search(start[None], norms, Status.OK, 0, evaluations), times, throw)


def _finish(
    result: Replay, found: Search, times: Tensor, throw: bool, snapshot: Snapshot | None = None, refreshed: int = 0
) -> Solution:
    """Turn a finished or failed solve into a Solution, or raise; a failed one puts the snapshot back."""
    states = result.states
    if found.status is Status.OK and not traced(states) and not all_finite(states):
        found.status = Status.NON_FINITE
    edges = torch.as_tensor(found.edges, dtype=torch.float64)
    if found.status is not Status.OK:
        if snapshot is not None:
            snapshot.restore()
        if throw:
            raise _failure(found, times, refreshed)
        reached = times.detach().to(torch.float64) <= edges[-1].to(times.device)
        shaped = reached.reshape(*reached.shape, *[1] * (states.ndim - reached.ndim))
        states = torch.where(shaped, states, torch.full_like(states, float("nan")))
    return Solution(states, found.status, _stats(found, refreshed), edges, result.norms)


def _failure(found: Search, times: Tensor, refreshed: int = 0) -> SolverError:
    reached = torch.as_tensor(found.edges, dtype=torch.float64)[-1]
    return SolverError(found.status, float(reached.min()), float(times.detach().max()), _stats(found, refreshed))


def _stats(found: Search, refreshed: int) -> Stats:
    return Stats(len(found.edges) - 1, found.n_rejected, found.n_evaluations, refreshed)


def check_times(times: Tensor | Sequence[float], y0: Tensor, t0: float) -> Tensor:
    """The times as a tensor of shape (S,) or (S, B) on the device of y0, checked against it."""
    if not isinstance(y0, torch.Tensor) or not y0.is_floating_point():
        got = y0.dtype if isinstance(y0, torch.Tensor) else type(y0).__name__
        raise InputError(f"y0 must be a floating-point tensor, not {got}; convert it, for example with y0.float()")
    if not isinstance(times, torch.Tensor):
        times = torch.as_tensor(times, dtype=torch.float64)
    if not times.is_floating_point():
        times = times.to(torch.float64)
    times = times.to(y0.device)
    if times.ndim not in (1, 2) or times.shape[0] == 0:
        raise InputError(f"times must have shape (S,) or (S, B) with S >= 1, not {tuple(times.shape)}")
    if times.ndim == 2 and (y0.ndim == 0 or times.shape[1] != y0.shape[0]):
        raise InputError(f"times of shape {tuple(times.shape)} need y0 with a batch of {times.shape[1]}, not {tuple(y0.shape)}")
    if traced(times):
        return times
    values = times.detach()
    if not bool(torch.isfinite(values).all()):
        raise InputError("times hold NaN or inf; every end-time must be a finite number")
    if bool((values < t0).any()):
        raise InputError(f"times must not lie before t0 = {t0}; the smallest is {float(values.min()):.6g}")
    return times


def _check_grid(grid: Tensor | Sequence[float], times: Tensor, t0: float, y0: Tensor) -> Edges:
    """Floats where the values may be read, the tensor itself where they must not (compiled, or on a device)."""
    if not isinstance(grid, torch.Tensor) and traced(times):
        return list(grid)
    edges = torch.as_tensor(grid, dtype=torch.float64).detach()
    if edges.ndim not in (1, 2) or edges.shape[0] < 2:
        raise InputError(f"grid must hold at least two edges, (n+1,) or (n+1, B), not shape {tuple(edges.shape)}")
    if edges.ndim == 2 and (y0.ndim == 0 or edges.shape[1] != y0.shape[0]):
        raise InputError(f"a grid of shape {tuple(edges.shape)} needs y0 with a batch of {edges.shape[1]}, not {tuple(y0.shape)}")
    if traced(edges) or traced(times) or edges.device.type != "cpu":
        return edges
    edges, steps = edges.clone(), edges.diff(dim=0)
    if not bool((steps > 0).all() if edges.ndim == 1 else (steps >= 0).all()):
        raise InputError("grid edges must increase: (n+1,) strictly, (n+1, B) without decreasing, and without NaN")
    if not bool((edges[0] == t0).all()):
        raise InputError(f"the grid starts at {float(edges[0].min()):.6g}, not at t0 = {t0}")
    latest = times.detach().to(device="cpu", dtype=torch.float64).max(dim=0).values
    if edges.ndim == 1:
        latest = latest.max()
    if bool((latest > edges[-1] + 1e-9 * edges[-1].abs()).any()):
        raise InputError(
            f"the largest time {float(latest.max()):.6g} lies beyond the end of the grid, {float(edges[-1].min()):.6g}; "
            "add edges up to it"
        )
    edges[-1] = torch.maximum(edges[-1], latest)  # times beyond the end by rounding alone belong to the last step
    return edges.tolist() if edges.ndim == 1 else edges


def _refuse_batch_statistics(f: Field) -> None:
    root = f if isinstance(f, nn.Module) else getattr(f, "__self__", None)  # the module itself, or a method of one
    if isinstance(root, nn.Module):
        for name, module in root.named_modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
                raise InputError(
                    f"per-sample step control cannot be used with BatchNorm in train mode ({name or 'the field'}): its "
                    "statistics couple the samples, so no sample has steps of its own; use control='batch', LayerNorm or "
                    "GroupNorm"
                )


def _batched(x: Tensor) -> bool:
    """Whether torch.func.vmap hides the values of x, also under other transforms."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        if torch._C._functorch.is_batchedtensor(x):
            return True
        x = torch._C._functorch.get_unwrapped(x)
    return False
