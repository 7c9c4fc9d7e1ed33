"""Grids kept from solve to solve: balanced, checked by every pass, refreshed when a step fails."""

from __future__ import annotations

import itertools
import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ode_problems import ADAPTIVE, F64, Counted, MLPField, stiffness, swirl
from torch import Tensor, nn

from ltnode.errors import InputError
from ltnode.ode import TABLEAUS, SolverError, Status, TrainingGrid, odesolve
from ltnode.ode.replay import Replay, replay
from ltnode.ode.search import Search, Tolerance, search_batch
from ltnode.ode.training_grid import TARGET, balance, balanced_edges, predicted_steps


class Switchable(nn.Module):
    """A decay whose rate a test can change between two solves, with a BatchNorm whose statistics tell how often it was called."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.calls = rate, 0
        self.norm = nn.BatchNorm1d(1, dtype=F64)
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=F64))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        self.norm(y)
        torch.rand(1)  # moves the random state with every call
        return -self.rate * self.scale * (y - torch.cos(t))


def _norms(f, method: str, y: Tensor, edges: list[float], tolerance: Tolerance) -> list[float]:
    with torch.no_grad():
        start = torch.tensor([edges[0]], dtype=F64)
        return replay(f, TABLEAUS[method], y, edges, start, tolerance.rtol, tolerance.atol).norms.tolist()


@given(
    st.lists(st.tuples(st.floats(1e-3, 2.0), st.floats(0.0, 10.0)), min_size=1, max_size=8),
    st.integers(1, 9),
    st.sampled_from([2, 4]),
)
def test_balanced_edges_share_the_predicted_error_equally(pieces: list[tuple[float, float]], n: int, order: int) -> None:
    """Norms C h^p per measured step: each new step gets 1/n of the integral of C^(1/p), computed here piece by piece.

    The floor of 1e-12 on a norm is part of the definition; float sums, so 1e-6 relative to the share.
    """
    p = order + 1
    edges = [0.0, *itertools.accumulate(length for length, _ in pieces)]
    norms = [norm for _, norm in pieces]
    new = balanced_edges(edges, norms, n, order)
    assert len(new) == n + 1
    assert (new[0], new[-1]) == (edges[0], edges[-1])
    assert all(b > a for a, b in itertools.pairwise(new))
    density = [max(norm, 1e-12) ** (1 / p) / (b - a) for norm, (a, b) in zip(norms, itertools.pairwise(edges), strict=True)]

    def share(left: float, right: float) -> float:
        return sum(
            c * max(0.0, min(b, right) - max(a, left)) for c, (a, b) in zip(density, itertools.pairwise(edges), strict=True)
        )

    whole = share(edges[0], edges[-1])
    for left, right in itertools.pairwise(new):
        assert share(left, right) == pytest.approx(whole / n, rel=1e-6)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ([TARGET], 1),  # at the target: one step does
        ([TARGET, TARGET], 2),
        ([TARGET * 2.0**5], 2),  # halving a step of order 5 divides its norm by 32
        ([1.02 * TARGET], 2),
        ([1e-9] * 6, 1),
        ([0.0, 0.0], 1),
    ],
)
def test_predicted_number_of_steps(norms: list[float], expected: int) -> None:
    """n balanced steps have norm (sum E^(1/5) / n)^5 each; the fewest that meet the target, by hand."""
    assert predicted_steps(norms, error_order=4) == expected


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("field", [swirl, stiffness(6.0), lambda t, y: -y], ids=["swirl", "fast decay", "slow decay"])
def test_balanced_grid_has_the_fewest_steps_that_meet_the_target(method: str, field) -> None:
    """On the batch it was made for: every norm below the target, and one balanced step fewer fails that check.

    Steps of norm 1 meet the target when their number grows by target^(-1/p): never longer than the adaptive grid by more.
    """
    tableau, tolerance = TABLEAUS[method], Tolerance(1e-4, 1e-4)
    y = torch.randn(5, 2, dtype=F64)
    with torch.no_grad():
        found = search_batch(field, tableau, y, 0.0, 3.0, tolerance)
        edges, norms, spent = balance(field, tableau, y, found, tolerance)
    n = len(edges) - 1
    assert n <= math.ceil((len(found.edges) - 1) * TARGET ** (-1 / (tableau.error_order + 1))) + 1
    measured = _norms(field, method, y, edges, tolerance)
    assert measured == pytest.approx(norms.tolist(), rel=1e-4)
    assert max(measured) < TARGET < 1
    fewer = balanced_edges(edges, measured, n - 1, tableau.error_order)
    assert max(_norms(field, method, y, fewer, tolerance)) >= TARGET
    assert spent > 0


def test_balance_is_not_fooled_by_a_step_that_is_not_a_number(monkeypatch) -> None:
    """A candidate whose first step is fine and whose last is NaN: max([.1, nan]) is .1 in Python, but the candidate fails."""

    def scripted(f, tableau, y, edges, times, *_) -> Replay:
        return Replay(y[None], torch.tensor([0.1] * (len(edges) - 2) + [torch.nan]))

    monkeypatch.setattr("ltnode.ode.training_grid.replay", scripted)
    edges, norms = [0.0, 0.5, 1.0, 2.0], torch.tensor([0.9, 0.8, 0.7], dtype=F64)
    found = Search(edges, norms, Status.OK, 0, 0)
    best, kept, _ = balance(swirl, TABLEAUS["dopri5"], torch.zeros(1, 1, dtype=F64), found, Tolerance())
    assert best == edges
    torch.testing.assert_close(kept.double(), norms, rtol=0, atol=1e-6)


def test_balance_counts_its_evaluations() -> None:
    f, tolerance = Counted(swirl), Tolerance(1e-5, 1e-5)
    y = torch.randn(3, 2, dtype=F64)
    with torch.no_grad():
        found = search_batch(f, TABLEAUS["dopri5"], y, 0.0, 3.0, tolerance)
        assert f.calls == found.n_evaluations
        *_, spent = balance(f, TABLEAUS["dopri5"], y, found, tolerance)
    assert f.calls == found.n_evaluations + spent


@pytest.mark.parametrize("own_times", [False, True], ids=["shared times", "own times"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_kept_solve_agrees_with_the_reference_within_the_tolerance(tolerance: float, own_times: bool) -> None:
    """Against a solve at 1e-10, and with no more steps than the adaptive solve at the same tolerance.

    Each step's error is below the tolerance; up to 14 of them add up, with the amplification of the field: 20 tolerances.
    """
    torch.manual_seed(2)
    f = MLPField(gain=2.0).double()
    y0, times = torch.randn(6, 3, dtype=F64), 3 * torch.rand((5, 6) if own_times else (5,), dtype=F64)
    reference = odesolve(f, y0, times, 1e-10, 1e-10)
    adaptive = odesolve(f, y0, times, tolerance, tolerance)
    kept = TrainingGrid()
    for _ in range(2):
        sol = odesolve(f, y0, times, tolerance, tolerance, grid=kept)
        torch.testing.assert_close(sol.states, reference.states, rtol=20 * tolerance, atol=20 * tolerance)
        assert sol.stats.n_accepted <= adaptive.stats.n_accepted
        assert bool((sol.error_norms < 1).all())
        assert torch.equal(sol.grid, torch.tensor(kept.edges, dtype=F64))
    assert kept.n_searches == 1
    weights = torch.randn_like(sol.states)
    ours, expected = (torch.autograd.grad((s.states * weights).sum(), list(f.parameters())) for s in (sol, reference))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=100 * tolerance, atol=100 * tolerance)


def test_a_valid_grid_is_replayed_and_nothing_else() -> None:
    """The second solve costs the steps alone: 1 + 6 n evaluations for Dopri5, counted from outside."""
    f, kept = Counted(swirl), TrainingGrid(t_end=3.0)
    y0 = torch.randn(4, 2, dtype=F64)
    first = odesolve(f, y0, [1.0, 2.5], 1e-4, 1e-4, grid=kept)
    assert f.calls == first.stats.n_evaluations
    f.calls = 0
    second = odesolve(f, y0, [0.5, 3.0], 1e-4, 1e-4, grid=kept)
    assert f.calls == second.stats.n_evaluations == 1 + 6 * second.stats.n_accepted
    assert float(second.grid[-1]) == 3.0
    assert (kept.n_solves, kept.n_searches, kept.n_failed_checks, second.stats.n_refreshed) == (2, 1, 0, 0)


def test_a_failed_check_refreshes_the_grid_and_leaves_no_trace() -> None:
    """The field gets 20 times faster between two solves: the pass over the old grid is thrown away with all it moved.

    Buffers and random state end as after a single replay of the new grid from the state before the solve.
    """
    f, kept = Switchable(0.5), TrainingGrid()
    y0 = torch.linspace(-1.0, 1.0, 8, dtype=F64)[:, None]
    odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=kept)
    old = list(kept.edges)
    f.rate = 10.0
    before, random = {k: v.clone() for k, v in f.state_dict().items()}, torch.get_rng_state()
    f.calls = 0
    sol = odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=kept)
    assert (sol.stats.n_refreshed, kept.n_failed_checks, kept.n_searches) == (1, 1, 2)
    assert len(kept.edges) > len(old)
    assert f.calls == sol.stats.n_evaluations
    after, drawn = {k: v.clone() for k, v in f.state_dict().items()}, torch.get_rng_state()
    torch.testing.assert_close(sol.states, odesolve(f.eval(), y0, [2.0], 1e-9, 1e-9).states, rtol=0, atol=1e-2)
    f.train().load_state_dict(before)
    torch.set_rng_state(random)
    odesolve(f, y0, [2.0], grid=kept.edges)
    assert all(torch.equal(after[k], v) for k, v in f.state_dict().items())
    assert int(after["norm.num_batches_tracked"]) == int(before["norm.num_batches_tracked"]) + 1 + 6 * sol.stats.n_accepted
    assert torch.equal(drawn, torch.get_rng_state())


def test_a_search_after_the_pass_leaves_its_graph_usable() -> None:
    """An attempt at fewer steps runs after the replay and puts buffers back that the graph has saved: backward still works."""
    f, kept = MLPField(batch_norm=True), TrainingGrid(patience=0)
    kept.edges = torch.linspace(0.0, 2.0, 9, dtype=F64).tolist()
    y0 = torch.randn(16, 3)
    sol = odesolve(f, y0, [0.7, 2.0], grid=kept)
    assert (kept.n_searches, sol.stats.n_accepted) == (1, 8)
    tracked = int(f.norm.num_batches_tracked)
    sol.states.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in f.parameters())
    assert tracked == 1 + 6 * 8


def test_fewer_steps_are_tried_when_the_field_calms_down() -> None:
    """The search starts `patience` solves after the last one, not before, and the next solve has fewer steps."""
    f, kept = Switchable(10.0), TrainingGrid(patience=3)
    y0 = torch.linspace(-1.0, 1.0, 8, dtype=F64)[:, None]
    n = odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=kept).stats.n_accepted
    f.rate = 0.5
    steps, searches = [], []
    for _ in range(4):
        steps.append(odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=kept).stats.n_accepted)
        searches.append(kept.n_searches)
    assert searches == [1, 1, 2, 2]  # solves 2, 3, 4, 5: the first search was in solve 1
    assert steps[:3] == [n, n, n]  # the solve that searched still used the old grid
    assert steps[3] < n
    assert kept.n_failed_checks == 0


def test_attempts_that_find_no_fewer_steps_keep_the_grid_and_wait_longer(monkeypatch) -> None:
    """Prediction says fewer, the search finds none: the valid grid stays as it is, and the pause doubles, 2, 4, 8, ..."""
    kept = TrainingGrid(patience=1)
    y0 = torch.randn(4, 2, dtype=F64)
    odesolve(swirl, y0, [2.0], 1e-4, 1e-4, grid=kept)
    edges = list(kept.edges)
    monkeypatch.setattr("ltnode.ode.training_grid.predicted_steps", lambda *_: 1)
    at = []
    for _ in range(16):
        searches = kept.n_searches
        odesolve(swirl, y0, [2.0], 1e-4, 1e-4, grid=kept)
        assert kept.edges == edges
        if kept.n_searches > searches:
            at.append(kept.n_solves)
    assert at == [2, 4, 8, 16]


def test_an_attempt_never_makes_the_grid_longer() -> None:
    """A search that needs more steps than the valid grid in use does not replace it."""
    kept = TrainingGrid(patience=0)
    y0 = torch.ones(1, 1, dtype=F64)
    kept.edges = [0.0, 0.3, 0.9]
    with torch.no_grad():
        kept.try_fewer(stiffness(40.0), TABLEAUS["dopri5"], y0, 0.0, 0.9, Tolerance(1e-6, 1e-6))
    assert kept.edges == [0.0, 0.3, 0.9]


def test_the_largest_time_seen_is_remembered() -> None:
    """Without t_end: a refresh in a solve with a shorter horizon must not cut the grid, or the next solve searches again."""
    f, kept = Switchable(0.5), TrainingGrid()
    y0 = torch.ones(2, 1, dtype=F64)
    odesolve(f, y0, [2.0], grid=kept)
    odesolve(f, y0, [3.0], grid=kept)
    assert (kept.n_searches, kept.edges[-1]) == (2, 3.0)
    f.rate = 15.0
    odesolve(f, y0, [1.0], grid=kept)
    assert (kept.n_searches, kept.edges[-1]) == (3, 3.0)


def test_times_beyond_t_end_extend_the_grid() -> None:
    kept = TrainingGrid(t_end=1.0)
    y0 = torch.ones(2, 1, dtype=F64)
    odesolve(swirl, y0, [0.5], grid=kept)
    assert kept.edges[-1] == 1.0
    sol = odesolve(swirl, y0, [1.5], 1e-6, 1e-6, grid=kept)
    assert kept.edges[-1] == 1.5
    torch.testing.assert_close(sol.states, odesolve(swirl, y0, [1.5], 1e-9, 1e-9).states, rtol=0, atol=2e-5)


def test_state_dict_continues_bit_for_bit() -> None:
    """After a round trip through JSON the copy makes the same searches and gives the same states as the original."""
    f, original = Switchable(10.0), TrainingGrid(patience=2)
    y0 = torch.linspace(-1.0, 1.0, 4, dtype=F64)[:, None]
    for _ in range(2):
        odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=original)
    copy = TrainingGrid(patience=2)
    copy.load_state_dict(json.loads(json.dumps(original.state_dict())))
    f.rate = 0.3
    for _ in range(5):
        a, b = (odesolve(f, y0, [1.5], 1e-3, 1e-3, grid=kept) for kept in (original, copy))
        assert torch.equal(a.states, b.states)
        assert a.stats == b.stats
    assert original.state_dict() == copy.state_dict()


@pytest.mark.parametrize(
    ("field", "status", "limit"),
    [
        (lambda t, y: torch.where(t > 0.5, torch.nan * y, y), Status.NON_FINITE, 5000),
        (lambda t, y: 100 * y**3, Status.STEP_UNDERFLOW, 5000),
        (stiffness(300.0), Status.MAX_STEPS, 60),
    ],
    ids=["non-finite", "underflow", "max steps"],
)
def test_a_failed_search_keeps_the_old_grid_and_reports(field, status: Status, limit: int) -> None:
    """throw=True raises with the status; throw=False gives y0 at t0 and NaN elsewhere. The grid in use is not lost."""
    kept = TrainingGrid()
    kept.edges = [0.0, 1.0]
    y0 = torch.ones(2, 1, dtype=F64)
    with pytest.raises(SolverError) as error:
        odesolve(field, y0, [0.0, 1.0], 1e-6, 1e-6, grid=kept, max_steps=limit)
    assert error.value.status is status
    sol = odesolve(field, y0, [0.0, 1.0], 1e-6, 1e-6, grid=kept, max_steps=limit, throw=False)
    assert sol.status is status
    assert torch.equal(sol.states[0], y0)
    assert sol.states[1].isnan().all()
    assert kept.edges == [0.0, 1.0]
    assert kept.n_failed_checks == 2


@pytest.mark.parametrize("options", [{"t_end": 0.0}, {"t_end": -1.0}, {"t_end": math.nan}, {"t_end": math.inf}, {"patience": -1}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="is impossible"):
        TrainingGrid(**options)
