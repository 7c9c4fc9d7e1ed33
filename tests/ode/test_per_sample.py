"""Per-sample step control: every sample is solved as if it were alone."""

from __future__ import annotations

import pytest
import torch
from ode_problems import ADAPTIVE, F64, Counted, MLPField, per_sample_time, rk_oracle, swirl
from torch import Tensor, nn

from ltnode.errors import InputError
from ltnode.ode import TABLEAUS, Status, odesolve

RATES = torch.tensor([0.1, 1.0, 5.0, 25.0], dtype=F64)


def _mixed(t: Tensor, y: Tensor) -> Tensor:
    """The first component of the state is its rate: samples of very different stiffness in one batch."""
    rate, x = y[:, :1], y[:, 1:]
    return torch.cat([torch.zeros_like(rate), -rate * (x - torch.sin(per_sample_time(t, y)))], dim=1)


def _batch() -> Tensor:
    return torch.cat([RATES[:, None], torch.linspace(-1.0, 1.0, 8, dtype=F64).reshape(4, 2)], dim=1)


@pytest.mark.parametrize("own_times", [False, True], ids=["shared times", "own times"])
@pytest.mark.parametrize("method", ADAPTIVE)
def test_states_are_those_of_each_sample_alone(method: str, own_times: bool) -> None:
    """A batch-wide solve of each sample alone gives the same steps and states; float64 rounding in the control, hence 1e-10."""
    y0 = _batch()
    times = 3 * torch.rand((6, 4) if own_times else (6,), dtype=F64)
    tolerance = 1e-4 if method == "bosh3" else 1e-6
    with torch.no_grad():
        sol = odesolve(_mixed, y0, times, tolerance, tolerance, method, control="sample")
        for b in range(4):
            own = times[:, b] if own_times else times
            alone = odesolve(_mixed, y0[b : b + 1], own, tolerance, tolerance, method)
            torch.testing.assert_close(sol.states[:, b : b + 1], alone.states, rtol=0, atol=1e-10)
            steps = sol.grid[:, b].unique()
            torch.testing.assert_close(steps, alone.grid, rtol=0, atol=1e-9)
    assert sol.grid.shape == (sol.stats.n_accepted + 1, 4)
    assert sol.error_norms.shape == (sol.stats.n_accepted, 4)
    assert bool((sol.error_norms < 1).all())


def test_samples_do_not_influence_each_other() -> None:
    """States are the same to 1e-10 after shuffling and after removing a stiff sample; batch-wide control would change them."""
    y0, times = _batch(), 3 * torch.rand(5, 4, dtype=F64)
    with torch.no_grad():
        whole = odesolve(_mixed, y0, times, control="sample").states
        order = torch.tensor([2, 0, 3, 1])
        shuffled = odesolve(_mixed, y0[order], times[:, order], control="sample").states
        fewer = odesolve(_mixed, y0[:3], times[:, :3], control="sample").states
        coupled = odesolve(_mixed, y0[:3], times[:, :3]).states
    torch.testing.assert_close(shuffled, whole[:, order], rtol=0, atol=1e-10)
    torch.testing.assert_close(fewer, whole[:, :3], rtol=0, atol=1e-10)
    assert (coupled - fewer).abs().max() > 1e-6


