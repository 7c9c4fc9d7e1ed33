"""The prediction grid of a trained model: predictions depend only on their own input."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ode_problems import ADAPTIVE, F64, Counted, MLPField, per_sample_time, swirl
from torch import Tensor

from ltnode.errors import InputError
from ltnode.ode import SolverError, fit_prediction_grid, odesolve, odesolve_on_prediction_grid
from ltnode.ode.prediction_grid import extend_edges, halve_edges
from ltnode.ode.replay import replay
from ltnode.ode.tableau import get_tableau

EDGES = torch.linspace(0.0, 2.0, 5, dtype=F64)


def _mixed(t: Tensor, y: Tensor) -> Tensor:
    """The first component of the state is its rate: some samples need finer steps than others."""
    rate, x = y[:, :1], y[:, 1:]
    return torch.cat([torch.zeros_like(rate), -rate * (x - torch.sin(per_sample_time(t, y)))], dim=1)


def _batch(dtype: torch.dtype = F64) -> Tensor:
    rates = torch.tensor([0.5, 1.0, 8.0, 30.0, 0.2], dtype=dtype)
    return torch.cat([rates[:, None], torch.linspace(-1.0, 1.0, 10, dtype=dtype).reshape(5, 2)], dim=1)


@given(st.floats(0.01, 9.0), st.floats(0.01, 9.0))
def test_edges_never_depend_on_the_end(early: float, late: float) -> None:
    """Grids for two end-times share all edges up to the earlier end, so a later time in the batch changes no step."""
    first, second = sorted([extend_edges(EDGES.tolist(), early), extend_edges(EDGES.tolist(), late)], key=len)
    assert second[: len(first)] == first
    assert first[-1] >= min(early, late)
    assert all(b > a for a, b in itertools.pairwise(second))


def test_halved_edges() -> None:
    assert halve_edges([0.0, 1.0, 3.0]) == [0.0, 0.5, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(("dtype", "own_times"), [(F64, True), (torch.float32, False)], ids=["float64", "float32"])
def test_an_input_alone_in_a_batch_and_shuffled_agrees(dtype: torch.dtype, own_times: bool) -> None:
    """Easy and stiff samples, times beyond the grid: the states of each sample are those of the sample alone.

    The steps are the same in every batch, but matrix products round differently: 1e-12 in float64, 1e-5 in float32.
    """
    y0 = _batch(dtype)
    times = 3 * torch.rand((4, 5) if own_times else 4, dtype=dtype)
    atol = 1e-12 if dtype == F64 else 1e-5
    with torch.no_grad():
        sol = odesolve_on_prediction_grid(_mixed, y0, times, EDGES, 1e-3, 1e-3)
        assert sol.stats.n_refreshed > 0  # the stiff samples failed their check
        order = torch.tensor([3, 0, 4, 1, 2])
        own = times[:, order] if own_times else times
        shuffled = odesolve_on_prediction_grid(_mixed, y0[order], own, EDGES, 1e-3, 1e-3).states
        torch.testing.assert_close(shuffled, sol.states[:, order], rtol=0, atol=atol)
        for b in range(5):
            alone = odesolve_on_prediction_grid(
                _mixed, y0[b : b + 1], times[:, b : b + 1] if own_times else times, EDGES, 1e-3, 1e-3
            )
            torch.testing.assert_close(alone.states[:, 0], sol.states[:, b], rtol=0, atol=atol)


@pytest.mark.parametrize("method", ADAPTIVE)
def test_states_meet_the_tolerance(method: str) -> None:
    """Compared with a solve at 1e-8: about a dozen steps, each within the tolerance, hence 20 tolerances."""
    y0, times = _batch(), torch.tensor([0.0, 0.4, 1.5], dtype=F64)
    with torch.no_grad():
        states = odesolve_on_prediction_grid(_mixed, y0, times, EDGES[:3], 1e-3, 1e-3, method).states
        exact = odesolve(_mixed, y0, times, 1e-8, 1e-8).states
    torch.testing.assert_close(states, exact, rtol=2e-2, atol=2e-2)
    assert torch.equal(states[0], y0)


def test_easy_samples_are_solved_once() -> None:
    """Without failing samples there is exactly one pass over the grid; failing samples add passes of their own."""
    f = Counted(_mixed)
    y0 = _batch()
    sol = odesolve_on_prediction_grid(f, y0[[0, 1, 4]], torch.tensor([2.0], dtype=F64), EDGES)
    assert f.calls == sol.stats.n_evaluations == 1 + 6 * 4
    assert (sol.stats.n_accepted, sol.stats.n_refreshed) == (4, 0)
    rows: list[int] = []

    def field(t: Tensor, y: Tensor) -> Tensor:
        rows.append(len(y))
        return _mixed(t, y)

    with torch.no_grad():
        sol = odesolve_on_prediction_grid(field, y0, torch.tensor([2.0], dtype=F64), EDGES)
    assert len(rows) == sol.stats.n_evaluations
    assert rows[:25] == [5] * 25
    assert 0 < max(rows[25:]) < 5
    rows.clear()
    # With a graph, the passing samples are solved once more without the failing ones.
    sol = odesolve_on_prediction_grid(field, y0, torch.tensor([2.0], dtype=F64), EDGES)
    assert len(rows) == sol.stats.n_evaluations
    assert rows[:50] == [5] * 25 + [5 - rows[50]] * 25


def test_only_steps_before_a_samples_own_end_count() -> None:
    """Sample 1 would fail after t = 1 but ends at 0.5, so there is no second pass."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        return -y - 300 * y * torch.relu(per_sample_time(t, y) - 1) * torch.tensor([[0.0], [1.0]], dtype=F64)

    times = torch.tensor([[2.0, 0.5]], dtype=F64)
    assert odesolve_on_prediction_grid(field, torch.ones(2, 1, dtype=F64), times, EDGES).stats.n_refreshed == 0


