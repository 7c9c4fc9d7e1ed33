"""Agreement with scipy, torchdiffeq, torchode, the paper's Algorithm 1, and values measured with the published code."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
import torchode
from ode_problems import ADAPTIVE, DETEST, F64, Counted, MLPField, Problem, per_sample_time, swirl
from torch import Tensor, nn
from torch.nn import functional
from torchdiffeq import odeint

from ltnode.ode import TABLEAUS, odesolve


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("problem", DETEST, ids=lambda p: p.name)
def test_detest_problems_against_dop853(problem: Problem, method: str) -> None:
    """Global error over [0, 10], in units of atol + rtol |y|, against scipy's DOP853 at 1e-13.

    The control bounds the error of each step, not their sum, which grows with the number of steps (9 to 104 here) and with the
    amplification by the problem. The limit is 20 tolerances, and twice the measured error for two problems: B1, a predator-prey
    cycle (65 measured, 66 for scipy's RK23), and D1, an orbit whose phase drifts (254 measured, 249 for scipy's RK45).
    """
    tolerance = 1e-4 if method == "bosh3" else 1e-6
    times = np.linspace(0.0, problem.t_end, 41)
    with torch.no_grad():
        sol = odesolve(problem.f, torch.tensor([problem.y0], dtype=F64), torch.from_numpy(times), tolerance, tolerance, method)
    expected = problem.reference(tuple(times))
    error = np.abs(sol.states[:, 0].numpy() - expected) / (tolerance + tolerance * np.abs(expected))
    assert error.max() < {"B1": 130, "D1": 500}.get(problem.name, 20)


# torchdiffeq uses Shampine's error estimate, two thirds of that of the embedded fourth-order solution in every stage.
_TORCHDIFFEQ = dataclasses.replace(TABLEAUS["dopri5"], error=tuple(2 / 3 * e for e in TABLEAUS["dopri5"].error or ()))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
@pytest.mark.parametrize("problem", [p for p in DETEST if p.name in {"A3", "B1", "D1", "E2"}], ids=lambda p: p.name)
def test_unclipped_dopri5_is_that_of_torchdiffeq(problem: Problem, tolerance: float) -> None:
    """torchdiffeq has the same starting step, control and interpolant, does not clip, and uses two thirds of the error weights.

    With these weights both take the same steps and the same number of evaluations. Rounding of the error estimate changes step
    sizes by a relative 1e-10, which the field amplifies, hence 1e-7 for the states.
    """
    y0 = torch.tensor([problem.y0], dtype=F64)
    times = torch.linspace(0.0, problem.t_end, 17, dtype=F64)
    ours, theirs = Counted(problem.f), Counted(problem.f)
    with torch.no_grad():
        expected = odeint(theirs, y0, times, rtol=tolerance, atol=tolerance, method="dopri5")
        sol = odesolve(ours, y0, times, tolerance, tolerance, _TORCHDIFFEQ, clip_last=False)
    torch.testing.assert_close(sol.states, expected, rtol=1e-7, atol=1e-7)
    assert ours.calls == theirs.calls == sol.stats.n_evaluations


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_clipped_solve_agrees_with_torchdiffeq_within_the_tolerance(tolerance: float) -> None:
    """The default clips the last step and has a larger error estimate: other steps, the same solution within 30 tolerances.

    The errors of about ten steps add up in both solvers and are amplified by the field. With the same error estimate the clipped
    solve never needs more calls.
    """
    y0 = torch.randn(8, 3, dtype=F64)
    times = torch.tensor([0.0, 0.2, 1.0, 2.9], dtype=F64)
    ours, theirs = Counted(swirl), Counted(swirl)
    with torch.no_grad():
        expected = odeint(theirs, y0, times, rtol=tolerance, atol=tolerance, method="dopri5")
        states = odesolve(swirl, y0, times, tolerance, tolerance).states
        odesolve(ours, y0, times, tolerance, tolerance, _TORCHDIFFEQ)
    torch.testing.assert_close(states, expected, rtol=30 * tolerance, atol=30 * tolerance)
    assert ours.calls <= theirs.calls


def test_gradients_agree_with_torchdiffeq() -> None:
    """Backpropagation through the same unclipped steps.

    In torchdiffeq the graph includes the step sizes, an effect of the order of the tolerance 1e-8 on gradients of order 1,
    hence 1e-5.
    """
    f = MLPField().double()
    y0 = torch.randn(4, 3, dtype=F64, requires_grad=True)
    times = torch.tensor([0.0, 0.5, 2.0], dtype=F64)
    weights = torch.randn(3, 4, 3, dtype=F64)
    leaves = (y0, *f.parameters())
    expected = torch.autograd.grad((odeint(f, y0, times, rtol=1e-8, atol=1e-8, method="dopri5") * weights).sum(), leaves)
    ours = torch.autograd.grad((odesolve(f, y0, times, 1e-8, 1e-8, clip_last=False).states * weights).sum(), leaves)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("control", ["batch", "sample"])
@pytest.mark.parametrize("method", ["dopri5", "tsit5"])
def test_per_sample_times_agree_with_torchode(method: str, control: str) -> None:
    """Each sample has its own evaluation times; torchode takes them sorted, as (B, S).

    Both solvers meet 1e-8 per step with different controllers; the errors of about 30 steps add up, hence 1e-6.
    """
    y0 = torch.randn(5, 3, dtype=F64)
    times = (3 * torch.rand(7, 5, dtype=F64)).sort(dim=0).values
    term = torchode.ODETerm(swirl)
    step_method = {"dopri5": torchode.Dopri5, "tsit5": torchode.Tsit5}[method](term=term)
    solver = torchode.AutoDiffAdjoint(step_method, torchode.IntegralController(atol=1e-8, rtol=1e-8, term=term))
    starts = torch.zeros(5, dtype=F64)
    expected = solver.solve(torchode.InitialValueProblem(y0=y0, t_eval=times.T.contiguous(), t_start=starts, t_end=times[-1])).ys
    with torch.no_grad():
        states = odesolve(swirl, y0, times, 1e-8, 1e-8, method, control=control).states
    torch.testing.assert_close(states, expected.transpose(0, 1), rtol=0, atol=1e-6)


def _algorithm_1(f: Counted, h: Tensor, times: Tensor, tolerance: float) -> Tensor:
    """The paper's Algorithm 1: sort the end-times, then call ODESolve from each end-time to the next."""
    ordered, order = times.sort()
    states, t = [], 0.0
    for t_next in ordered.tolist():
        if t_next > t:
            h = odeint(f, h, torch.tensor([t, t_next], dtype=F64), rtol=tolerance, atol=tolerance, method="dopri5")[-1]
        states.append(h)
        t = t_next
    return torch.stack(states)[order.argsort()]


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_one_solve_agrees_with_algorithm_1_and_costs_less(tolerance: float) -> None:
    """Ten end-times in random order, by ten consecutive solves and by one solve with dense output.

    Both meet the tolerance in each step and agree within 20 tolerances. The consecutive solves restart the step control each
    time, so the single solve must need at most a third of the evaluations.
    """
    torch.manual_seed(3)
    f = MLPField(gain=2.0).double()
    y0 = torch.randn(6, 3, dtype=F64)
    times = 3 * torch.rand(10, dtype=F64)
    ours, theirs = Counted(f), Counted(f)
    with torch.no_grad():
        sol = odesolve(ours, y0, times, tolerance, tolerance)
        expected = _algorithm_1(theirs, y0, times, tolerance)
    torch.testing.assert_close(sol.states, expected, rtol=20 * tolerance, atol=20 * tolerance)
    assert sol.stats.n_evaluations == ours.calls
    assert 3 * ours.calls <= theirs.calls


