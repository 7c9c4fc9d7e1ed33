"""Adaptive search for the accepted step edges, one sequence for the batch or one per sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ltnode.ode.controller import Controller, initial_step
from ltnode.ode.dense import DenseOutput
from ltnode.ode.status import Status
from ltnode.ode.step import Field, Step, all_finite, error_norm, evaluate, take_step, time_dtype
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Tensor

_EPSILON = 16 * torch.finfo(torch.float64).eps
"""Smallest step size relative to the time; a smaller step would not change the time reliably."""


@dataclass(frozen=True)
class Tolerance:
    """Tolerances of the error control and limits of the search."""

    rtol: float = 1e-2
    atol: float = 1e-2
    max_steps: int = 5000
    clip_last: bool = True
    accept_small_change: float = 0.0
    """Compatibility with the paper's code: accept a failed step whose size would change by less than this fraction."""


@dataclass
class Search:
    """Accepted edges t_0 < ... < t_n, the error norms of their steps, (n,), and the work of the search.

    Under per-sample control, edges (n+1, B) and norms (n, B) have one column per sample, and ``n_rejected`` is the maximum.
    """

    edges: Sequence[float] | Tensor
    norms: Tensor
    status: Status
    n_rejected: int
    n_evaluations: int


class StepControl:
    """Step-size control of one trajectory: it proposes trial steps and accepts or rejects each by its error norm.

    It needs neither states nor fields, so that it can be tested with given error norms. ``edges`` and ``norms`` are those of the
    accepted steps, ``rejected`` counts the other trials, and ``status`` is None while the trajectory is unfinished.
    """

    def __init__(self, t: float, t_end: float, h: float, controller: Controller, tolerance: Tolerance) -> None:
        self.edges, self.rejected = [t], 0
        self.norms: list[float] = []
        self.status: Status | None = None
        self.t_end, self._controller, self._tolerance = t_end, controller, tolerance
        self._h = max(h, _smallest_step(t, t_end))

    def trial(self) -> tuple[float, float] | None:
        """Start and end of the next trial step, or None when the trajectory has ended or failed."""
        t, t_end, clip = self.edges[-1], self.t_end, self._tolerance.clip_last
        if self.status is None and t >= t_end:
            self.status = Status.OK
        if self.status is None and len(self.norms) + self.rejected >= self._tolerance.max_steps:
            self.status = Status.MAX_STEPS
        if self.status is not None:
            return None
        size = min(self._h, t_end - t) if clip else self._h
        # Extend the step over a remainder that is only rounding error, which would otherwise cost another step.
        last = clip and size >= (t_end - t) * (1 - 1e-10)
        self._trial = (size, t_end if last else t + size)
        return t, self._trial[1]

    def accepts(self, norm: float) -> bool:
        """Accept or reject the trial step with this error norm, and choose the size of the next one."""
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
) -> Search:
    """Find one step sequence for the whole batch (the reference).

    The accepted steps are added to ``output`` if it is given.
    """
    slope = evaluate(f, t0, y)
    if not all_finite(slope) or not all_finite(y):
        return Search([t0], y.new_zeros(0), Status.NON_FINITE, 0, 1)
    rtol, atol = tolerance.rtol, tolerance.atol
    h = float(initial_step(f, tableau, t0, y, slope, rtol, atol, per_sample=False))
    control = StepControl(t0, t_end, h, Controller(tableau.error_order), tolerance)
    k: Tensor | None = slope
    evaluations = 2
    while (trial := control.trial()) is not None:
        t, t_new = trial
        evaluations += tableau.stages - (k is not None)
        step = take_step(f, tableau, t, t_new - t, y, k)
        norm = float(error_norm(tableau, t_new - t, y, step, rtol, atol, per_sample=False))
        k = step.stages[0]  # another trial from the same state reuses it
        if control.accepts(norm):
            if output is not None:
                output.add(t, t_new, y, step)
            y, k = step.y, (step.stages[-1] if tableau.fsal else None)
    assert control.status is not None
    norms = torch.tensor(control.norms, dtype=time_dtype(y.dtype), device=y.device)
    return Search(control.edges, norms, control.status, control.rejected, evaluations)


def search_per_sample(f: Field, tableau: ButcherTableau, y: Tensor, t0: float, t_end: Tensor, tolerance: Tolerance) -> Search:
    """Find one step sequence per sample: trial steps are taken together, each sample accepts or rejects its own.

    A sample that fails stops at its last accepted edge; the others continue. The field takes t of shape (B,); t_end (B,) is the
    last time of each sample in float64; max_steps limits the number of trials in lock-step.
    """
    samples = _Samples(f, tableau, y, t0, t_end, tolerance)
    while bool((active := samples.active()).any()):
        if samples.trials >= tolerance.max_steps:
            return samples.result(timed_out=True)
        samples.advance(active)
    return samples.result(timed_out=False)


