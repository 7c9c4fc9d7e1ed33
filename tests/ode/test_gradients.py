"""Gradients of the discrete trajectory, and recomputation of steps in the backward pass."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ode_problems import ADAPTIVE, F64, METHODS, Counted, MLPField, rk_oracle, stiffness, swirl
from torch import Tensor, nn

from ltnode.ode import TABLEAUS, Solution, TrainingGrid, odesolve

GRID = [0.0, 0.3, 0.8, 1.5]
SHARED = torch.tensor([0.2, 1.4, 0.05], dtype=F64)  # inside steps, two times in the first step
OWN = torch.tensor([[0.2, 1.4], [0.9, 0.01]], dtype=F64)


def _field_of(weight: Tensor, closure: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda t, y: torch.tanh(y @ weight) * closure + torch.sin(t) * y


@pytest.mark.parametrize("times", [SHARED, OWN], ids=["shared times", "own times"])
@pytest.mark.parametrize(
    ("method", "recompute"),
    [*((method, False) for method in METHODS), ("dopri5", True), ("euler", True)],
    ids=lambda x: x if isinstance(x, str) else ("recomputed" if x else "stored"),
)
def test_gradcheck_on_a_given_grid(method: str, times: Tensor, recompute: bool) -> None:
    """Analytic against numerical derivatives in float64 with respect to y0, a parameter, a closure tensor and the times.

    torch's gradcheck with its default tolerances (1e-5 absolute, 1e-3 relative for a difference step of 1e-6). All times lie
    inside steps, because Euler's derivative in time is discontinuous at the edges.
    """

    def solve(y0: Tensor, weight: Tensor, closure: Tensor, t: Tensor) -> Tensor:
        return odesolve(_field_of(weight, closure), y0, t, method=method, grid=GRID, recompute=recompute).states

    inputs = (torch.randn(2, 2, dtype=F64), torch.randn(2, 2, dtype=F64), torch.randn(2, dtype=F64), times)
    assert torch.autograd.gradcheck(solve, tuple(x.clone().requires_grad_() for x in inputs))


@pytest.mark.parametrize("method", ["dopri5", "rk4"])
def test_second_derivatives_on_a_given_grid(method: str) -> None:
    """gradgradcheck in y0 and the times, as needed for Hessians and gradient penalties."""

    def solve(y0: Tensor, t: Tensor) -> Tensor:
        return odesolve(swirl, y0, t, method=method, grid=[0.0, 0.4, 0.9]).states

    y0, t = torch.randn(1, 1, dtype=F64), torch.tensor([0.3, 0.7], dtype=F64)
    assert torch.autograd.gradgradcheck(solve, (y0.requires_grad_(), t.requires_grad_()))


def _gradients(states: Tensor, leaves: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1.0, 1.0, states.numel(), dtype=states.dtype).reshape(states.shape)
    return torch.autograd.grad((states * weights).sum(), leaves, retain_graph=True)


def _assert_same(ours: tuple[Tensor, ...], expected: tuple[Tensor, ...], atol: float = 1e-10) -> None:
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("own_times", [False, True], ids=["shared times", "own times"])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_replay_equals_plain_autograd_on_the_same_grid(method: str, own_times: bool) -> None:
    """The adaptive two-phase solve agrees with a plain Runge-Kutta loop over the same grid of more than one chunk.

    States and gradients in y0, parameters, times and a closure tensor; the same sums in another order, hence 1e-10.
    """
    f = MLPField(gain=3.0).double()
    scale = torch.tensor([0.5, 1.0, 2.0], dtype=F64, requires_grad=True)
    y0 = torch.randn(4, 3, dtype=F64, requires_grad=True)
    times = (2 * torch.rand((5, 4) if own_times else (5,), dtype=F64)).requires_grad_()
    leaves = (y0, scale, times, *f.parameters())

    def field(t: Tensor, y: Tensor) -> Tensor:
        return scale * f(t, y)

    tolerance = 1e-4 if method == "bosh3" else 1e-7
    sol = odesolve(field, y0, times, tolerance, tolerance, method)
    assert sol.stats.n_accepted > 8
    expected = rk_oracle(field, TABLEAUS[method], y0, sol.grid.tolist(), times)
    torch.testing.assert_close(sol.states, expected, rtol=0, atol=1e-10)
    _assert_same(_gradients(sol.states, leaves), _gradients(expected, leaves))


def test_gradient_of_the_adaptive_solve_approaches_the_exact_one() -> None:
    """y' = a y: dy(T)/da = T exp(a T) y0, dy/dT = a exp(a T) y0, dy/dy0 = exp(a T); within 100 tolerances at 1e-8."""
    a = torch.tensor(-0.7, dtype=F64, requires_grad=True)
    y0 = torch.tensor([1.3], dtype=F64, requires_grad=True)
    time = torch.tensor([1.9], dtype=F64, requires_grad=True)
    state = odesolve(lambda t, y: a * y, y0, time, 1e-8, 1e-8).states.sum()
    grads = torch.autograd.grad(state, (a, y0, time))
    growth = torch.exp(a * time).detach()
    expected = (time * growth * y0, growth, a * growth * y0)
    for ours, exact in zip(grads, expected, strict=True):
        torch.testing.assert_close(ours.reshape(()), exact.detach().reshape(()), rtol=1e-6, atol=1e-6)


