"""Several batches solved together, each with the adaptive steps that it would take alone.

Steps chosen by a batch-wide norm depend on the members of the batch, so batches cannot simply be merged, but one small batch
leaves a GPU idle. Here many batches take their trial steps together, and each batch accepts or rejects its own.
"""

from __future__ import annotations

import torch

from ltnode.errors import InputError
from ltnode.ode.controller import Controller, check_tolerances, initial_step
from ltnode.ode.dense import DenseOutput
from ltnode.ode.problem import check_times
from ltnode.ode.search import StepControl, Tolerance
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.step import Field, Step, all_finite, error_norm, evaluate, take_step
from ltnode.ode.tableau import ButcherTableau, get_tableau
from ltnode.typing import Float, Tensor


@torch.no_grad()
def odesolve_batches(
    f: Field,
    y0: Float[Tensor, "N *state"],
    times: Float[Tensor, "S *batch"],
    size: int,
    rtol: float = 1e-2,
    atol: float = 1e-2,
    method: str = "dopri5",
    *,
    clip_last: bool = True,
    max_steps: int = 5000,
) -> tuple[Float[Tensor, "S N *state"], list[Stats]]:
    """Solve consecutive batches of ``size`` inputs from t = 0 as `odesolve` would; return states and the work per batch.

    Args:
        f: ``f(t, y)`` that takes t of shape (N,) and treats inputs independently.
        y0: Initial states of all batches.
        times: (S,) or (S, N), not negative.
        size: Number of inputs per batch; it must divide N.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        method: An adaptive FSAL method.
        clip_last: See `odesolve`.
        max_steps: See `odesolve`; the limit applies to each batch.
    """
    tableau = get_tableau(method)
    if size < 1 or len(y0) % size or not len(y0):
        raise InputError(f"the number of inputs must be a positive multiple of the batch size {size}, not {len(y0)}")
    if not tableau.fsal or not tableau.adaptive:
        raise InputError(f"odesolve_batches needs an adaptive FSAL method such as 'dopri5', not {tableau.name!r}")
    times = check_times(times, y0, 0.0)
    check_tolerances(rtol, atol)
    return _JointSolve(f, tableau, y0, times, size, Tolerance(rtol, atol, max_steps, clip_last)).run()


class _JointSolve:
    """States (batches, size, ...) and the step-size control of every batch."""

    def __init__(self, f: Field, tableau: ButcherTableau, y0: Tensor, times: Tensor, size: int, tolerance: Tolerance) -> None:
        self._f, self._tableau, self._size, self._tolerance = f, tableau, size, tolerance
        self._own_times, self._n_times = times.ndim == 2, len(times)
        self._y0 = self._y = y0.unflatten(0, (-1, size))
        ends = times.to(torch.float64).max(dim=0).values.reshape(-1, size if self._own_times else 1)
        self._ends: list[float] = ends.max(dim=1).values.expand(len(self._y)).tolist()
        self._k = evaluate(self._field, 0.0, self._y)
        if not all_finite(self._y) or not all_finite(self._k):
            raise SolverError(Status.NON_FINITE, 0.0, max(self._ends), Stats(0, 0, 1))
        self._controls = self._first_controls()
        self._output = DenseOutput(tableau, times if self._own_times else times[:, None].expand(-1, len(self._y)))

    def _field(self, t: Tensor, state: Tensor) -> Tensor:
        t = t.repeat_interleave(self._size) if t.ndim else t
        return self._f(t, state.flatten(0, 1)).unflatten(0, (-1, self._size))

    def _first_controls(self) -> list[StepControl]:
        y, rtol, atol = self._y, self._tolerance.rtol, self._tolerance.atol
        start = torch.zeros(len(y), dtype=torch.float64, device=y.device)
        sizes = initial_step(self._field, self._tableau, start, y, self._k, rtol, atol, per_sample=True).tolist()
        controller = Controller(self._tableau.error_order)
        return [StepControl(0.0, end, h, controller, self._tolerance) for end, h in zip(self._ends, sizes, strict=True)]

    def run(self) -> tuple[Tensor, list[Stats]]:
        while any(trials := [self._trial(control) for control in self._controls]):
            self._advance(trials)
        states = self._output.result(self._as_output(self._y0))
        stats = [self._stats(control) for control in self._controls]
        if not all_finite(states):
            raise SolverError(Status.NON_FINITE, max(self._ends), max(self._ends), stats[0])
        return states.reshape(self._n_times, -1, *self._y0.shape[2:]), stats

    def _trial(self, control: StepControl) -> tuple[float, float] | None:
        trial = control.trial()
        if control.status not in (None, Status.OK):
            raise SolverError(control.status, control.edges[-1], control.t_end, self._stats(control))
        return trial

    def _advance(self, trials: list[tuple[float, float] | None]) -> None:
        """Take one trial step with every batch; a batch that has reached its end takes a step of length zero."""
        y, k, controls, tolerance = self._y, self._k, self._controls, self._tolerance
        intervals = [trial or (control.edges[-1],) * 2 for trial, control in zip(trials, controls, strict=True)]
        left, right = torch.tensor(intervals, dtype=torch.float64).to(y.device).unbind(dim=1)
        step = take_step(self._field, self._tableau, left, right - left, y, k)
        norms = error_norm(self._tableau, right - left, y, step, tolerance.rtol, tolerance.atol, per_sample=True).tolist()
        decisions = zip(trials, controls, norms, strict=True)
        accepted = [trial is not None and control.accepts(norm) for trial, control, norm in decisions]
        if not any(accepted):
            return
        new_k = step.stages[-1]
        if not all(accepted):
            mask = torch.tensor(accepted, device=y.device)
            right = torch.where(mask, right, left)
            step, new_k = _where_accepted(mask, step, y, k)
        stages = tuple(map(self._as_output, step.stages))
        self._output.add(self._per_input(left), self._per_input(right), self._as_output(y), Step(self._as_output(step.y), stages))
        self._y, self._k = step.y, new_k

    def _per_input(self, t: Tensor) -> Tensor:
        return t.repeat_interleave(self._size) if self._own_times else t

    def _as_output(self, x: Tensor) -> Tensor:
        """Rows of the dense output: one per input if inputs have their own times, else one per batch."""
        return x.flatten(0, 1) if self._own_times else x

    def _stats(self, control: StepControl) -> Stats:
        trials = len(control.norms) + control.rejected
        return Stats(len(control.norms), control.rejected, 2 + trials * (self._tableau.stages - 1))


def _where_accepted(accepted: Tensor, step: Step, y: Tensor, k: Tensor) -> tuple[Step, Tensor]:
    """The step of the batches that accepted it, and y for the others; and the field at the resulting states.

    The stages of a rejected trial enter the dense output with length zero. They may be infinite, so they are set to zero.
    """
    chosen = accepted.reshape(-1, *[1] * (y.ndim - 1))
    stages = (k, *(torch.where(chosen, stage, torch.zeros_like(stage)) for stage in step.stages[1:]))
    return Step(torch.where(chosen, step.y, y), stages), torch.where(chosen, step.stages[-1], k)
