"""Agreement with scipy, torchdiffeq, torchode, the paper's Algorithm 1, and numbers measured on the published code."""

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

    The control bounds the error of each step, not their sum: it grows with the number of steps (9 to 104 here) and with the
    problem's own amplification. 20 tolerances for all but two: B1, a predator-prey cycle (65 measured, scipy's RK23 66), and D1,
    an orbit whose phase drifts (254 measured, scipy's RK45 249); these get twice that.
    """
    tolerance = 1e-4 if method == "bosh3" else 1e-6
    times = np.linspace(0.0, problem.t_end, 41)
    with torch.no_grad():
        sol = odesolve(problem.f, torch.tensor([problem.y0], dtype=F64), torch.from_numpy(times), tolerance, tolerance, method)
    expected = problem.reference(tuple(times))
    error = np.abs(sol.states[:, 0].numpy() - expected) / (tolerance + tolerance * np.abs(expected))
    assert error.max() < {"B1": 130, "D1": 500}.get(problem.name, 20)


# Its error estimate (Shampine's) is two thirds of that of the embedded fourth-order solution, stage by stage.
_TORCHDIFFEQ = dataclasses.replace(TABLEAUS["dopri5"], error=tuple(2 / 3 * e for e in TABLEAUS["dopri5"].error or ()))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
@pytest.mark.parametrize("problem", [p for p in DETEST if p.name in {"A3", "B1", "D1", "E2"}], ids=lambda p: p.name)
def test_unclipped_dopri5_is_that_of_torchdiffeq(problem: Problem, tolerance: float) -> None:
    """Same starting step, control and quartic, no clipping there, and error weights of two thirds of Dormand and Prince's.

    With those weights the steps are the same, so the states are equal up to rounding: in the error estimate it moves step sizes
    a little (relative 1e-10), which the field amplifies, so 1e-7.
    The number of evaluations must be the same exactly.
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
    """The default clips the last step and has the larger error estimate: other steps, the same solution within 30 tolerances.

    The errors of some ten steps add up in each, with the amplification of the field. With the same estimate the clipped solve
    never needs more calls.
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
    """Back-propagation through the same unclipped steps; there the graph also runs through the step sizes, an effect of the
    order of the tolerance, 1e-8, on gradients of order 1: 1e-5."""
    f = MLPField().double()
    y0 = torch.randn(4, 3, dtype=F64, requires_grad=True)
    times = torch.tensor([0.0, 0.5, 2.0], dtype=F64)
    weights = torch.randn(3, 4, 3, dtype=F64)
    wanted = (y0, *f.parameters())
    expected = torch.autograd.grad((odeint(f, y0, times, rtol=1e-8, atol=1e-8, method="dopri5") * weights).sum(), wanted)
    ours = torch.autograd.grad((odesolve(f, y0, times, 1e-8, 1e-8, clip_last=False).states * weights).sum(), wanted)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("control", ["batch", "sample"])
@pytest.mark.parametrize("method", ["dopri5", "tsit5"])
def test_per_sample_times_agree_with_torchode(method: str, control: str) -> None:
    """Each sample its own evaluation times, as torchode takes them (B, S), sorted.

    Both solvers meet 1e-8 per step with controllers of their own; errors of about 30 steps add up, so 1e-6.
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
    """The paper's Algorithm 1 as written: sort the end-times, then one ODESolve after the other from each to the next."""
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
    """Ten end-times in random order, by ten segment-wise solves and by one with dense output.

    Both meet the tolerance on each step; within 20 tolerances of each other. Segments restart the step control each time, so the
    one solve must need at most a third of the evaluations.
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
    """Search and replay together, as training pays for them, against the segments that have their graph at once."""
    f = MLPField(gain=2.0).double()
    y0, times = torch.randn(6, 3, dtype=F64), 3 * torch.rand(10, dtype=F64)
    ours, theirs = Counted(f), Counted(f)
    odesolve(ours, y0, times)
    _algorithm_1(theirs, y0, times, 1e-2)
    assert ours.calls < theirs.calls


def test_error_of_the_published_dense_output() -> None:
    """Numbers measured on the published code: y' = -1.5 y at tolerance 1e-2, unclipped, steps of about 1.12.

    Errors at t = .4 and .9: .020 and .026 with its k2 slip, .007 and .004 with the right slope; the last step passes 2.95 and
    ends at 3.70. Given to three digits, compared to half a unit of the last.
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
    """The paper's image field: GroupNorm, ReLU, ConcatConv twice, and a GroupNorm at the end."""

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
    """Measured on the published code: 86 evaluations to T = 2.9 at 1e-2, that is 2 + 21 * 4 accepted steps and no rejection.

    It does not use FSAL and passes three times over every accepted step; ours are the same four steps.
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