def test_a_sample_may_explode_after_its_own_end() -> None:
    """y' = exp(y) diverges at t = exp(-y0). Sample 0 ends before that time, sample 1 continues beyond it.

    States and gradients are those of each sample alone, without NaN from 0 * inf. Float64 rounding, hence 1e-12.
    """
    y0 = torch.tensor([[0.0], [-6.0]], dtype=F64, requires_grad=True)
    times = torch.tensor([[0.25, 40.0]], dtype=F64)
    edges = torch.linspace(0.0, 40.0, 9, dtype=F64)
    states = odesolve_on_prediction_grid(lambda t, y: torch.exp(y), y0, times, edges, 1e-4, 1e-4).states
    (slope,) = torch.autograd.grad(states.sum(), y0)
    for b in range(2):
        own = y0[b : b + 1].detach().requires_grad_()
        alone = odesolve_on_prediction_grid(lambda t, y: torch.exp(y), own, times[:, b : b + 1], edges, 1e-4, 1e-4).states
        torch.testing.assert_close(states[:, b : b + 1], alone, rtol=0, atol=1e-12)
        torch.testing.assert_close(slope[b : b + 1], torch.autograd.grad(alone.sum(), own)[0], rtol=0, atol=1e-12)
        exact = -torch.log(torch.exp(-own) - times[:, b : b + 1])
        torch.testing.assert_close(alone[0], exact, rtol=0, atol=2e-3)


def test_gradients_are_those_of_the_final_passes() -> None:
    """gradcheck in y0 and the times in float64, with samples from the first pass and from finer ones."""

    def solve(x: Tensor, times: Tensor) -> Tensor:
        rate = torch.tensor([[0.5], [20.0]], dtype=F64)
        return odesolve_on_prediction_grid(_mixed, torch.cat([rate, x], dim=1), times, EDGES[:3], 1e-2, 1e-2).states[..., 1:]

    x = torch.tensor([[0.3], [0.9]], dtype=F64, requires_grad=True)
    times = torch.tensor([[0.4, 0.7]], dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(solve, (x, times))


def test_a_sample_that_fails_after_all_halvings_is_solved_adaptively() -> None:
    """Five halvings do not suffice, so the adaptive per-sample solve takes over; within 20 tolerances of a solve at 1e-9."""
    y0 = torch.tensor([[2000.0, 1.0], [0.5, 1.0]], dtype=F64)
    times = torch.tensor([0.05], dtype=F64)
    with torch.no_grad():
        sol = odesolve_on_prediction_grid(_mixed, y0, times, torch.tensor([0.0, 2.0], dtype=F64), 1e-3, 1e-3)
        exact = odesolve(_mixed, y0, times, 1e-9, 1e-9).states
    torch.testing.assert_close(sol.states[..., 1:], exact[..., 1:], rtol=0, atol=2e-2)


def test_a_field_that_explodes_is_an_error_with_its_remedy() -> None:
    with pytest.raises(SolverError, match="bound the field|blow-up"):
        odesolve_on_prediction_grid(lambda t, y: torch.exp(10 * y), torch.ones(2, 1), torch.tensor([1.0]), EDGES)


def test_a_batch_is_needed_and_may_be_empty() -> None:
    with pytest.raises(InputError, match="y0 needs a batch"):
        odesolve_on_prediction_grid(swirl, torch.tensor(1.0), torch.tensor([1.0]), EDGES)
    assert odesolve_on_prediction_grid(swirl, torch.empty(0, 3), torch.tensor([1.0, 2.0]), EDGES).states.shape == (2, 0, 3)


def test_methods_without_an_estimate_are_refused() -> None:
    with pytest.raises(InputError, match="'rk4' does not have"):
        odesolve_on_prediction_grid(swirl, torch.ones(2, 1), torch.tensor([1.0]), EDGES, method="rk4")


@pytest.mark.parametrize("method", ADAPTIVE)
def test_fitted_grid_serves_95_percent_with_the_fewest_steps(method: str) -> None:
    """On the calibration samples the 95 % quantile of the norm of each step is below 1; a constant field needs one step."""
    torch.manual_seed(4)
    f, y0 = MLPField(gain=3.0).double().requires_grad_(False), torch.randn(200, 3, dtype=F64)
    edges = fit_prediction_grid(f, y0, 3.0, 1e-3, 1e-3, method)
    assert (float(edges[0]), float(edges[-1])) == (0.0, 3.0)
    assert bool((edges.diff() > 0).all())
    norms = replay(f, get_tableau(method), y0, edges.tolist(), torch.zeros(1, dtype=F64), 1e-3, 1e-3, per_sample=True).norms
    assert bool((norms.quantile(0.95, dim=1) < 1).all())
    one_step = fit_prediction_grid(lambda t, y: torch.ones_like(y), y0, 3.0)
    assert one_step.tolist() == [0.0, 3.0]


def test_fitting_stops_at_the_limit_of_steps() -> None:
    y0 = torch.cat([torch.full((20, 1), 500.0, dtype=F64), torch.rand(20, 1, dtype=F64)], dim=1)
    assert len(fit_prediction_grid(_mixed, y0, 3.0, 1e-6, 1e-6, max_steps=5)) == 6