class _Samples:
    """Time, state, step size and accepted edges of every sample."""

    def __init__(self, f: Field, tableau: ButcherTableau, y: Tensor, t0: float, t_end: Tensor, tolerance: Tolerance) -> None:
        self._f, self._tableau, self._tolerance = f, tableau, tolerance
        self._controller = Controller(tableau.error_order)
        self._t, self._t_end, self._y = torch.full_like(t_end, t0), t_end, y
        self._k = evaluate(f, self._t, y)
        self._non_finite = ~(_finite_samples(y) & _finite_samples(self._k))
        self._underflow = torch.zeros_like(self._non_finite)
        self._smallest = _EPSILON * torch.maximum(self._t.abs(), t_end.abs())
        h = initial_step(f, tableau, self._t, y, self._k, tolerance.rtol, tolerance.atol, per_sample=True)
        self._h = torch.maximum(h, self._smallest)
        # Row m of the edges contains the edge of every sample after its m-th accepted step.
        self._edges, self._norms = self._t[None].clone(), self._t.new_zeros(0, len(self._t))
        self._accepted = torch.zeros_like(self._t, dtype=torch.long)
        self._rejected = torch.zeros_like(self._accepted)
        self.trials, self._evaluations = 0, 2

    def active(self) -> Tensor:
        """(B,) mask of the samples that have neither reached their end nor failed."""
        return (self._t < self._t_end) & ~self._non_finite & ~self._underflow

    def advance(self, active: Tensor) -> None:
        """Take one trial step with the active samples; the others take a step of length zero."""
        remaining = self._t_end - self._t
        size = torch.minimum(self._h, remaining)
        size = torch.where(size >= remaining * (1 - 1e-10), remaining, size)
        size = torch.where(active, size, torch.zeros_like(size))
        step = take_step(self._f, self._tableau, self._t, size, self._y, self._k)
        self.trials += 1
        self._evaluations += self._tableau.stages - 1
        norm = error_norm(self._tableau, size, self._y, step, self._tolerance.rtol, self._tolerance.atol, per_sample=True)
        accepted = self._controller.accepts(norm) & active
        self._move(accepted, step, torch.where(size == remaining, self._t_end, self._t + size))
        self._record(accepted, norm)
        self._rejected = self._rejected + (active & ~accepted)
        self._h = torch.where(active, size * self._controller.factor(norm), self._h)
        stuck, finite = active & ~accepted & (self._h < self._smallest), torch.isfinite(norm)
        self._underflow, self._non_finite = self._underflow | (stuck & finite), self._non_finite | (stuck & ~finite)

    def _move(self, accepted: Tensor, step: Step, t_new: Tensor) -> None:
        """Move the accepting samples to the end of their step."""
        self._y, self._t = _select(accepted, step.y, self._y), _select(accepted, t_new, self._t)
        if self._tableau.fsal:
            self._k = _select(accepted, step.stages[-1], self._k)
        else:
            self._k = evaluate(self._f, self._t, self._y)
            self._evaluations += 1

    def _record(self, accepted: Tensor, norm: Tensor) -> None:
        """Append the new edges and error norms of the accepting samples."""
        self._accepted = self._accepted + accepted
        if int(self._accepted.max()) == len(self._edges):
            self._edges = torch.cat([self._edges, self._edges[-1:]])
            self._norms = torch.cat([self._norms, torch.zeros_like(self._t)[None]])
        samples = accepted.nonzero().squeeze(1)
        self._edges[self._accepted[samples], samples] = self._t[samples]
        self._norms[self._accepted[samples] - 1, samples] = norm[samples].to(self._norms.dtype)

    def result(self, timed_out: bool) -> Search:
        """The edges of all samples, padded with steps of length zero, and the worst status of any sample."""
        status = Status.MAX_STEPS if timed_out else Status.OK
        if bool(self._non_finite.any()):
            status = Status.NON_FINITE
        elif bool(self._underflow.any()):
            status = Status.STEP_UNDERFLOW
        edges = torch.cummax(self._edges, dim=0).values
        return Search(edges, self._norms.to(time_dtype(self._y.dtype)), status, int(self._rejected.max()), self._evaluations)


def _select(accepted: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(accepted.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def _finite_samples(x: Tensor) -> Tensor:
    return torch.isfinite(x).reshape(x.shape[0], -1).all(dim=1)
