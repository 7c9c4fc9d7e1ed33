"""Failures of a solve, their messages and return values, and invalid input."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ode_problems import F64, swirl
from torch import Tensor

from ltnode.errors import InputError, LTNodeError
from ltnode.ode import TABLEAUS, SolverError, Stats, Status, TrainingGrid, odesolve

Field = Callable[[Tensor, Tensor], Tensor]


def _blow_up(t: Tensor, y: Tensor) -> Tensor:
    """The solution y = 1 / (1 - t) diverges at t = 1."""
    return y * y


def _nan_after_half(t: Tensor, y: Tensor) -> Tensor:
    late = (t if t.ndim == 0 else t[:, None]) > 0.5
    return torch.where(late, torch.full_like(y, torch.nan), y)


FAILURES: dict[str, tuple[Field, dict[str, Any], Status, Callable[[float], float]]] = {
    "max steps": (lambda t, y: -y, {"max_steps": 2}, Status.MAX_STEPS, lambda t: math.exp(-t)),
    "blow-up": (_blow_up, {}, Status.STEP_UNDERFLOW, lambda t: 1 / (1 - t)),
    "NaN in the field": (_nan_after_half, {}, Status.NON_FINITE, math.exp),
}
TIMES = torch.tensor([2.0, 0.0, 0.02, 0.4, 1.5], dtype=F64)


@pytest.mark.parametrize(("control", "grad"), [("batch", True), ("batch", False), ("sample", False)])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_solve_returns_what_it_reached(failure: str, control: str, grad: bool) -> None:
    """throw=False returns the solution up to the last accepted edge (within 1e-3 at tolerance 1e-5 per step) and NaN beyond."""
    f, options, status, exact = FAILURES[failure]
    y0 = torch.ones(2, 1, dtype=F64)
    with torch.set_grad_enabled(grad):
        sol = odesolve(f, y0, TIMES, 1e-5, 1e-5, control=control, throw=False, **options)
    assert sol.status is status
    reached = sol.grid[-1].max() >= TIMES
    assert reached.tolist() == [False, True, True, True, False]
    assert sol.states[~reached].isnan().all()
    for t, state in zip(TIMES[reached].tolist(), sol.states[reached], strict=True):
        torch.testing.assert_close(state, torch.full_like(state, exact(t)), rtol=0, atol=1e-3)
    assert sol.stats.n_accepted == len(sol.grid) - 1 == len(sol.error_norms)


@pytest.mark.parametrize("failure", FAILURES)
def test_a_failed_solve_has_gradients_at_what_it_reached(failure: str) -> None:
    f, options, *_ = FAILURES[failure]
    y0 = torch.ones(2, 1, dtype=F64, requires_grad=True)
    sol = odesolve(f, y0, TIMES, 1e-5, 1e-5, throw=False, **options)
    (slope,) = torch.autograd.grad(sol.states[2].sum(), y0)
    assert torch.isfinite(slope).all()
    assert (slope != 0).all()


@pytest.mark.parametrize("control", ["batch", "sample"])
@pytest.mark.parametrize("failure", FAILURES)
def test_the_error_says_where_why_and_what_to_do(failure: str, control: str) -> None:
    """The error has status and statistics, and its message contains the remedy for that status."""
    f, options, status, _ = FAILURES[failure]
    with pytest.raises(SolverError, match=re.escape(status.remedy)) as caught:
        odesolve(f, torch.ones(2, 1, dtype=F64), TIMES, 1e-5, 1e-5, control=control, **options)
    error = caught.value
    assert isinstance(error, LTNodeError)
    assert error.status is status
    assert error.stats.n_accepted > 0
    assert f"of 2 ({status.value}) after {error.stats.n_accepted} accepted and {error.stats.n_rejected} rejected" in str(error)


def test_every_status_has_a_remedy() -> None:
    assert all(isinstance(status.remedy, str) and status.remedy for status in Status)
    assert {status.value for status in Status} == {"ok", "max_steps", "step_underflow", "non_finite"}


@pytest.mark.parametrize("times", [[1.0, 0.0], [0.0, 0.0]], ids=["later", "at the start"])
@pytest.mark.parametrize(
    "how",
    [{}, {"control": "sample"}, {"grid": "training"}, {"grid": [0.0, 1.0]}],
    ids=["adaptive", "sample", "training grid", "fixed"],
)
def test_a_start_that_is_not_finite(how: dict[str, Any], times: list[float]) -> None:
    """NaN in y0 is detected in every mode, also if all times are t0, with at most two evaluations."""
    how = {**how, "grid": TrainingGrid()} if how.get("grid") == "training" else how
    y0 = torch.tensor([[1.0], [torch.nan]], dtype=F64)
    sol = odesolve(swirl, y0, times, throw=False, **how)
    assert sol.status is Status.NON_FINITE
    if "control" not in how and how.get("grid") != [0.0, 1.0]:
        assert sol.stats.n_evaluations <= 2
    with pytest.raises(SolverError, match="check input and parameters for NaN"):
        odesolve(swirl, y0, times, **how)


def test_divergence_on_a_fixed_grid_is_reported() -> None:
    """Euler with unstable steps overflows float32: there is no error estimate, but the result is checked."""
    sol = odesolve(lambda t, y: -1e6 * y, torch.ones(1, 1), [20.0], method="euler", grid=torch.linspace(0, 20, 21), throw=False)
    assert sol.status is Status.NON_FINITE


def test_statistics_are_plain_numbers() -> None:
    stats = odesolve(swirl, torch.ones(2, 1), [1.0]).stats
    assert isinstance(stats, Stats)
    assert all(type(x) is int for x in (stats.n_accepted, stats.n_rejected, stats.n_evaluations, stats.n_refreshed))


Y0 = torch.ones(3, 2)
MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "times of no shape": ({"times": torch.tensor(1.0)}, r"times must have shape \(S,\) or \(S, B\).*not \(\)"),
    "times of three axes": ({"times": torch.ones(2, 3, 1)}, r"times must have shape .* not \(2, 3, 1\)"),
    "no times": ({"times": torch.ones(0)}, r"S >= 1, not \(0,\)"),
    "times for another batch": ({"times": torch.ones(2, 5)}, r"times of shape \(2, 5\) need y0 with a batch of 5, not \(3, 2\)"),
    "own times without a batch": ({"y0": torch.tensor(1.0), "times": torch.ones(2, 1)}, "need y0 with a batch of 1"),
    "negative time": ({"times": [1.0, -0.25]}, r"not be smaller than t0 = 0\.0; the smallest is -0\.25"),
    "time before t0": ({"times": [1.0], "t0": 2.0}, r"not be smaller than t0 = 2\.0"),
    "NaN time": ({"times": [1.0, math.nan]}, "NaN or inf"),
    "infinite time": ({"times": [1.0, math.inf]}, "NaN or inf"),
    "integer state": ({"y0": torch.ones(3, 2, dtype=torch.long)}, r"floating-point tensor, not torch\.int64.*y0\.float\(\)"),
    "complex state": ({"y0": torch.ones(3, 2, dtype=torch.complex64)}, r"floating-point tensor, not torch\.complex64"),
    "state as a list": ({"y0": [1.0, 2.0]}, "floating-point tensor, not list"),
    "misspelt method": ({"method": "dopr5"}, r"unknown method 'dopr5'\. Did you mean 'dopri5'\?.*Valid: bosh3"),
    "method of another kind": ({"method": 5}, "unknown method 5"),
    "method that cannot be hashed": ({"method": ["dopri5"]}, "unknown method"),
    "adaptive rk4": ({"method": "rk4"}, r"'rk4' has no error estimate.*grid=\[t0, \.\.\., t_end\].*'dopri5'"),
    "training grid with euler": ({"method": "euler", "grid": TrainingGrid()}, "'euler' has no error estimate"),
    "zero rtol": ({"rtol": 0.0}, r"rtol must be positive and finite.*1e-2.*not 0\.0"),
    "negative atol": ({"atol": -1e-3}, r"atol must be positive and finite.*not -0\.001"),
    "NaN tolerance": ({"rtol": math.nan}, "rtol must be positive and finite.*not nan"),
    "infinite tolerance": ({"atol": math.inf}, "atol must be positive and finite.*not inf"),
    "no steps allowed": ({"max_steps": 0}, "max_steps must be at least 1, not 0"),
    "unknown control": ({"control": "samples"}, "control must be 'batch' or 'sample', not 'samples'"),
    "own steps on a training grid": ({"control": "sample", "grid": TrainingGrid()}, "a training grid is shared by the batch"),
    "own steps without a batch": ({"control": "sample", "y0": torch.tensor(1.0)}, r"y0 must have shape \(B, \.\.\.\)"),
    "own steps unclipped": ({"control": "sample", "clip_last": False}, "supports only clip_last=True"),
    "own steps with a loose rule": ({"control": "sample", "accept_small_change": 0.1}, "accept_small_change=0"),
    "grid of one edge": ({"grid": [0.0]}, r"at least two edges.*not shape \(1,\)"),
    "grid of no edge": ({"grid": []}, "at least two edges"),
    "grid of three axes": ({"grid": torch.zeros(2, 2, 2)}, r"not shape \(2, 2, 2\)"),
    "grid that goes back": ({"grid": [0.0, 0.6, 0.5, 1.0]}, "grid edges must increase"),
    "grid that stays": ({"grid": [0.0, 0.5, 0.5, 1.0]}, r"strictly for shape \(n\+1,\)"),
    "grid with NaN": ({"grid": [0.0, math.nan, 1.0]}, "must not be NaN"),
    "own grid that goes back": ({"grid": torch.tensor([[0.0] * 3, [0.5, 0.5, 1.0], [1.0, 1.0, 0.9]])}, r"weakly for \(n\+1, B\)"),
    "grid that starts late": ({"grid": [0.1, 1.0]}, r"grid must start at t0 = 0\.0, not at 0\.1"),
    "grid that ends early": ({"grid": [0.0, 0.9]}, r"largest time 1 lies beyond the end of the grid, 0\.9; add edges"),
    "own grid that ends early": ({"grid": torch.tensor([[0.0] * 3, [1.0, 1.0, 0.9]])}, r"beyond the end of the grid, 0\.9"),
    "grid for another batch": ({"grid": torch.tensor([[0.0] * 4, [1.0] * 4])}, r"\(2, 4\) needs y0 with a batch of 4"),
    "field of the wrong shape": ({"f": lambda t, y: y[:, :1]}, r"the field returned \(3, 1\) for a state of shape \(3, 2\)"),
    "field that returns nothing": ({"f": lambda t, y: None}, "the field returned NoneType"),
}  # fmt: skip


@pytest.mark.no_typecheck
@pytest.mark.parametrize("mistake", MISTAKES)
def test_bad_input_gets_a_clear_error(mistake: str) -> None:
    """Each message states the requirement, the given value or the remedy; InputError is also a ValueError."""
    change, message = MISTAKES[mistake]
    arguments: dict[str, Any] = {"f": swirl, "y0": Y0, "times": [0.3, 1.0], **change}
    with pytest.raises(InputError, match=re.compile(message, re.DOTALL)) as caught:
        odesolve(**arguments)
    assert isinstance(caught.value, ValueError)


def test_methods_for_fixed_grids_work_there() -> None:
    """The remedy in the error message for an adaptive rk4 works."""
    for method in ("rk4", "euler"):
        assert not TABLEAUS[method].adaptive
        assert odesolve(swirl, Y0, [1.0], method=method, grid=[0.0, 0.5, 1.0]).error_norms.numel() == 0


def test_repr_of_a_solution_is_one_line() -> None:
    sol = odesolve(swirl, Y0, [0.5, 1.0])
    work = f"{sol.stats.n_accepted} steps, {sol.stats.n_rejected} rejected, {sol.stats.n_evaluations} evaluations"
    assert repr(sol) == f"Solution(ok, states (2, 3, 2) float32, {work})"
