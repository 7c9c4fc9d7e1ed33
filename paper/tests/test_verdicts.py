"""The rules of the verdicts on numbers that are easy to judge, in both directions."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltnode.report.published import Printed
from paper.reproduce.claims.judge import (
    Judgement,
    Measured,
    Verdict,
    judge_best,
    judge_close,
    judge_largest_spread,
    judge_number,
    judge_order,
    judge_users,
)

R, N, V, M = Verdict.REPRODUCED, Verdict.NOT_REPRODUCED, Verdict.REVERSED, Verdict.MISSING


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6))
def test_mean_and_deviation_are_those_of_the_standard_library(values: list[float]) -> None:
    """ddof 0, as in the paper; relative to the magnitude of the values, since both round."""
    ours, size = Measured(tuple(values)), max(1.0, *(abs(v) for v in values))
    assert ours.mean == pytest.approx(statistics.fmean(values), abs=1e-12 * size)
    assert ours.std == pytest.approx(statistics.pstdev(values), abs=1e-7 * size)


@pytest.mark.parametrize(
    ("ours", "verdict", "one_seed"),
    [
        ((0.120,), R, True),  # within the tolerance of .01
        ((0.121,), R, True),  # on its edge
        ((0.1221,), N, True),
        ((0.110, 0.112), R, False),
        ((0.115, 0.135), N, False),  # beyond the tolerance; that our seeds are far apart brings them no closer
        ((0.125, 0.127), N, False),
        (None, M, False),
    ],
)
def test_a_number_is_judged_by_tolerance_and_deviations(ours: tuple[float, ...] | None, verdict: Verdict, one_seed: bool) -> None:
    found = judge_number(None if ours is None else Measured(ours), Printed(0.111, 0.002), 0.01)
    assert (found.verdict, found.one_seed) == (verdict, one_seed)


def test_two_deviations_are_the_papers_and_ours() -> None:
    """.1 ± .01 and .1245 ± .008: two deviations together are .0256; with one seed of ours they are .02."""
    assert judge_number(Measured((0.1165, 0.1325)), Printed(0.1, 0.01), 0.01).verdict is R
    assert judge_number(Measured((0.1245,)), Printed(0.1, 0.01), 0.01).verdict is N


def test_a_wide_published_spread_allows_as_much() -> None:
    """SDE-Net on CIFAR10 is printed as .153 ± .068: two deviations are .136."""
    assert judge_number(Measured((0.28,)), Printed(0.153, 0.068), 0.01).verdict is R
    assert judge_number(Measured((0.29,)), Printed(0.153, 0.068), 0.01).verdict is N


@pytest.mark.parametrize(
    ("better", "worse", "verdict"),
    [
        ((0.9, 0.92), (0.8, 0.82), R),
        ((0.8, 0.82), (0.9, 0.92), V),
        ((0.80, 0.90), (0.79, 0.89), N),  # a gap of .01 with a spread of .07
        ((0.5, 0.5), (0.5, 0.5), N),
    ],
)
def test_an_order_needs_a_gap_beyond_the_spread(better: tuple[float, ...], worse: tuple[float, ...], verdict: Verdict) -> None:
    """Also the other way round, where smaller is better: the verdict belongs to the gap and not to the sign."""
    high = judge_order(Measured(better), Measured(worse), True)
    low = judge_order(Measured(tuple(-v for v in better)), Measured(tuple(-v for v in worse)), False)
    assert high.verdict is low.verdict is verdict
    assert not high.one_seed


def test_one_seed_takes_the_paper_s_deviation_and_is_marked() -> None:
    """A gap of .01: an order without any known spread, none where the paper's deviations are .01 each."""
    one, other = Measured((0.50,)), Measured((0.49,))
    bare = judge_order(one, other, True)
    assert (bare.verdict, bare.text) == (R, "reproduced (one seed)")
    wide = judge_order(one, other, True, (Printed(0.5, 0.01), Printed(0.49, 0.01)))
    assert (wide.verdict, wide.one_seed) == (N, True)
    assert "within the spread" in wide.detail
    # With two seeds the deviation is our own, whatever the paper prints.
    ours = judge_order(Measured((0.50, 0.50)), Measured((0.49, 0.49)), True, (Printed(0.0, 9.0), Printed(0.0, 9.0)))
    assert ours.verdict is R
    assert judge_order(None, other, True).text == "missing"


def test_the_best_must_be_better_than_each() -> None:
    """One better rival reverses it even while others are missing; a missing one leaves it open, and says who is missing."""
    good, same, bad = Measured((0.5, 0.5)), Measured((0.9, 0.9)), Measured((1.0, 1.0))
    assert judge_best(same, {"a": good, "b": good}, True).verdict is R
    assert judge_best(same, {"a": good, "b": same}, True) == Judgement(N, False, "within the spread of b")
    assert judge_best(same, {"a": good, "b": bad, "c": None}, True) == Judgement(V, False, "b better; missing: c")
    assert judge_best(same, {"a": good, "c": None}, True) == Judgement(M, False, "ahead of a so far; missing: c")
    assert judge_best(None, {"a": good, "c": None}, True, name="m") == Judgement(M, False, "missing: m, c")
    marked = judge_best(same, {"a": Measured((0.5,))}, True)
    assert marked.text == "reproduced (one seed)"


def test_close_models() -> None:
    near, far = {"a": Measured((0.50,)), "b": Measured((0.52,))}, {"a": Measured((0.5,)), "b": Measured((0.6,))}
    assert judge_close(near, 0.05).text == "reproduced (one seed)"
    assert judge_close(far, 0.05).verdict is N
    assert judge_close({**near, "c": None}, 0.05).verdict is M
    assert judge_close({**far, "c": None}, 0.05).verdict is N  # one more model cannot bring them together
    assert judge_close({"a": Measured((0.5,)), "c": None}, 0.05).verdict is M


def test_the_largest_spread_needs_two_seeds_of_each() -> None:
    wide, narrow = Measured((0.1, 0.3)), Measured((0.1, 0.11))
    assert judge_largest_spread("a", {"a": wide, "b": narrow}).verdict is R
    assert judge_largest_spread("a", {"a": narrow, "b": wide}).verdict is V
    assert judge_largest_spread("a", {"a": wide, "b": Measured((0.1,))}).verdict is M


@pytest.mark.parametrize(
    ("verdicts", "answer"),
    [
        ([R, R], "yes"),
        ([R, N], "yes"),
        ([R, V], "in part"),
        ([V, N], "no"),
        ([N, N], "undecided"),
        ([R, M], "missing"),
        ([], "missing"),
    ],
)
def test_the_users_question(verdicts: list[Verdict], answer: str) -> None:
    assert judge_users([Judgement(v) for v in verdicts]) == (answer, False)


def test_texts() -> None:
    assert Measured((0.1234,)).text(3) == "0.123"
    assert Measured((0.1, 0.2)).text(3) == "0.150 ± 0.050"
    assert Measured((0.5,)).text(1, 100.0) == "50.0"
    assert math.isclose(Measured((1.0, 3.0)).spread(Printed(0.0, 9.0)), 1.0)
