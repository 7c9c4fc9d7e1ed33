"""Several batches solved side by side, each with the adaptive steps that it would have alone.

Steps by the norm of a batch depend on its members, so a result belongs to a size of batch; and one small batch leaves a GPU idle.
Here the trial steps of many batches are taken together, and each batch accepts or rejects for itself.
"""

from __future__ import annotations

import torch

from ltnode.errors import InputError
from ltnode.ode.controller import Controller, check_tolerances, initial_step
from ltnode.ode.dense import DenseOutput
from ltnode.ode.search import StepControl, Tolerance
from ltnode.ode.solve import check_times
from ltnode.ode.status import SolverError, Stats, Status
from ltnode.ode.step import Field, Step, all_finite, error_norm, evaluate, take_step
from ltnode.ode.tableau import get_tableau
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
    """The states of `odesolve` from t = 0 for consecutive batches of ``size`` inputs, and the work of each; no gradient.

    Args:
        f: ``f(t, y)`` that takes t of shape (N,) and treats every input for itself.
        y0: Initial states of all batches.
        times: (S,) or (S, N), not before 0.
        size: Inputs of a batch; it must divide N.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        method: An adaptive method whose last stage is the field at the new state.
        clip_last: As in `odesolve`.
        max_steps: As in `odesolve`, per batch.

    Raises:
        SolverError: The solve of a batch failed.
        InputError: N is not a multiple of the size, the method does not fit, or times and tolerances are impossible.
    """
    tableau = get_tableau(method)
    if size < 1 or len(y0) % size or not len(y0):
        raise InputError(f"{len(y0)} inputs are not a number of batches of {size}")
    if not tableau.fsal or not tableau.adaptive:
        raise InputError(f"method {method!r} has no error estimate, or does not end its steps with the field at the new state")
    times = check_times(times, y0, 0.0)
    check_tolerances(rtol, atol)
    tolerance = Tolerance(rtol, atol, max_steps, clip_last)
    y = y0.unflatten(0, (-1, size))

    def field(t: Tensor, state: Tensor) -> Tensor:
        every = t.repeat_interleave(size) if t.ndim else t
        return f(every, state.flatten(0, 1)).unflatten(0, (-1, size))

    def per_input(x: Tensor) -> Tensor:
        return x.repeat_interleave(size) if times.ndim == 2 else x

    def batched(x: Tensor) -> Tensor:
        """As the dense output takes it: one row per batch where its inputs share their end-times, else one per input."""
        return x.flatten(0, 1) if times.ndim == 2 else x

    ends = times.to(torch.float64).max(dim=0).values.reshape(-1, size if times.ndim == 2 else 1)
    last = ends.max(dim=1).values.expand(len(y)).tolist()
    k = evaluate(field, 0.0, y)
    if not all_finite(y) or not all_finite(k):
        raise SolverError(Status.NON_FINITE, 0.0, max(last), Stats(0, 0, 1))
    start = torch.zeros(len(y), dtype=torch.float64, device=y.device)
    first = initial_step(field, tableau, start, y, k, rtol, atol, per_sample=True).tolist()
    controller = Controller(tableau.error_order)
    controls = [StepControl(0.0, end, h, controller, tolerance) for end, h in zip(last, first, strict=True)]
    output = DenseOutput(tableau, times if times.ndim == 2 else times[:, None].expand(-1, len(y)))
    while any(trials := [_trial(control, tableau.stages) for control in controls]):
        # A batch that is done waits with steps of length zero.
        ends_of = [trial or (control.edges[-1],) * 2 for trial, control in zip(trials, controls, strict=True)]
        left, right = torch.tensor(ends_of, dtype=torch.float64).to(y.device).unbind(dim=1)
        step = take_step(field, tableau, left, right - left, y, k)
        norms = error_norm(tableau, right - left, y, step, rtol, atol, per_sample=True).tolist()
        going = zip(trials, controls, norms, strict=True)
        verdicts = [trial is not None and control.accepts(norm) for trial, control, norm in going]
        if not any(verdicts):
            continue
        slope = step.stages[-1]
        if not all(verdicts):
            accepted = torch.tensor(verdicts, device=y.device)
            right = torch.where(accepted, right, left)
            step, slope = _where_accepted(accepted, step, y, k)
        output.add(per_input(left), per_input(right), batched(y), Step(batched(step.y), tuple(map(batched, step.stages))))
        y, k = step.y, slope
    states = output.result(batched(y0.unflatten(0, (-1, size))))
    if not all_finite(states):
        raise SolverError(Status.NON_FINITE, max(last), max(last), _stats(controls[0], tableau.stages))
    return states.reshape(len(times), *y0.shape), [_stats(control, tableau.stages) for control in controls]


def _where_accepted(accepted: Tensor, step: Step, y: Tensor, k: Tensor) -> tuple[Step, Tensor]:
    """The step of the batches that accepted it and none of the others, who stay at y, and the field at the new states.

    Whatever the stages of a rejected trial hold, they enter the dense output with length zero: zeros, lest it be infinite.
    """
    chosen = accepted.reshape(-1, *[1] * (y.ndim - 1))
    stages = (k, *(torch.where(chosen, stage, torch.zeros_like(stage)) for stage in step.stages[1:]))
    return Step(torch.where(chosen, step.y, y), stages), torch.where(chosen, step.stages[-1], k)


def _stats(control: StepControl, stages: int) -> Stats:
    trials = len(control.norms) + control.rejected
    return Stats(len(control.norms), control.rejected, 2 + trials * (stages - 1))


def _trial(control: StepControl, stages: int) -> tuple[float, float] | None:
    trial = control.trial()
    if control.status not in (None, Status.OK):
        raise SolverError(control.status, control.edges[-1], control.t_end, _stats(control, stages))
    return trial
