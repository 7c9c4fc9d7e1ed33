"""Dense output: weights, times on edges, chunks."""

from __future__ import annotations

import itertools
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ode_problems import F64, METHODS, rk_oracle, swirl

from ltnode.ode import TABLEAUS, odesolve
from ltnode.ode.dense import DenseOutput, combine, dense_weights
from ltnode.ode.replay import replay
from ltnode.ode.step import take_step


@pytest.mark.parametrize("method", METHODS)
def test_weights_sum_to_the_time_passed(method: str) -> None:
    """For f = 1 the state is y0 + T, so the weights sum to T; Tsit5 is published with 16 digits, hence 1e-13."""
    edges = torch.tensor([0.0, 0.3, 1.0, 1.7], dtype=F64)
    times = torch.linspace(0.0, 1.7, 18, dtype=F64)
    weights = dense_weights(TABLEAUS[method], edges, times)
    assert weights.shape == (18, 3, TABLEAUS[method].stages)
    torch.testing.assert_close(weights.sum(dim=(1, 2)), times, rtol=0, atol=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_weights_at_an_edge_are_the_whole_steps_before_it(method: str) -> None:
    """At an edge the interpolant equals the new state: weights b for every earlier step and zero for later ones."""
    tableau = TABLEAUS[method]
    edges = torch.tensor([0.0, 0.3, 1.0, 1.7], dtype=F64)
    weights = dense_weights(tableau, edges, edges)
    h, b = edges.diff(), torch.tensor(tableau.b, dtype=F64)
    for m in range(4):
        expected = torch.where(torch.arange(3)[:, None] < m, h[:, None] * b, torch.zeros(3, tableau.stages, dtype=F64))
        torch.testing.assert_close(weights[m], expected, rtol=0, atol=1e-13)


def test_per_sample_weights_are_those_of_each_sample_alone() -> None:
    tableau = TABLEAUS["dopri5"]
    edges = torch.tensor([[0.0, 0.0], [0.5, 0.2], [1.0, 0.2]], dtype=F64)  # the second sample takes a step of length zero
    times = torch.tensor([[0.7, 0.1], [0.5, 0.2]], dtype=F64)
    weights = dense_weights(tableau, edges, times)
    assert weights.shape == (2, 2, 2, 7)
    for b in range(2):
        torch.testing.assert_close(weights[:, b], dense_weights(tableau, edges[:, b], times[:, b]), rtol=0, atol=0)
    assert torch.isfinite(weights).all()


def test_every_time_has_its_derivative_from_exactly_one_step() -> None:
    """A time on an edge belongs to the step that ends there, so dy/dT is the field at every edge, including the start.

    Reference: the field at the returned state. The end slopes of Dopri5's interpolant are exact, hence 1e-12.
    """
    edges = [0.0, 0.4, 1.1]
    times = torch.tensor([0.0, 0.4, 1.1], dtype=F64, requires_grad=True)
    y0 = torch.tensor([[0.7]], dtype=F64)
    states = odesolve(swirl, y0, times, grid=edges).states
    (slope,) = torch.autograd.grad(states.sum(), times)
    expected = torch.stack([swirl(t, y) for t, y in zip(times.detach(), states.detach(), strict=True)]).flatten()
    torch.testing.assert_close(slope, expected, rtol=0, atol=1e-12)


def test_a_sample_that_takes_no_step_still_has_its_slope_in_time() -> None:
    """Sample 1 ends at t0, so all its steps have length zero; its dy/dT is the field and not 0."""
    edges = torch.tensor([[0.0, 0.0], [0.5, 0.0]], dtype=F64)
    times = torch.tensor([[0.3, 0.0]], dtype=F64, requires_grad=True)
    y0 = torch.tensor([[0.7], [0.2]], dtype=F64)
    states = odesolve(swirl, y0, times, grid=edges).states
    torch.testing.assert_close(states[0, 1], y0[1], rtol=0, atol=0)
    (slope,) = torch.autograd.grad(states.sum(), times)
    assert float(slope[0, 1]) == pytest.approx(float(torch.sin(y0[1, 0]) - 0.1 * 0.2**3), rel=1e-12)


@pytest.mark.parametrize("per_sample", [False, True])
def test_combine_equals_the_written_sum(per_sample: bool) -> None:
    base, stages = torch.randn(4, 2, 3, dtype=F64), [torch.randn(4, 2, 3, dtype=F64) for _ in range(5)]
    weights = torch.randn(6, 4, 5, dtype=F64) if per_sample else torch.randn(6, 5, dtype=F64)
    shaped = weights if per_sample else weights[:, None].expand(6, 4, 5)
    expected = base + torch.einsum("sbj,jbcd->sbcd", shaped, torch.stack(stages))
    torch.testing.assert_close(combine(base, weights, stages), expected, rtol=0, atol=1e-13)


def _in_chunks(edges: list[float], times: torch.Tensor, y0: torch.Tensor, chunk: int | None, field=swirl) -> torch.Tensor:
    output, y, k = DenseOutput(TABLEAUS["dopri5"], times, chunk), y0, None
    for left, right in itertools.pairwise(edges):
        step = take_step(field, TABLEAUS["dopri5"], left, right - left, y, k)
        output.add(left, right, y, step)
        y, k = step.y, step.stages[-1]
    return output.result(y0)


@pytest.mark.parametrize("shape", [(9,), (9, 4)], ids=["shared", "per sample"])
@pytest.mark.parametrize("n_steps", [1, 8, 9, 16, 17, 23])
def test_chunks_change_nothing(shape: tuple[int, ...], n_steps: int) -> None:
    """Chunks of 1, 3 and 8 steps agree with a single chunk, for step counts around their multiples; rounding: 1e-12."""
    edges = torch.linspace(0.0, 2.0, n_steps + 1, dtype=F64).tolist()
    y0, times = torch.randn(4, 3, dtype=F64), 2 * torch.rand(shape, dtype=F64)
    times.view(-1)[:4] = torch.tensor([0.0, 2.0, edges[1], edges[n_steps // 2]], dtype=F64)
    whole = _in_chunks(edges, times, y0, None)
    assert torch.isfinite(whole).all()
    for chunk in (1, 3, 8):
        torch.testing.assert_close(_in_chunks(edges, times, y0, chunk), whole, rtol=0, atol=1e-12)


@given(st.lists(st.floats(0.1, 1.0), min_size=9, max_size=17))
def test_no_time_falls_between_two_chunks(lengths: list[float]) -> None:
    """With rapidly growing steps and times at all edges, every time belongs to exactly one chunk, so no state is NaN.

    The reference has no chunks. The field is bounded by 1 and the state by T, hence 1e-12 T.
    """
    edges = (torch.tensor([0.0, *lengths], dtype=F64) * 2.5 ** torch.arange(len(lengths) + 1)).cumsum(0)
    y0 = torch.tensor([[0.3]], dtype=F64)

    def field(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cos(t) * torch.ones_like(y)

    with torch.no_grad():
        states = odesolve(field, y0, edges, grid=edges).states
        torch.testing.assert_close(
            states, _in_chunks(edges.tolist(), edges, y0, None, field), rtol=0, atol=1e-12 * float(edges[-1])
        )


@pytest.mark.parametrize("per_sample", [False, True])
def test_long_adaptive_solve_asked_at_its_own_edges(per_sample: bool) -> None:
    """A solve of dozens of steps, evaluated at its own edges, agrees with a plain loop over these edges."""
    y0 = torch.randn(3, 2, dtype=F64)
    with torch.no_grad():
        first = odesolve(swirl, y0, [6.0], 1e-8, 1e-8)
        assert first.stats.n_accepted > 16
        times = first.grid[:, None].expand(-1, 3) if per_sample else first.grid
        again = odesolve(swirl, y0, times, 1e-8, 1e-8)
    assert torch.equal(first.grid, again.grid)
    expected = rk_oracle(swirl, TABLEAUS["dopri5"], y0, first.grid.tolist(), first.grid)
    torch.testing.assert_close(again.states, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_grid_with_one_sequence_per_sample_serves_shared_times(recompute: bool) -> None:
    """Per-sample grids of eleven steps and shared times with S = B: each sample agrees with its own solve to 1e-12."""
    grid = torch.stack([torch.linspace(0.0, 1.0, 12, dtype=F64), torch.linspace(0.0, 1.4, 12, dtype=F64)], dim=1)
    y0, times = torch.randn(2, 3, dtype=F64), torch.tensor([0.9, 0.35], dtype=F64)
    sol = odesolve(swirl, y0, times, grid=grid, recompute=recompute)
    for b in range(2):
        alone = odesolve(swirl, y0[b : b + 1], times, grid=grid[:, b]).states
        torch.testing.assert_close(sol.states[:, b : b + 1], alone, rtol=0, atol=1e-12)


def test_a_solve_without_graph_keeps_the_stages_of_one_chunk_only() -> None:
    """Memory does not grow with the number of steps: of 64 steps with 6 stages each, at most 9 steps are alive."""
    alive: list[weakref.ref[torch.Tensor]] = []
    most = 0

    def field(t: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        nonlocal most
        k = swirl(t, y)
        alive.append(weakref.ref(k))
        most = max(most, sum(ref() is not None for ref in alive))
        return k

    edges = torch.linspace(0.0, 4.0, 65, dtype=F64).tolist()
    with torch.no_grad():
        replay(field, TABLEAUS["dopri5"], torch.ones(2, 2, dtype=F64), edges, torch.tensor([1.0, 4.0], dtype=F64), 1e-2, 1e-2)
    assert len(alive) == 1 + 6 * 64
    assert most <= 6 * 9 + 1


def test_weights_are_kept_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without gradients, equal edges and times give equal bits without a new computation; other values, or a method, do not."""

    def states(times: torch.Tensor, method: str = "dopri5", edges: tuple[float, ...] = (0.0, 0.4, 1.0)) -> torch.Tensor:
        y = torch.tensor([[1.0, 0.5]], dtype=F64)
        return replay(swirl, TABLEAUS[method], y, edges, times, 1e-2, 1e-2).states

    times = torch.tensor([0.1, 0.7, 0.9123], dtype=F64)
    computed = {key: states(*key) for key in ((times,), (times, "tsit5"), (times, "dopri5", (0.0, 0.5, 1.0)), (times + 0.01,))}
    with torch.no_grad():
        for _ in range(2):
            assert all(torch.equal(states(*key), expected) for key, expected in computed.items())
        monkeypatch.setattr("ltnode.ode.dense.dense_weights", lambda *_: pytest.fail("the weights were computed again"))
        assert torch.equal(states(times.clone()), computed[(times,)])
