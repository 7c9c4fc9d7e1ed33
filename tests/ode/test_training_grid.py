"""Training grids: balanced, checked in every pass, replaced when a step fails."""

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
    """A decay with an adjustable rate, and BatchNorm whose statistics reveal the number of calls."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate, self.calls = rate, 0
        self.norm = nn.BatchNorm1d(1, dtype=F64)
        self.scale = nn.Parameter(torch.tensor(1.0, dtype=F64))

    def forward(self, t: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        self.norm(y)
        torch.rand(1)  # changes the random state in every call
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
    """With norms C h^p, each new step gets 1/n of the integral of C^(1/p), which is computed here piece by piece.

    The floor of 1e-12 for a norm is part of the definition; rounding of sums, hence a relative 1e-6.
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
        ([TARGET], 1),  # at the target: one step suffices
        ([TARGET, TARGET], 2),
        ([TARGET * 2.0**5], 2),  # halving a step of order 5 divides its norm by 32
        ([1.02 * TARGET], 2),
        ([1e-9] * 6, 1),
        ([0.0, 0.0], 1),
    ],
)
def test_predicted_number_of_steps(norms: list[float], expected: int) -> None:
    """n balanced steps have norm (sum E^(1/5) / n)^5; the smallest n that meets the target, computed by hand."""
    assert predicted_steps(norms, error_order=4) == expected


@pytest.mark.parametrize("method", ADAPTIVE)
@pytest.mark.parametrize("field", [swirl, stiffness(6.0), lambda t, y: -y], ids=["swirl", "fast decay", "slow decay"])
def test_balanced_grid_has_the_fewest_steps_that_meet_the_target(method: str, field) -> None:
    """On the batch of the search, every norm is below the target, and one step fewer would miss it.

    Steps of norm 1 meet the target if their number grows by target^(-1/p), which limits the length of the balanced grid.
    """
    tableau, tolerance = TABLEAUS[method], Tolerance(1e-4, 1e-4)
    y = torch.randn(5, 2, dtype=F64)
    with torch.no_grad():
        search = search_batch(field, tableau, y, 0.0, 3.0, tolerance)
        edges, norms, spent = balance(field, tableau, y, search, tolerance)
    n = len(edges) - 1
    assert n <= math.ceil((len(search.edges) - 1) * TARGET ** (-1 / (tableau.error_order + 1))) + 1
    measured = _norms(field, method, y, edges, tolerance)
    assert measured == pytest.approx(norms.tolist(), rel=1e-4)
    assert max(measured) < TARGET < 1
    fewer = balanced_edges(edges, measured, n - 1, tableau.error_order)
    assert max(_norms(field, method, y, fewer, tolerance)) >= TARGET
    assert spent > 0


def test_balance_rejects_nan_norms(monkeypatch) -> None:
    """A candidate whose last norm is NaN must fail, although max([0.1, nan]) is 0.1 in Python."""

    def scripted(f, tableau, y, edges, times, *_) -> Replay:
        return Replay(y[None], torch.tensor([0.1] * (len(edges) - 2) + [torch.nan]))

    monkeypatch.setattr("ltnode.ode.training_grid.replay", scripted)
    edges, norms = [0.0, 0.5, 1.0, 2.0], torch.tensor([0.9, 0.8, 0.7], dtype=F64)
    search = Search(edges, norms, Status.OK, 0, 0)
    best, best_norms, _ = balance(swirl, TABLEAUS["dopri5"], torch.zeros(1, 1, dtype=F64), search, Tolerance())
    assert best == edges
    torch.testing.assert_close(best_norms.double(), norms, rtol=0, atol=1e-6)


def test_balance_counts_its_evaluations() -> None:
    f, tolerance = Counted(swirl), Tolerance(1e-5, 1e-5)
    y = torch.randn(3, 2, dtype=F64)
    with torch.no_grad():
        search = search_batch(f, TABLEAUS["dopri5"], y, 0.0, 3.0, tolerance)
        assert f.calls == search.n_evaluations
        *_, spent = balance(f, TABLEAUS["dopri5"], y, search, tolerance)
    assert f.calls == search.n_evaluations + spent


