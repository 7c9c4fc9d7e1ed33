"""Adaptive search for the accepted step edges, batch-wide or one sequence per sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ltnode.ode.controller import Controller, initial_step
from ltnode.ode.dense import DenseOutput
from ltnode.ode.status import Status
from ltnode.ode.step import Field, Step, all_finite, error_norm, evaluate, take_step, time_dtype
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor

TryStep = Callable[[float, float], tuple[float, Callable[[], None]]]
"""``(t, t_new) -> (error norm, commit)``: a trial step from the current state, and how to make it the current state."""

TrialStep = Callable[[float, float, Tensor, Tensor], tuple[Step, float]]
"""``(t, t_new, y, k)`` to the step from (t, y), where the field is k, and its batch-wide error norm: a faster `take_step`."""

_EPSILON = 16 * torch.finfo(torch.float64).eps
"""Smallest step relative to the time: less would not move it reliably."""


@dataclass(frozen=True)
class Tolerance:
    """What a step must meet, and how long a search may take."""

    rtol: float = 1e-2
    atol: float = 1e-2
    max_steps: int = 5000
    clip_last: bool = True
    accept_small_change: float = 0.0
    """Compatibility with the paper's code: accept a rejected step whose size would change by less than this share."""


@dataclass
class Search:
    """What a search found.

    Attributes:
        edges: Accepted edges: floats t_0 < ... < t_n, or a float64 tensor (n+1, B) under per-sample control.
        norms: Error norm of every accepted step, (n,) or (n, B).
        status: OK, or why the search stopped before the end.
        n_rejected: Trial steps thrown away (the largest count of any sample under per-sample control).
        n_evaluations: Calls of the field.
    """

    edges: Sequence[float] | Tensor
    norms: Tensor
    status: Status
    n_rejected: int
    n_evaluations: int


class StepControl:
    """The step sizes of one trajectory: asked for a trial step, told its error norm, until the end is reached or it failed.

    Attributes:
        t_end: Where the trajectory ends.
        edges: Accepted so far.
        norms: Their steps' error norms.
        rejected: Trials that were not accepted.
        status: How it ended; None before.
    """

    def __init__(self, t: float, t_end: float, h: float, controller: Controller, tolerance: Tolerance) -> None:
        self.edges, self.rejected = [t], 0
        self.norms: list[float] = []
        self.status: Status | None = None
        self.t_end, self._controller, self._tolerance = t_end, controller, tolerance
        self._h = max(h, _smallest_step(t, t_end))

    def trial(self) -> tuple[float, float] | None:
        """Both ends of the next trial step; None where there is none."""
        t, t_end, clip = self.edges[-1], self.t_end, self._tolerance.clip_last
        if self.status is None and t >= t_end:
            self.status = Status.OK
        if self.status is None and len(self.norms) + self.rejected >= self._tolerance.max_steps:
            self.status = Status.MAX_STEPS
        if self.status is not None:
            return None
        size = min(self._h, t_end - t) if clip else self._h
        # A sliver left by rounding would cost a whole step.
        last = clip and size >= (t_end - t) * (1 - 1e-10)
        self._trial = (size, t_end if last else t + size)
        return t, self._trial[1]

    def accepts(self, norm: float) -> bool:
        """Whether the trial step with this error norm is accepted; the next one is chosen after it."""
        size, t_new = self._trial
        factor = float(self._controller.factor(torch.tensor(norm, dtype=torch.float64)))
        accepted = norm < 1.0 or (math.isfinite(norm) and abs(factor - 1.0) < self._tolerance.accept_small_change)
        self._h = size * factor
        if accepted:
            self.edges.append(t_new)
            self.norms.append(norm)
            return True
        self.rejected += 1
        if self._h < _smallest_step(self.edges[-1], self.t_end):
            self.status = Status.STEP_UNDERFLOW if math.isfinite(norm) else Status.NON_FINITE
        return False


def adaptive_loop(
    try_step: TryStep, t: float, t_end: float, h: float, controller: Controller, tolerance: Tolerance
) -> tuple[list[float], list[float], Status, int]:
    """Accepted edges, their error norms, status and number of rejections.

    The loop knows nothing of states and fields: ``try_step`` does the work, so that the control can be tested with a stub.
    """
    control = StepControl(t, t_end, h, controller, tolerance)
    while (trial := control.trial()) is not None:
        norm, commit = try_step(*trial)
        if control.accepts(norm):
            commit()
    assert control.status is not None
    return control.edges, control.norms, control.status, control.rejected


def _smallest_step(t: float, t_end: float) -> float:
    return _EPSILON * max(abs(t), abs(t_end))


