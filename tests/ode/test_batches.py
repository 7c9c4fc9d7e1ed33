"""Several batches solved together, compared with `odesolve` of each batch alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ltnode.errors import InputError
from ltnode.ode import SolverError, Status, odesolve, odesolve_batches


def field(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A nonlinear, time-dependent field that is stiffer for large states, so that batches need different numbers of steps."""
    when = t.reshape(-1, 1) if t.ndim else t
    return torch.sin(3 * when) * y.flip(1) - y * y.abs() + torch.cos(when)


def states_of(sizes: list[float], size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.cat([s * torch.randn(size, 3, generator=generator, dtype=torch.float64) for s in sizes])


@given(
    sizes=st.lists(st.sampled_from([0.1, 1.0, 30.0]), min_size=1, max_size=4),
    size=st.integers(1, 3),
    per_input=st.booleans(),
    method=st.sampled_from(["dopri5", "tsit5", "bosh3"]),
    clip_last=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_batch_takes_the_steps_that_it_takes_alone(
    sizes: list[float], size: int, per_input: bool, method: str, clip_last: bool, seed: int
):
    """States and statistics agree; float64 sums in another order, relative to states of up to 100."""
    y0 = states_of(sizes, size, seed)
    times = 2 * torch.rand(4, len(y0) if per_input else 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    times = times if per_input else times[:, 0]
    states, stats = odesolve_batches(field, y0, times, size, 1e-4, 1e-4, method, clip_last=clip_last)
    assert states.shape == (4, *y0.shape)
    with torch.no_grad():
        for b in range(len(sizes)):
            part = slice(size * b, size * (b + 1))
            own = times[:, part] if per_input else times
            alone = odesolve(field, y0[part], own, 1e-4, 1e-4, method, clip_last=clip_last)
            assert stats[b] == alone.stats
            assert torch.allclose(states[:, part], alone.states, rtol=1e-10, atol=1e-10)


def test_a_batch_that_is_done_waits_for_the_others():
    """One batch needs many steps, rejects some, and exceeds one chunk of the dense output."""
    y0 = states_of([0.01, 300.0], 2, 0)
    states, (few, many) = odesolve_batches(field, y0, torch.tensor([0.5, 3.0]), 2, 1e-7, 1e-7)
    assert few.n_accepted < many.n_accepted and many.n_accepted > 8 and many.n_rejected > 0
    assert bool(torch.isfinite(states).all())


def test_a_trial_that_is_not_finite_leaves_no_trace():
    """The first trial reaches a state beyond 2, where the field overflows: it is rejected, and the solution is unaffected."""

    def steep(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.where(y.abs() < 2, torch.ones_like(y), torch.full_like(y, torch.inf))

    y0 = torch.tensor([[0.0], [1.9]], dtype=torch.float64)
    times = torch.tensor([0.09], dtype=torch.float64)
    states, _ = odesolve_batches(steep, y0, times, 1, 1e-2, 1e-2)
    assert torch.allclose(states[0], y0 + 0.09)


def test_a_failing_batch_raises_with_its_status():
    with pytest.raises(SolverError) as caught:
        odesolve_batches(lambda t, y: y * y, torch.tensor([[0.1], [1.0]]), torch.tensor([5.0]), 1, 1e-6, 1e-6)
    assert caught.value.status in (Status.STEP_UNDERFLOW, Status.NON_FINITE, Status.MAX_STEPS)
    with pytest.raises(SolverError) as caught:
        odesolve_batches(lambda t, y: y * torch.nan, torch.ones(2, 1), torch.tensor([1.0]), 1)
    assert caught.value.status is Status.NON_FINITE
    with pytest.raises(SolverError) as caught:
        odesolve_batches(field, torch.ones(2, 3), torch.tensor([3.0]), 1, 1e-6, 1e-6, max_steps=2)
    assert caught.value.status is Status.MAX_STEPS


def test_wrong_sizes_and_methods_are_refused():
    with pytest.raises(InputError, match="batch size 2, not 3"):
        odesolve_batches(field, torch.ones(3, 3), torch.tensor([1.0]), 2)
    for times in ([-1.0], [torch.nan]):
        with pytest.raises(InputError, match="times"):
            odesolve_batches(field, torch.ones(2, 3), torch.tensor(times), 1)
    with pytest.raises(InputError, match="rtol"):
        odesolve_batches(field, torch.ones(2, 3), torch.tensor([1.0]), 1, 0.0)
    with pytest.raises(InputError, match="rk4"):
        odesolve_batches(field, torch.ones(2, 3), torch.tensor([1.0]), 1, method="rk4")
