"""Evaluation times in any order and number; states of any shape and dtype."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ode_problems import F64, MLPField, swirl
from torch import Tensor

from ltnode.ode import Status, TrainingGrid, odesolve

GRID = [0.0, 0.5, 1.2, 3.0]
HOW = {
    "adaptive": lambda: {},
    "training grid": lambda: {"grid": TrainingGrid(t_end=3.0)},
    "fixed": lambda: {"grid": GRID},
    "sample": lambda: {"control": "sample"},
}


@settings(max_examples=15)
@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=12), st.randoms(use_true_random=False), st.sampled_from(sorted(HOW)))
def test_permuting_the_times_permutes_the_states(times: list[float], random, how: str) -> None:
    """In every mode, permuted times, possibly with duplicates, give the permuted states.

    The dense weights of a row do not depend on the other rows, but matrix products of another shape round differently. The
    tolerance is a few hundred units of rounding relative to the state, which reaches hundreds on the coarse fixed grid.
    """
    y0 = torch.tensor([[0.3, -1.0], [2.0, 0.1]], dtype=F64)
    order = list(range(len(times)))
    random.shuffle(order)
    with torch.no_grad():
        states = odesolve(swirl, y0, times, 1e-3, 1e-3, **HOW[how]()).states
        shuffled = odesolve(swirl, y0, [times[i] for i in order], 1e-3, 1e-3, **HOW[how]()).states
    assert torch.isfinite(states).all()
    torch.testing.assert_close(shuffled, states[order], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("how", HOW)
def test_duplicates_share_their_state_and_their_gradient(how: str) -> None:
    y0 = torch.randn(3, 2, dtype=F64)
    times = torch.tensor([1.0, 0.0, 1.0, 2.5, 0.0], dtype=F64, requires_grad=True)
    states = odesolve(swirl, y0, times, **HOW[how]()).states
    (slopes,) = torch.autograd.grad(states.sum(), times)
    assert torch.equal(states[0], states[2])
    assert torch.equal(states[1], y0)
    assert torch.equal(states[4], y0)
    assert float(slopes[0]) == float(slopes[2])
    assert float(slopes[1]) == pytest.approx(swirl(times[1], y0).sum().item(), rel=1e-10)


@pytest.mark.parametrize("own_times", [False, True], ids=["shared times", "own times"])
@pytest.mark.parametrize("how", HOW)
def test_all_times_zero(how: str, own_times: bool) -> None:
    """Without steps the state is y0, its derivative is f in time and 1 in y0; without gradients f is not evaluated."""
    calls = 0

    def field(t: Tensor, y: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return swirl(t, y)

    y0 = torch.randn(2, 3, dtype=F64, requires_grad=True)
    times = torch.zeros((4, 2) if own_times else 4, dtype=F64, requires_grad=True)
    sol = odesolve(field, y0, times, **HOW[how]())
    assert sol.status is Status.OK
    assert sol.stats.n_evaluations == calls
    torch.testing.assert_close(sol.states, y0.expand(4, 2, 3), rtol=0, atol=0)
    slope_y, slope_t = torch.autograd.grad(sol.states.sum(), (y0, times))
    torch.testing.assert_close(slope_y, torch.full_like(y0, 4.0), rtol=0, atol=1e-12)
    field_at_start = swirl(torch.zeros((), dtype=F64), y0).detach()
    expected = field_at_start.sum(dim=1).expand(4, 2) if own_times else field_at_start.sum().expand(4)
    torch.testing.assert_close(slope_t, expected, rtol=1e-12, atol=0)
    if how != "fixed":
        calls = 0
        sol = odesolve(field, y0.detach(), times.detach(), **HOW[how]())
        assert calls == sol.stats.n_evaluations == 0
        assert sol.grid.shape == ((1, 2) if how == "sample" else (1,))


@pytest.mark.parametrize("own_times", [False, True], ids=["shared times", "own times"])
def test_own_times_agree_with_shared_times(own_times: bool) -> None:
    """Times (S, B) with equal columns are the same as (S,); other columns agree with one solve at all times: 1e-13."""
    y0 = torch.randn(3, 2, dtype=F64)
    times = 3 * torch.rand(4, 3, dtype=F64) if own_times else (3 * torch.rand(4, 1, dtype=F64)).expand(4, 3)
    states = odesolve(swirl, y0, times, grid=GRID).states
    everything = odesolve(swirl, y0, times.reshape(-1), grid=GRID).states.reshape(4, 3, 3, 2)
    for b in range(3):
        torch.testing.assert_close(states[:, b], everything[:, b, b], rtol=0, atol=1e-13)


def test_times_as_numbers_tensors_and_integers() -> None:
    y0 = torch.ones(1, 2, dtype=F64)
    expected = odesolve(swirl, y0, torch.tensor([1.0, 2.0], dtype=F64)).states
    for times in (
        [1.0, 2.0],
        (1.0, 2.0),
        torch.tensor([1, 2]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
    ):
        torch.testing.assert_close(odesolve(swirl, y0, times).states, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("how", ["adaptive", "fixed", "training grid"])
def test_an_initial_time_other_than_zero(how: str) -> None:
    """A solve from t0 = 1.5 equals the solve from 0 of the problem with shifted time, to 1e-12."""
    y0, times = torch.randn(2, 2, dtype=F64), torch.tensor([1.5, 2.0, 3.25], dtype=F64)
    options = {"adaptive": {}, "fixed": {"grid": [1.5, 2.25, 3.25]}, "training grid": {"grid": TrainingGrid()}}[how]
    shifted = {"adaptive": {}, "fixed": {"grid": [0.0, 0.75, 1.75]}, "training grid": {"grid": TrainingGrid()}}[how]
    states = odesolve(swirl, y0, times, 1e-5, 1e-5, t0=1.5, **options).states
    expected = odesolve(lambda t, y: swirl(t + 1.5, y), y0, times - 1.5, 1e-5, 1e-5, **shifted).states
    torch.testing.assert_close(states, expected, rtol=0, atol=1e-12)


def test_a_time_beyond_the_grid_by_rounding_belongs_to_the_last_step() -> None:
    """0.1 * 3 exceeds 0.3 by 3e-17: no error and no NaN, also with several chunks and with per-sample grids."""
    y0, late = torch.ones(2, 1, dtype=F64), 0.1 * 3
    assert late > 0.3
    for grid in (torch.linspace(0.0, 0.3, 12, dtype=F64), torch.linspace(0.0, 0.3, 12, dtype=F64)[:, None].expand(-1, 2)):
        states = odesolve(swirl, y0, [0.1, late], grid=grid).states
        torch.testing.assert_close(states[1], odesolve(swirl, y0, [0.3], grid=grid).states[0], rtol=0, atol=1e-14)


@pytest.mark.parametrize("shape", [(), (3,), (4, 2), (2, 3, 4, 5)], ids=str)
@pytest.mark.parametrize("how", ["adaptive", "training grid", "fixed"])
def test_states_of_any_shape(how: str, shape: tuple[int, ...]) -> None:
    """An element-wise field gives the same values for any shape of the state, because the RMS is the same: 1e-12."""
    y0 = torch.randn(shape, dtype=F64)
    times = torch.tensor([0.3, 3.0], dtype=F64)
    states = odesolve(swirl, y0, times, 1e-4, 1e-4, **HOW[how]()).states
    assert states.shape == (2, *shape)
    flat = odesolve(swirl, y0.reshape(1, -1), times, 1e-4, 1e-4, **HOW[how]()).states
    torch.testing.assert_close(states.reshape(2, 1, -1), flat, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(3,), (3, 2, 4, 5)], ids=str)
def test_own_times_and_own_steps_for_states_of_any_shape(shape: tuple[int, ...]) -> None:
    """Times (S, B) and per-sample control agree with solves of single samples for any number of trailing axes: 1e-10."""
    y0, times = torch.randn(shape, dtype=F64), 2 * torch.rand(4, 3, dtype=F64)
    states = odesolve(swirl, y0, times, 1e-5, 1e-5, control="sample").states
    assert states.shape == (4, *shape)
    for b in range(3):
        alone = odesolve(swirl, y0[b : b + 1], times[:, b], 1e-5, 1e-5).states
        torch.testing.assert_close(states[:, b : b + 1], alone, rtol=0, atol=1e-10)


@pytest.mark.parametrize("how", HOW)
def test_an_empty_batch_gives_empty_states(how: str) -> None:
    y0 = torch.empty(0, 3)
    sol = odesolve(swirl, y0, [1.0, 2.0], **HOW[how]())
    assert sol.states.shape == (2, 0, 3)
    assert sol.status is Status.OK


@pytest.mark.parametrize(("how", "grid"), [*((how, "floats") for how in HOW), ("fixed", "tensor")])
@pytest.mark.parametrize(
    ("dtype", "seen", "tolerance"),
    [(torch.float64, torch.float64, 1e-12), (torch.float32, torch.float32, 1e-5), (torch.bfloat16, torch.float32, 0.05)],
    ids=["float64", "float32", "bf16"],
)
def test_dtypes(dtype: torch.dtype, seen: torch.dtype, tolerance: float, how: str, grid: str) -> None:
    """The state keeps its dtype, the time has the same dtype (float32 for bf16) and is 0-dim or (B,); the grid is float64.

    Compared with the float64 solve on the same steps; the state is rounded to 1e-12, 1e-5 and 4e-3 per operation.
    """
    times_seen = set()

    def field(t: Tensor, y: Tensor) -> Tensor:
        times_seen.add((t.dtype, t.ndim))
        assert y.dtype == dtype
        return swirl(t, y.double()).to(dtype) if dtype == torch.bfloat16 else swirl(t, y)

    y0 = torch.tensor([[0.5, -1.0], [1.5, 0.25]], dtype=dtype)
    options = HOW[how]()
    if how == "fixed":
        edges = torch.linspace(0.0, 2.0, 6, dtype=F64)
        options = {"grid": edges[:, None].expand(-1, 2) if grid == "tensor" else edges.tolist()}
    sol = odesolve(field, y0, torch.tensor([0.7, 2.0]), **options)
    assert sol.states.dtype == dtype
    assert sol.grid.dtype == F64
    assert times_seen == {(seen, 1 if how == "sample" or grid == "tensor" else 0)}
    exact = odesolve(swirl, y0.double(), torch.tensor([0.7, 2.0]), grid=sol.grid).states
    torch.testing.assert_close(sol.states.double(), exact, rtol=0, atol=tolerance)


def test_a_bf16_state_with_gradients() -> None:
    """bf16 state and parameters with float32 times: dtypes are kept, and gradients are within 5 % of those in float32."""
    f = MLPField()
    grads = []
    for dtype in (torch.float32, torch.bfloat16):
        f = f.to(dtype)
        y0 = torch.linspace(-1, 1, 12).reshape(4, 3).to(dtype).requires_grad_()
        states = odesolve(f, y0, [0.5, 2.0], grid=[0.0, 1.0, 2.0]).states
        grads.append(torch.autograd.grad(states.float().square().sum(), y0)[0])
        assert grads[-1].dtype == dtype
    torch.testing.assert_close(grads[1].float(), grads[0], rtol=0.05, atol=0.1)


def test_autocast_fields_are_cast_back() -> None:
    """Under autocast the field returns bf16; state and solution stay float32."""
    f = MLPField()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        sol = odesolve(f, torch.randn(4, 3), [1.0])
    assert sol.states.dtype == torch.float32
    assert all(p.grad is None for p in f.parameters())
    sol.states.sum().backward()
    assert all(p.grad.dtype == torch.float32 for p in f.parameters())