def search_batch(
    f: Field,
    tableau: ButcherTableau,
    y: Tensor,
    t0: float,
    t_end: float,
    tolerance: Tolerance,
    output: DenseOutput | None = None,
    trial_step: TrialStep | None = None,
) -> Search:
    """One step sequence for the whole batch (the reference). Fills ``output`` with the accepted steps when given.

    ``trial_step`` takes the steps of a method that ends them with the field at the new state; by default `take_step` does.
    """
    controller = Controller(tableau.error_order)
    k = evaluate(f, t0, y)
    if not all_finite(k) or not all_finite(y):
        return Search([t0], y.new_zeros(0), Status.NON_FINITE, 0, 1)
    h = float(initial_step(f, tableau, t0, y, k, tolerance.rtol, tolerance.atol, per_sample=False))
    k_first: Tensor | None = k
    evaluations = 2

    def try_step(t: float, t_new: float) -> tuple[float, Callable[[], None]]:
        nonlocal k_first, evaluations
        evaluations += tableau.stages - (k_first is not None)
        if trial_step is not None and k_first is not None:
            step, norm = trial_step(t, t_new, y, k_first)
        else:
            step = take_step(f, tableau, t, t_new - t, y, k_first)
            norm = float(error_norm(tableau, t_new - t, y, step, tolerance.rtol, tolerance.atol, per_sample=False))
        k_first = step.stages[0]  # known for another trial from here

        def commit() -> None:
            nonlocal y, k_first
            if output is not None:
                output.add(t, t_new, y, step)
            y, k_first = step.y, (step.stages[-1] if tableau.fsal else None)

        return norm, commit

    edges, norms, status, rejected = adaptive_loop(try_step, t0, t_end, h, controller, tolerance)
    return Search(edges, torch.tensor(norms, dtype=time_dtype(y.dtype), device=y.device), status, rejected, evaluations)


def search_per_sample(f: Field, tableau: ButcherTableau, y: Tensor, t0: float, t_end: Tensor, tolerance: Tolerance) -> Search:
    """Every sample its own step sequence: trials run in lock-step, each sample accepts or rejects for itself.

    A sample that fails stops at its last accepted edge; the others go on.

    Args:
        f: Field that takes t of shape (B,).
        tableau: An adaptive method.
        y: (B, ...).
        t0: Common start.
        t_end: (B,) float64, each sample's last time.
        tolerance: Tolerances and limits; the step limit counts lock-step trials.
    """
    controller = Controller(tableau.error_order)
    t = torch.full_like(t_end, t0)
    k = evaluate(f, t, y)
    non_finite = ~(_finite_samples(y) & _finite_samples(k))
    underflow = torch.zeros_like(non_finite)
    smallest = _EPSILON * torch.maximum(t.abs(), t_end.abs())
    h = torch.maximum(initial_step(f, tableau, t, y, k, tolerance.rtol, tolerance.atol, per_sample=True), smallest)
    edges, norms = t[None].clone(), t.new_zeros(0, len(t))  # row m: every sample's edge after its m-th acceptance
    count = torch.zeros_like(t, dtype=torch.long)
    rejected = torch.zeros_like(count)
    trials, evaluations, timed_out = 0, 2, False
    while bool((active := (t < t_end) & ~non_finite & ~underflow).any()):
        if trials >= tolerance.max_steps:
            timed_out = True
            break
        remaining = t_end - t
        trial = torch.minimum(h, remaining)
        trial = torch.where(trial >= remaining * (1 - 1e-10), remaining, trial)
        trial = torch.where(active, trial, torch.zeros_like(trial))
        step = take_step(f, tableau, t, trial, y, k)
        trials += 1
        evaluations += tableau.stages - 1
        norm = error_norm(tableau, trial, y, step, tolerance.rtol, tolerance.atol, per_sample=True)
        accepted = controller.accepts(norm) & active
        t_new = torch.where(trial == remaining, t_end, t + trial)
        y, t = _select(accepted, step.y, y), _select(accepted, t_new, t)
        if tableau.fsal:
            k = _select(accepted, step.stages[-1], k)
        else:
            k = evaluate(f, t, y)
            evaluations += 1
        count = count + accepted
        rejected = rejected + (active & ~accepted)
        if int(count.max()) == len(edges):
            edges = torch.cat([edges, edges[-1:]])
            norms = torch.cat([norms, torch.zeros_like(t)[None]])
        samples = accepted.nonzero().squeeze(1)
        edges[count[samples], samples] = t[samples]
        norms[count[samples] - 1, samples] = norm[samples].to(norms.dtype)
        h = torch.where(active, trial * controller.factor(norm), h)
        stuck = active & ~accepted & (h < smallest)
        finite = torch.isfinite(norm)
        underflow, non_finite = underflow | (stuck & finite), non_finite | (stuck & ~finite)
    # A sample that needed fewer steps waits at its last edge: steps of length zero.
    edges = torch.cummax(edges, dim=0).values
    status = _worst_status(non_finite, underflow, timed_out)
    return Search(edges, norms.to(time_dtype(y.dtype)), status, int(rejected.max()), evaluations)


def _worst_status(non_finite: Tensor, underflow: Tensor, timed_out: bool) -> Status:
    if bool(non_finite.any()):
        return Status.NON_FINITE
    if bool(underflow.any()):
        return Status.STEP_UNDERFLOW
    return Status.MAX_STEPS if timed_out else Status.OK


def _select(accepted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(accepted.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def _finite_samples(x: Tensor) -> Tensor:
    return torch.isfinite(x).reshape(x.shape[0], -1).all(dim=1)