@pytest.mark.parametrize("recompute", [False, True], ids=["stored", "recomputed"])
def test_gradients_are_those_of_each_sample_alone(recompute: bool) -> None:
    """Gradients in y0, times and parameters agree with plain autograd over the grid of each sample: 1e-10 in float64."""
    f = MLPField(gain=3.0).double()
    y0 = torch.randn(4, 3, dtype=F64, requires_grad=True)
    times = (2 * torch.rand(3, 4, dtype=F64)).requires_grad_()
    weights = torch.randn(3, 4, 3, dtype=F64)
    sol = odesolve(f, y0, times, 1e-8, 1e-8, control="sample", recompute=recompute)
    assert sol.stats.n_accepted > 8  # more than one chunk of the dense output
    expected = torch.zeros((), dtype=F64)
    for b in range(4):
        edges = sol.grid[:, b].unique().tolist()
        own = rk_oracle(f, TABLEAUS["dopri5"], y0[b : b + 1], edges, times[:, b])
        torch.testing.assert_close(sol.states[:, b], own[:, 0], rtol=0, atol=1e-10)
        expected = expected + (own[:, 0] * weights[:, b]).sum()
    leaves = (y0, times, *f.parameters())
    ours = torch.autograd.grad((sol.states * weights).sum(), leaves)
    for a, b in zip(ours, torch.autograd.grad(expected, leaves), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_samples_that_end_early_take_steps_of_length_zero() -> None:
    """End-times from 0 to 3: sample 0 takes no step at all, and no state or gradient is NaN."""
    y0 = torch.randn(4, 2, dtype=F64, requires_grad=True)
    times = torch.tensor([[0.0, 0.01, 1.0, 3.0]], dtype=F64, requires_grad=True)
    sol = odesolve(swirl, y0, times, 1e-6, 1e-6, control="sample")
    assert torch.equal(sol.states[0, 0], y0[0])
    assert torch.equal(sol.grid[-1], times[0].detach())
    assert bool((sol.grid.diff(dim=0) >= 0).all())
    grads = torch.autograd.grad(sol.states.sum(), (y0, times))
    assert all(torch.isfinite(g).all() for g in grads)
    slope = swirl(times[0], sol.states[0]).sum(dim=1)  # dy/dT is the field at the end, also for T = 0
    torch.testing.assert_close(grads[1][0], slope, rtol=0, atol=1e-10)


def test_the_field_sees_one_time_per_sample() -> None:
    seen: list[Tensor] = []

    def field(t: Tensor, y: Tensor) -> Tensor:
        seen.append(t)
        return -y * t[:, None]

    odesolve(field, torch.ones(3, 2), torch.tensor([[1.0, 0.5, 2.0]]), control="sample")
    assert {(tuple(t.shape), t.dtype) for t in seen} == {((3,), torch.float32)}


def test_work_is_that_of_the_hardest_sample() -> None:
    """In lock-step the number of calls is close to that of the stiffest sample, far below the sum over samples."""
    y0 = _batch()
    together = Counted(_mixed)
    with torch.no_grad():
        odesolve(together, y0, [3.0], 1e-6, 1e-6, control="sample")
        alone = []
        for b in range(4):
            f = Counted(_mixed)
            sol = odesolve(f, y0[b : b + 1], [3.0], 1e-6, 1e-6)
            alone.append(f.calls + TABLEAUS["dopri5"].evaluations(sol.stats.n_accepted))  # per-sample control always replays
    assert max(alone) <= together.calls < sum(alone)


def test_a_failing_sample_does_not_stop_the_others() -> None:
    """One sample diverges at t = 0.5, one starts as NaN: throw=False returns NaN for them and full solutions for the others."""

    def field(t: Tensor, y: Tensor) -> Tensor:
        return y * y

    y0 = torch.tensor([[-1.0], [2.0], [torch.nan], [-0.5]], dtype=F64)
    times = torch.tensor([0.25, 3.0], dtype=F64)
    sol = odesolve(field, y0, times, 1e-6, 1e-6, control="sample", throw=False)
    assert sol.status is Status.NON_FINITE
    exact = y0.T / (1 - times[:, None] * y0.T)
    torch.testing.assert_close(sol.states[:, [0, 3], 0], exact[:, [0, 3]], rtol=0, atol=1e-5)
    assert float(sol.states[0, 1, 0]) == pytest.approx(4.0, abs=1e-4)
    assert sol.states[1, 1].isnan().all()
    assert sol.states[:, 2].isnan().all()


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: f.forward], ids=["module", "method"])
def test_refused_for_train_mode_batch_norm_with_the_reason(wrap) -> None:
    """Batch statistics couple the samples, so samples cannot have independent steps; eval mode is supported."""
    f = MLPField(batch_norm=True)
    with pytest.raises(InputError, match=r"BatchNorm in train mode \(norm\).*couple the samples.*LayerNorm or GroupNorm"):
        odesolve(wrap(f), torch.randn(4, 3), [1.0], control="sample")
    f.eval()
    assert odesolve(wrap(f), torch.randn(4, 3), [1.0], control="sample").status is Status.OK


def test_batch_norm_that_is_the_field_itself_is_named() -> None:
    class Field(nn.BatchNorm1d):
        def forward(self, t: Tensor, y: Tensor) -> Tensor:
            return super().forward(y)

    with pytest.raises(InputError, match=r"train mode \(the field\)"):
        odesolve(Field(3), torch.randn(4, 3), [1.0], control="sample")