@pytest.mark.parametrize("own_times", [False, True], ids=["shared times", "own times"])
@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6])
def test_training_grid_agrees_with_the_reference_within_the_tolerance(tolerance: float, own_times: bool) -> None:
    """Agrees with a solve at 1e-10, with no more steps than the adaptive solve at the same tolerance.

    The errors of up to 14 steps, each within the tolerance, add up and are amplified by the field, hence 20 tolerances.
    """
    torch.manual_seed(2)
    f = MLPField(gain=2.0).double()
    y0, times = torch.randn(6, 3, dtype=F64), 3 * torch.rand((5, 6) if own_times else (5,), dtype=F64)
    reference = odesolve(f, y0, times, 1e-10, 1e-10)
    adaptive = odesolve(f, y0, times, tolerance, tolerance)
    grid = TrainingGrid()
    for _ in range(2):
        sol = odesolve(f, y0, times, tolerance, tolerance, grid=grid)
        torch.testing.assert_close(sol.states, reference.states, rtol=20 * tolerance, atol=20 * tolerance)
        assert sol.stats.n_accepted <= adaptive.stats.n_accepted
        assert bool((sol.error_norms < 1).all())
        assert torch.equal(sol.grid, torch.tensor(grid.edges, dtype=F64))
    assert grid.n_searches == 1
    weights = torch.randn_like(sol.states)
    ours, expected = (torch.autograd.grad((s.states * weights).sum(), list(f.parameters())) for s in (sol, reference))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=100 * tolerance, atol=100 * tolerance)


def test_a_valid_grid_is_replayed_and_nothing_else() -> None:
    """The second solve needs only the evaluations of its steps: 1 + 6 n for Dopri5."""
    f, grid = Counted(swirl), TrainingGrid(t_end=3.0)
    y0 = torch.randn(4, 2, dtype=F64)
    first = odesolve(f, y0, [1.0, 2.5], 1e-4, 1e-4, grid=grid)
    assert f.calls == first.stats.n_evaluations
    f.calls = 0
    second = odesolve(f, y0, [0.5, 3.0], 1e-4, 1e-4, grid=grid)
    assert f.calls == second.stats.n_evaluations == 1 + 6 * second.stats.n_accepted
    assert float(second.grid[-1]) == 3.0
    assert (grid.n_solves, grid.n_searches, grid.n_failed_checks, second.stats.n_refreshed) == (2, 1, 0, 0)


def test_a_failed_check_refreshes_the_grid_and_leaves_no_trace() -> None:
    """The field becomes 20 times faster between two solves: the pass over the old grid is discarded and its effects undone.

    Buffers and random state equal those after a single replay of the new grid from the state before the solve.
    """
    f, grid = Switchable(0.5), TrainingGrid()
    y0 = torch.linspace(-1.0, 1.0, 8, dtype=F64)[:, None]
    odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=grid)
    old = list(grid.edges)
    f.rate = 10.0
    before, random = {k: v.clone() for k, v in f.state_dict().items()}, torch.get_rng_state()
    f.calls = 0
    sol = odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=grid)
    assert (sol.stats.n_refreshed, grid.n_failed_checks, grid.n_searches) == (1, 1, 2)
    assert len(grid.edges) > len(old)
    assert f.calls == sol.stats.n_evaluations
    after, drawn = {k: v.clone() for k, v in f.state_dict().items()}, torch.get_rng_state()
    torch.testing.assert_close(sol.states, odesolve(f.eval(), y0, [2.0], 1e-9, 1e-9).states, rtol=0, atol=1e-2)
    f.train().load_state_dict(before)
    torch.set_rng_state(random)
    odesolve(f, y0, [2.0], grid=grid.edges)
    assert all(torch.equal(after[k], v) for k, v in f.state_dict().items())
    assert int(after["norm.num_batches_tracked"]) == int(before["norm.num_batches_tracked"]) + 1 + 6 * sol.stats.n_accepted
    assert torch.equal(drawn, torch.get_rng_state())


def test_a_search_after_the_pass_leaves_its_graph_usable() -> None:
    """A search for fewer steps runs after the replay and restores buffers that the graph has saved: backward still works."""
    f, grid = MLPField(batch_norm=True), TrainingGrid(patience=0)
    grid.edges = torch.linspace(0.0, 2.0, 9, dtype=F64).tolist()
    y0 = torch.randn(16, 3)
    sol = odesolve(f, y0, [0.7, 2.0], grid=grid)
    assert (grid.n_searches, sol.stats.n_accepted) == (1, 8)
    tracked = int(f.norm.num_batches_tracked)
    sol.states.square().sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in f.parameters())
    assert tracked == 1 + 6 * 8


def test_fewer_steps_are_tried_when_the_field_calms_down() -> None:
    """The search starts `patience` solves after the previous one, and the next solve has fewer steps."""
    f, grid = Switchable(10.0), TrainingGrid(patience=3)
    y0 = torch.linspace(-1.0, 1.0, 8, dtype=F64)[:, None]
    n = odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=grid).stats.n_accepted
    f.rate = 0.5
    steps, searches = [], []
    for _ in range(4):
        steps.append(odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=grid).stats.n_accepted)
        searches.append(grid.n_searches)
    assert searches == [1, 1, 2, 2]  # solves 2, 3, 4, 5: the first search was in solve 1
    assert steps[:3] == [n, n, n]  # the solve that searched still used the old grid
    assert steps[3] < n
    assert grid.n_failed_checks == 0