def test_one_solve_with_gradient_still_costs_less_than_algorithm_1() -> None:
    """Search and replay together cost less than the consecutive solves, which build their graph in one pass."""
    f = MLPField(gain=2.0).double()
    y0, times = torch.randn(6, 3, dtype=F64), 3 * torch.rand(10, dtype=F64)
    ours, theirs = Counted(f), Counted(f)
    odesolve(ours, y0, times)
    _algorithm_1(theirs, y0, times, 1e-2)
    assert ours.calls < theirs.calls


def test_error_of_the_published_dense_output() -> None:
    """Values measured with the published code: y' = -1.5 y at tolerance 1e-2, unclipped, steps of about 1.12.

    The errors at t = 0.4 and 0.9 are 0.020 and 0.026 with its wrong slope k2, and 0.007 and 0.004 with the right slope; the last
    step goes beyond 2.95 and ends at 3.70. Values have three digits and are compared to half a unit of the last.
    """
    y0 = torch.ones(1, 1, dtype=F64)
    times = [0.4, 0.9, 2.95]
    for method, expected in (("dopri5_aca", (0.020, 0.026)), ("dopri5", (0.007, 0.004))):
        sol = odesolve(lambda t, y: -1.5 * y, y0, times, 1e-2, 1e-2, method, clip_last=False)
        for s in range(2):
            assert abs(float(sol.states[s]) - math.exp(-1.5 * times[s])) == pytest.approx(expected[s], abs=5e-4)
        assert float(sol.grid[2] - sol.grid[1]) == pytest.approx(1.12, abs=5e-3)
        assert float(sol.grid[-1]) == pytest.approx(3.70, abs=5e-3)


class _ConcatConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(65, 64, 3, 1, 1)

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        return self.conv(torch.cat([per_sample_time(t, x).expand_as(x[:, :1]), x], dim=1))


class _ImageField(nn.Module):
    """The paper's image field: twice GroupNorm, ReLU and ConcatConv, then a final GroupNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(32, 64) for _ in range(3))
        self.convs = nn.ModuleList(_ConcatConv() for _ in range(2))
        for conv in self.convs:
            nn.init.kaiming_normal_(conv.conv.weight, mode="fan_out")
            nn.init.zeros_(conv.conv.bias)

    def forward(self, t: Tensor, x: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=False):
            x = conv(t, functional.relu(norm(x)))
        return self.norms[2](x)


def test_steps_of_the_published_image_model_at_its_initialisation() -> None:
    """Measured with the published code: 86 evaluations up to T = 2.9 at 1e-2, that is 2 + 21 * 4 accepted steps, none rejected.

    The published code does not use FSAL and evaluates every accepted step three times; the four steps are the same.
    """
    stem = nn.Sequential(
        *(nn.Conv2d(3, 64, 3, 1), nn.GroupNorm(32, 64), nn.ReLU()),
        *(nn.Conv2d(64, 64, 4, 2, 1), nn.GroupNorm(32, 64), nn.ReLU()),
        nn.Conv2d(64, 64, 4, 2, 1),
    )
    for layer in stem:
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            nn.init.zeros_(layer.bias)
    f = _ImageField()
    with torch.no_grad():
        stats = odesolve(f, stem(torch.randn(4, 3, 32, 32)), [2.9], 1e-2, 1e-2, clip_last=False).stats
    assert (stats.n_accepted, stats.n_rejected) == (4, 0)
    assert 2 + 7 * stats.n_rejected + 21 * stats.n_accepted == 86
    assert stats.n_evaluations == 2 + 6 * 4