def test_the_grid_is_a_constant_of_the_gradient() -> None:
    """The edges of a tensor grid are constants: they receive no gradient even if they require one."""
    grid = torch.tensor(GRID, dtype=F64, requires_grad=True)
    y0 = torch.ones(1, 1, dtype=F64, requires_grad=True)
    states = odesolve(swirl, y0, [1.2], grid=grid).states
    assert torch.autograd.grad(states.sum(), grid, allow_unused=True) == (None,)


Solve = Callable[[nn.Module, Tensor, Tensor, bool], Solution]
MODES: dict[str, Solve] = {
    "adaptive": lambda f, y, t, r: odesolve(f, y, t, 1e-6, 1e-6, recompute=r),
    "fixed": lambda f, y, t, r: odesolve(f, y, t, grid=GRID, recompute=r),
    "fixed rk4": lambda f, y, t, r: odesolve(f, y, t, method="rk4", grid=GRID, recompute=r),
    "fixed euler": lambda f, y, t, r: odesolve(f, y, t, method="euler", grid=GRID, recompute=r),
    "training grid": lambda f, y, t, r: odesolve(f, y, t, 1e-6, 1e-6, grid=TrainingGrid(), recompute=r),
}


@pytest.mark.parametrize(
    ("mode", "own_times", "batch_norm"),
    [
        *((mode, False, True) for mode in MODES),
        ("adaptive", True, True),
        ("training grid", True, False),
        ("fixed euler", True, False),
    ],
)
def test_recomputed_steps_give_the_same_solution(mode: str, own_times: bool, batch_norm: bool) -> None:
    """recompute=True and False give the same states, gradients, grid, statistics and buffers, which are updated only once.

    The evaluations are the same; the dense output is summed in another order, hence 1e-10. Buffers are equal exactly.
    """
    times = 1.5 * torch.rand((4, 6) if own_times else (4,), dtype=F64)
    results = []
    for recompute in (False, True):
        torch.manual_seed(1)
        f = MLPField(batch_norm=batch_norm, gain=2.0).double()
        y0 = torch.randn(6, 3, dtype=F64, requires_grad=True)
        own = times.clone().requires_grad_()
        sol = MODES[mode](f, y0, own, recompute)
        grads = _gradients(sol.states, (y0, own, *f.parameters()))
        again = _gradients(sol.states, (y0, own, *f.parameters()))  # a second backward pass over the same graph
        _assert_same(grads, again, atol=0)
        results.append((sol, grads, [b.clone() for b in f.buffers()]))
    (stored, stored_grads, stored_buffers), (again, again_grads, again_buffers) = results
    torch.testing.assert_close(again.states, stored.states, rtol=0, atol=1e-10)
    _assert_same(again_grads, stored_grads)
    assert torch.equal(again.grid, stored.grid)
    assert again.stats == stored.stats
    assert all(torch.equal(a, b) for a, b in zip(stored_buffers, again_buffers, strict=True))
    assert len(stored_buffers) == (3 if batch_norm else 0)