def test_attempts_that_find_no_fewer_steps_keep_the_grid_and_wait_longer(monkeypatch) -> None:
    """Fewer steps are predicted but the search fails: the valid grid stays, and the wait doubles, 2, 4, 8, ..."""
    grid = TrainingGrid(patience=1)
    y0 = torch.randn(4, 2, dtype=F64)
    odesolve(swirl, y0, [2.0], 1e-4, 1e-4, grid=grid)
    edges = list(grid.edges)
    monkeypatch.setattr("ltnode.ode.training_grid.predicted_steps", lambda *_: 1)
    at = []
    for _ in range(16):
        searches = grid.n_searches
        odesolve(swirl, y0, [2.0], 1e-4, 1e-4, grid=grid)
        assert grid.edges == edges
        if grid.n_searches > searches:
            at.append(grid.n_solves)
    assert at == [2, 4, 8, 16]


def test_an_attempt_never_makes_the_grid_longer() -> None:
    """A search that needs more steps than the current valid grid does not replace it."""
    grid = TrainingGrid(patience=0)
    y0 = torch.ones(1, 1, dtype=F64)
    grid.edges = [0.0, 0.3, 0.9]
    with torch.no_grad():
        grid.try_fewer(stiffness(40.0), TABLEAUS["dopri5"], y0, 0.0, 0.9, Tolerance(1e-6, 1e-6))
    assert grid.edges == [0.0, 0.3, 0.9]


def test_the_largest_time_seen_is_remembered() -> None:
    """Without t_end, a search in a solve with earlier times must not shorten the grid, or the next solve would search again."""
    f, grid = Switchable(0.5), TrainingGrid()
    y0 = torch.ones(2, 1, dtype=F64)
    odesolve(f, y0, [2.0], grid=grid)
    odesolve(f, y0, [3.0], grid=grid)
    assert (grid.n_searches, grid.edges[-1]) == (2, 3.0)
    f.rate = 15.0
    odesolve(f, y0, [1.0], grid=grid)
    assert (grid.n_searches, grid.edges[-1]) == (3, 3.0)


def test_times_beyond_t_end_extend_the_grid() -> None:
    grid = TrainingGrid(t_end=1.0)
    y0 = torch.ones(2, 1, dtype=F64)
    odesolve(swirl, y0, [0.5], grid=grid)
    assert grid.edges[-1] == 1.0
    sol = odesolve(swirl, y0, [1.5], 1e-6, 1e-6, grid=grid)
    assert grid.edges[-1] == 1.5
    torch.testing.assert_close(sol.states, odesolve(swirl, y0, [1.5], 1e-9, 1e-9).states, rtol=0, atol=2e-5)


def test_state_dict_continues_bit_for_bit() -> None:
    """After a round trip through JSON, the copy performs the same searches and returns the same states."""
    f, original = Switchable(10.0), TrainingGrid(patience=2)
    y0 = torch.linspace(-1.0, 1.0, 4, dtype=F64)[:, None]
    for _ in range(2):
        odesolve(f, y0, [2.0], 1e-3, 1e-3, grid=original)
    copy = TrainingGrid(patience=2)
    copy.load_state_dict(json.loads(json.dumps(original.state_dict())))
    f.rate = 0.3
    for _ in range(5):
        a, b = (odesolve(f, y0, [1.5], 1e-3, 1e-3, grid=grid) for grid in (original, copy))
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
    """throw=True raises with the status; throw=False returns y0 at t0 and NaN elsewhere. The current grid stays."""
    grid = TrainingGrid()
    grid.edges = [0.0, 1.0]
    y0 = torch.ones(2, 1, dtype=F64)
    with pytest.raises(SolverError) as error:
        odesolve(field, y0, [0.0, 1.0], 1e-6, 1e-6, grid=grid, max_steps=limit)
    assert error.value.status is status
    sol = odesolve(field, y0, [0.0, 1.0], 1e-6, 1e-6, grid=grid, max_steps=limit, throw=False)
    assert sol.status is status
    assert torch.equal(sol.states[0], y0)
    assert sol.states[1].isnan().all()
    assert grid.edges == [0.0, 1.0]
    assert grid.n_failed_checks == 2


@pytest.mark.parametrize("options", [{"t_end": 0.0}, {"t_end": -1.0}, {"t_end": math.nan}, {"t_end": math.inf}, {"patience": -1}])
def test_impossible_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match="must be"):
        TrainingGrid(**options)
