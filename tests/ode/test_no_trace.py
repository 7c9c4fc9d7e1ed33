"""Side effects of a solve on buffers and random state, and its statistics."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from ode_problems import F64, METHODS, Counted, MLPField, per_sample_time, swirl
from torch import Tensor, nn

from ltnode.ode import TABLEAUS, ButcherTableau, SolverError, Status, TrainingGrid, odesolve
from ltnode.ode.trace import modules_of, no_trace

TIMES = torch.tensor([0.4, 2.0], dtype=F64)


class Watched(nn.Module):
    """A field with BatchNorm and random draws: statistics and random state reveal how many calls were not undone."""

    def __init__(self, rate: float = 2.0) -> None:
        super().__init__()
        self.rate = rate
        self.norm = nn.BatchNorm1d(2, dtype=F64)
        self.calls = 0

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        torch.rand(3)
        return -self.rate * y + 0.1 * self.norm(y)

    @property
    def tracked(self) -> int:
        return int(self.norm.num_batches_tracked)


def _as_replay_alone(solve: Callable[[Watched], object], f: Watched, grid: Tensor, y0: Tensor) -> None:
    """Check that buffers and random state after the solve equal those after a single pass over its grid."""
    copy = Watched(f.rate)
    copy.load_state_dict(f.state_dict())
    random = torch.get_rng_state()
    solve(f)
    moved, drawn = {k: v.clone() for k, v in f.state_dict().items()}, torch.get_rng_state()
    torch.set_rng_state(random)
    odesolve(copy, y0, TIMES, grid=grid)
    assert all(torch.equal(v, moved[k]) for k, v in copy.state_dict().items())
    assert torch.equal(drawn, torch.get_rng_state())


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@pytest.mark.parametrize("rate", [2.0, 60.0], ids=["smooth", "with rejections"])
def test_adaptive_search_leaves_no_trace(rate: float, grad: bool) -> None:
    """Running statistics, num_batches_tracked and random state equal those after the replay alone.

    Reference: a solve on the same edges as a fixed grid. Equal bit for bit.
    """
    f, y0 = Watched(rate), torch.randn(6, 2, dtype=F64)
    with torch.set_grad_enabled(grad):
        sol = odesolve(f, y0, TIMES, 1e-4, 1e-4)
        assert (sol.stats.n_rejected > 0) == (rate > 10)
        assert f.tracked == TABLEAUS["dopri5"].evaluations(sol.stats.n_accepted) < f.calls == sol.stats.n_evaluations
        _as_replay_alone(lambda f: odesolve(f, y0, TIMES, 1e-4, 1e-4), f, sol.grid, y0)


def test_a_field_without_moving_buffers_is_evaluated_once_without_grad() -> None:
    """In eval mode, or without buffers, the search itself yields the states, so there is no second pass."""
    f = Watched().eval()
    with torch.no_grad():
        sol = odesolve(f, torch.randn(6, 2, dtype=F64), TIMES, 1e-4, 1e-4)
    assert f.calls == sol.stats.n_evaluations == 2 + 6 * (sol.stats.n_accepted + sol.stats.n_rejected)
    assert f.tracked == 0


def _wrap_as_function(f: Watched) -> Callable[[Tensor, Tensor], Tensor]:
    def field(t: Tensor, y: Tensor) -> Tensor:
        return f(t, y)

    return field


@pytest.mark.parametrize(
    "wrap",
    [
        lambda f: f,
        _wrap_as_function,
        lambda f: lambda t, y: 1.0 * f(t, y),
        lambda f: f.forward,
        lambda f: functools.partial(lambda net, t, y: net(t, y), f),
        lambda f: functools.partial(lambda t, y, net: net(t, y), net=f),
    ],
    ids=["module", "function", "lambda", "method", "partial", "keyword"],
)
def test_no_trace_through_any_wrapping_of_the_module(wrap) -> None:
    """Users write odesolve(lambda t, y: net(y), ...): the search must not change the statistics of net in this case either."""
    f, y0 = Watched(), torch.randn(6, 2, dtype=F64)
    sol = odesolve(wrap(f), y0, TIMES, 1e-4, 1e-4)
    assert f.tracked == TABLEAUS["dopri5"].evaluations(sol.stats.n_accepted)


_GLOBAL = nn.BatchNorm1d(2, dtype=F64)


def test_modules_named_as_globals_are_found() -> None:
    """In a notebook the network is a global variable of the field."""
    assert modules_of(lambda t, y: _GLOBAL(y)) == [_GLOBAL]
    assert modules_of(lambda t, y: -y) == []
    assert modules_of(torch.sin) == []


def test_frozen_batch_norm_in_a_training_field_does_not_break_backward() -> None:
    """BatchNorm in eval mode saves its statistics for the backward pass; restoring them must not invalidate the graph."""
    f = MLPField(batch_norm=True)
    f.norm.eval()
    y0 = torch.randn(8, 3, requires_grad=True)
    first = odesolve(f, y0, [1.0])
    second = odesolve(f, y0, [1.0])  # its search restores buffers after the first graph was built
    (first.states + second.states).sum().backward()
    assert torch.isfinite(y0.grad).all()


def test_two_solves_of_one_loss_with_batch_norm() -> None:
    f = MLPField(batch_norm=True)
    y0 = torch.randn(8, 3, requires_grad=True)
    (odesolve(f, y0, [1.0]).states + odesolve(f, y0, [2.0]).states).sum().backward()
    assert torch.isfinite(y0.grad).all()


def test_an_exception_in_the_field_leaves_no_trace_either() -> None:
    f, y0 = Watched(), torch.randn(6, 2, dtype=F64)

    def field(t: Tensor, y: Tensor) -> Tensor:
        if f.calls == 9:
            raise KeyboardInterrupt
        return f(t, y)

    random = torch.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        odesolve(field, y0, TIMES, 1e-6, 1e-6)
    assert f.tracked == 0
    assert torch.equal(random, torch.get_rng_state())


class _Exploding(Watched):
    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        super().forward(t, y)
        return torch.exp(20 * y)


@pytest.mark.parametrize("throw", [True, False])
@pytest.mark.parametrize("grid", ["adaptive", "training grid", "fixed"])
def test_a_failed_solve_leaves_no_trace(grid: str, throw: bool) -> None:
    """A diverging field: the solve reports it, and statistics and random state are unchanged."""
    f, random = _Exploding(), torch.get_rng_state()
    how = {"adaptive": None, "training grid": TrainingGrid(), "fixed": [0.0, 1.0, 2.0]}[grid]
    if throw:
        with pytest.raises(SolverError):
            odesolve(f, torch.ones(6, 2, dtype=F64), TIMES, grid=how)
    else:
        assert odesolve(f, torch.ones(6, 2, dtype=F64), TIMES, grid=how, throw=False).status is not Status.OK
    assert f.calls > 0
    assert f.tracked == 0
    assert torch.isfinite(f.norm.running_mean).all()
    assert torch.equal(random, torch.get_rng_state())


def test_no_trace_restores_a_buffer_that_was_replaced() -> None:
    """A buffer is restored also if the module replaced the tensor instead of writing into it."""
    f = nn.Module()
    f.register_buffer("count", torch.tensor(3.0))
    before = f.count
    with no_trace(lambda t, y: f and y, torch.device("cpu")):
        f.count = f.count + 1
        f.count += 1
    assert f.count is before
    assert float(f.count) == 3.0


HEUN = ButcherTableau(
    name="heun-euler", order=2, c=(0.0, 1.0), a=((), (1.0,)), b=(0.5, 0.5), error=(-0.5, 0.5), error_order=1,
    dense=((1.0, -0.5), (0.0, 0.5)), fsal=False,
)  # fmt: skip


_ADAPTIVE = ("dopri5", "bosh3", HEUN)  # tsit5 has the same number of stages and the same FSAL flag as dopri5
_MODES = [
    *(("fixed", method) for method in (*METHODS, HEUN)),
    *((mode, method) for mode in ("adaptive", "training grid", "sample") for method in _ADAPTIVE),
]


@pytest.mark.parametrize("graph", ["none", "stored", "recomputed"])
@pytest.mark.parametrize(("mode", "method"), _MODES, ids=lambda x: x.name if isinstance(x, ButcherTableau) else x)
def test_n_evaluations_is_the_number_of_calls(mode: str, method: str | ButcherTableau, graph: str) -> None:
    """The count is right in every mode and for every method, including one without FSAL, and with rejections."""
    options = {
        "adaptive": {},
        "fixed": {"grid": torch.linspace(0.0, 2.0, 6, dtype=F64)},
        "training grid": {"grid": TrainingGrid(patience=0)},
        "sample": {"control": "sample"},
    }[mode]
    f = Counted(
        lambda t, y: -y + 40 * torch.sigmoid(200 * (per_sample_time(t, y) - 0.7))
    )  # smooth at first, then a sudden change
    y0 = torch.linspace(-1.0, 2.0, 6, dtype=F64).reshape(3, 2)
    with torch.set_grad_enabled(graph != "none"):
        sol = odesolve(f, y0, TIMES, 1e-2, 1e-2, method, recompute=graph == "recomputed", **options)
    assert f.calls == sol.stats.n_evaluations
    assert sol.stats.n_accepted == len(sol.grid) - 1
    assert (sol.stats.n_rejected > 0) == (mode != "fixed")


def test_a_rejected_trial_reuses_its_first_stage() -> None:
    """Without FSAL a trial costs one call in addition to the first stage, which changes only after an acceptance."""
    f = Counted(lambda t, y: -y + 40 * torch.sigmoid(200 * (t - 0.7)))
    with torch.no_grad():
        stats = odesolve(f, torch.ones(1, 1, dtype=F64), [2.0], method=HEUN).stats
    assert stats.n_rejected > 0
    assert f.calls == 2 + (stats.n_accepted + stats.n_rejected) + (stats.n_accepted - 1)


def test_a_custom_method_without_fsal_converges_adaptively() -> None:
    """Heun-Euler 2(1) as a custom tableau, with both controls: within 20 tolerances of Dopri5 at 1e-9."""
    y0 = torch.randn(3, 2, dtype=F64)
    expected = odesolve(swirl, y0, TIMES, 1e-9, 1e-9).states
    for control in ("batch", "sample"):
        states = odesolve(swirl, y0, TIMES, 1e-4, 1e-4, HEUN, control=control).states
        torch.testing.assert_close(states, expected, rtol=0, atol=2e-3)