class _Drifting(nn.Module):
    """A field with a buffer that every call in train mode updates, as the power iteration of a spectral norm does."""

    drift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.8, dtype=F64))
        self.register_buffer("drift", torch.tensor(1.0, dtype=F64))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        if self.training:
            self.drift = self.drift * 0.99  # replaces the tensor
        return self.weight * self.drift * y


def test_recomputed_steps_see_the_buffers_of_their_first_evaluation() -> None:
    """Gradients would be wrong if the recomputation used the buffers from the end of the solve."""
    grads = []
    for recompute in (False, True):
        f = _Drifting()
        y0 = torch.ones(2, 1, dtype=F64, requires_grad=True)
        sol = odesolve(f, y0, [0.5, 1.5], grid=GRID, recompute=recompute)
        grads.append(_gradients(sol.states, (y0, f.weight)))
        assert float(f.drift) == pytest.approx(0.99**19, rel=1e-12)  # 1 + 3 * 6 calls
    _assert_same(grads[1], grads[0])


class _Noisy(nn.Module):
    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        return nn.functional.dropout(torch.sin(y + t), 0.3, self.training)


def test_recomputed_steps_draw_the_same_random_numbers() -> None:
    grads = []
    for recompute in (False, True):
        torch.manual_seed(5)
        y0 = torch.ones(4, 3, dtype=F64, requires_grad=True)
        sol = odesolve(_Noisy(), y0, [0.5, 1.5], grid=GRID, recompute=recompute)
        grads.append((*_gradients(sol.states, (y0,)), torch.get_rng_state()))
    _assert_same(grads[1][:1], grads[0][:1])
    assert torch.equal(grads[0][1], grads[1][1])


def _saved_bytes(n_steps: int, recompute: bool) -> int:
    """Bytes of the distinct storages that the graph of a fixed-grid solve saves for the backward pass."""
    f = MLPField(dim=16, width=64)
    parameters = {p.untyped_storage().data_ptr() for p in f.parameters()}
    saved: dict[int, int] = {}
    tensors = []

    def pack(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in parameters:
            saved[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            tensors.append(x)  # otherwise a new storage could reuse the address of a freed one
        return x

    y0 = torch.randn(128, 16, requires_grad=True)
    grid = torch.linspace(0.0, 1.0, n_steps + 1, dtype=F64).tolist()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        sol = odesolve(f, y0, [0.4, 1.0], grid=grid, recompute=recompute)
    assert sol.states.requires_grad
    return sum(saved.values())


def test_recomputing_keeps_little_more_than_the_states() -> None:
    """Saved bytes per additional step, without the parameters; the state has 128 x 16 float32 = 8192 bytes.

    With recomputation, each step saves its state, its first stage and masks of the dense output: at most 3 states. Without it,
    each step saves its stages and the activations of six evaluations of a network four times as wide: at least 25 states.
    """
    state = 128 * 16 * 4
    per_step = {r: (_saved_bytes(40, r) - _saved_bytes(20, r)) / 20 for r in (False, True)}
    assert per_step[True] < 3 * state
    assert per_step[False] > 25 * state


def test_recomputing_costs_evaluations_in_the_backward_pass_only() -> None:
    """The statistics count forward calls; the backward pass repeats at most as many, and none without recomputation."""
    for recompute in (False, True):
        f = Counted(stiffness(3.0))
        y0 = torch.ones(2, 1, dtype=F64, requires_grad=True)
        sol = odesolve(f, y0, [1.0], grid=[0.0, 0.5, 1.0], recompute=recompute)
        assert f.calls == sol.stats.n_evaluations == 13
        sol.states.sum().backward()
        assert f.calls == (25 if recompute else 13)  # all but the first stage, which the graph stores
