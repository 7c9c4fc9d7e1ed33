"""The rules of the judge, with numbers that have an obvious verdict, in both directions."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ltnode.report.aggregate import Measured
from paper.reproduce.claims.claim import Always, AtMost, Best, Close, MostVariable, Near, NotBest, NoWorse, Overall, Statement
from paper.reproduce.claims.evidence import Evidence, Seeds
from paper.reproduce.claims.judge import judge
from paper.reproduce.claims.verdict import Answer, Outcome, Verdict
from paper.reproduce.pages.claims import verdict_text
from paper.reproduce.published import Printed

R, N, V, M = Outcome.REPRODUCED, Outcome.NOT_REPRODUCED, Outcome.REVERSED, Outcome.MISSING


def verdict(statement: Statement, **numbers: tuple[float, ...] | None) -> Verdict:
    """The verdict on a statement, given the values of every number, one per seed."""
    measured = {name: None if values is None else Measured(values) for name, values in numbers.items()}
    return judge(statement, Evidence(measured, ""))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=6))
def test_mean_and_deviation_are_those_of_the_standard_library(values: list[float]) -> None:
    """ddof 0, as in the paper; the tolerance is relative to the magnitude of the values, since both sides round."""
    ours, size = Measured(tuple(values)), max(1.0, *(abs(v) for v in values))
    assert ours.mean == pytest.approx(statistics.fmean(values), abs=1e-12 * size)
    assert ours.std == pytest.approx(statistics.pstdev(values), abs=1e-7 * size)


@pytest.mark.parametrize(
    ("ours", "outcome", "one_seed"),
    [
        ((0.120,), R, True),  # within the tolerance of 0.01
        ((0.121,), R, True),  # on its edge
        ((0.1221,), N, True),
        ((0.110, 0.112), R, False),
        ((0.115, 0.135), N, False),  # beyond the tolerance; a large spread of our seeds does not help
        ((0.125, 0.127), N, False),
        (None, M, False),
    ],
)
def test_a_number_is_judged_by_tolerance_and_deviations(ours: tuple[float, ...] | None, outcome: Outcome, one_seed: bool) -> None:
    found = verdict(Near({"x": Printed(0.111, 0.002)}, 0.01), x=ours)
    assert (found.outcome, found.rests_on_one_seed) == (outcome, one_seed)


def test_two_deviations_are_the_papers_and_ours() -> None:
    """0.1 ± 0.01 and 0.1245 ± 0.008: two deviations together are 0.0256; with one seed of ours they are 0.02."""
    near = Near({"x": Printed(0.1, 0.01)}, 0.01)
    assert verdict(near, x=(0.1165, 0.1325)).outcome is R
    assert verdict(near, x=(0.1245,)).outcome is N


def test_a_wide_published_spread_allows_as_much() -> None:
    """SDE-Net on CIFAR10 is printed as 0.153 ± 0.068: two deviations are 0.136."""
    near = Near({"x": Printed(0.153, 0.068)}, 0.01)
    assert verdict(near, x=(0.28,)).outcome is R
    assert verdict(near, x=(0.29,)).outcome is N


def test_several_printed_numbers_must_all_be_near() -> None:
    near = Near({"alpha": Printed(1.27, 0.0), "beta": Printed(0.98, 0.0)}, 0.1)
    assert verdict(near, alpha=(1.3,), beta=(1.0,)).outcome is R
    assert verdict(near, alpha=(1.3,), beta=(0.8,)).outcome is N
    assert verdict(near, alpha=(1.3,), beta=None).outcome is M


@pytest.mark.parametrize(
    ("better", "worse", "outcome"),
    [
        ((0.9, 0.92), (0.8, 0.82), R),
        ((0.8, 0.82), (0.9, 0.92), V),
        ((0.80, 0.90), (0.79, 0.89), N),  # a gap of 0.01 with a spread of 0.07
        ((0.5, 0.5), (0.5, 0.5), N),
    ],
)
def test_an_order_needs_a_gap_beyond_the_spread(better: tuple[float, ...], worse: tuple[float, ...], outcome: Outcome) -> None:
    """The same holds if smaller numbers are better: the verdict depends on the gap and not on the sign."""
    high = verdict(Best("a", higher=True), a=better, b=worse)
    low = verdict(Best("a", higher=False), a=tuple(-v for v in better), b=tuple(-v for v in worse))
    assert high.outcome is low.outcome is outcome
    assert not high.rests_on_one_seed


def test_one_seed_takes_the_paper_s_deviation_and_is_marked() -> None:
    """A gap of 0.01 is an order if no spread is known, and none if the paper's deviations are 0.01 each."""
    bare = verdict(Best("a", higher=True), a=(0.50,), b=(0.49,))
    assert verdict_text(bare) == "reproduced (one seed)"
    printed = {"a": Printed(0.5, 0.01), "b": Printed(0.49, 0.01)}
    wide = verdict(Best("a", True, printed), a=(0.50,), b=(0.49,))
    assert (wide.outcome, wide.rests_on_one_seed) == (N, True)
    assert "within the spread" in wide.reason
    # With two seeds the deviation is our own, whatever the paper prints.
    printed = {"a": Printed(0.0, 9.0), "b": Printed(0.0, 9.0)}
    assert verdict(Best("a", True, printed), a=(0.50, 0.50), b=(0.49, 0.49)).outcome is R
    assert verdict_text(verdict(Best("a", higher=True), a=None, b=(0.49,))) == "missing"


def test_the_best_must_be_better_than_each() -> None:
    """One better rival reverses the claim even while others are missing; a missing rival leaves it open and is named."""
    good, same, bad = (0.5, 0.5), (0.9, 0.9), (1.0, 1.0)
    best = Best("m", higher=True)
    two = Seeds(2, 2)
    assert verdict(best, m=same, a=good, b=good).outcome is R
    assert verdict(best, m=same, a=good, b=same) == Verdict(N, two, "within the spread of b")
    assert verdict(best, m=same, a=good, b=bad, c=None) == Verdict(V, two, "better: b; missing: c")
    assert verdict(best, m=same, a=good, c=None) == Verdict(M, two, "ahead of a so far; missing: c")
    assert verdict(best, m=None, a=good, c=None) == Verdict(M, two, "missing: m, c")
    assert verdict_text(verdict(best, m=same, a=(0.5,))) == "reproduced (one seed)"


def test_an_exception_is_the_opposite_of_the_best() -> None:
    exception = NotBest(Best("m", higher=True))
    assert verdict(exception, m=(0.9, 0.9), a=(0.5, 0.5)).outcome is V
    assert verdict(exception, m=(0.5, 0.5), a=(0.9, 0.9)).outcome is R
    assert verdict(exception, m=(0.5, 0.5), a=(0.5, 0.5)).outcome is R
    assert verdict(exception, m=(0.9, 0.9), a=None).outcome is M


def test_close_models() -> None:
    close = Close(0.05)
    assert verdict_text(verdict(close, a=(0.50,), b=(0.52,))) == "reproduced (one seed)"
    assert verdict(close, a=(0.50,), b=(0.6,)).outcome is N
    assert verdict(close, a=(0.50,), b=(0.52,), c=None).outcome is M
    assert verdict(close, a=(0.50,), b=(0.6,), c=None).outcome is N  # one more model cannot bring them together
    assert verdict(close, a=(0.5,), c=None).outcome is M


def test_the_largest_spread_needs_two_seeds_of_each() -> None:
    wide, narrow = (0.1, 0.3), (0.1, 0.11)
    assert verdict(MostVariable("a"), a=wide, b=narrow).outcome is R
    assert verdict(MostVariable("a"), a=narrow, b=wide).outcome is V
    assert verdict(MostVariable("a"), a=wide, b=(0.1,)).outcome is M


def test_bounds_flags_and_groups() -> None:
    assert verdict(AtMost(1.2), x=(1.2,)).outcome is R
    assert verdict(AtMost(1.2), x=(1.3,)).outcome is N
    assert verdict(Always(), a=(1.0, 1.0), b=(1.0,)).outcome is R
    assert verdict(Always(), a=(1.0, 0.0), b=(1.0,)).outcome is N
    assert verdict(Always(), a=(1.0, 1.0), b=None) == Verdict(M, Seeds(2, 2), "missing: b")
    assert verdict(NoWorse(("a",), 0.01), a=(0.11,), b=(0.10,), c=(0.2,)).outcome is R
    assert verdict(NoWorse(("a",), 0.01), a=(0.12,), b=(0.10,), c=(0.2,)).outcome is N


def test_numbers_that_cannot_be_compared_decide_nothing() -> None:
    found = judge(Best("a", higher=True), Evidence({"a": Measured((1.0,)), "b": Measured((0.0,))}, "", unusable="two devices"))
    assert found == Verdict(M, Seeds(1, 1), "two devices")
    assert not found.rests_on_one_seed


@pytest.mark.parametrize(
    ("scores", "answer"),
    [
        ([1, 1], Answer.YES),
        ([1, 0], Answer.YES),
        ([1, -1], Answer.IN_PART),
        ([-1, 0], Answer.NO),
        ([0, 0], Answer.UNDECIDED),
        ([1, None], Answer.MISSING),
        ([], Answer.MISSING),
    ],
)
def test_the_users_question(scores: list[int | None], answer: Answer) -> None:
    numbers = {f"measure {k}": None if score is None else (float(score),) for k, score in enumerate(scores)}
    assert verdict(Overall(), **numbers).outcome is answer


def test_texts() -> None:
    assert Measured((0.1234,)).text(3) == "0.123"
    assert Measured((0.1, 0.2)).text(3) == "0.150 ± 0.050"
    assert Measured((0.5,)).text(1, 100.0) == "50.0"
    assert Evidence({"a": Measured((1.0,)), "b": None, "c": Measured((1.0, 2.0))}, "").seeds == Seeds(1, 2)
    assert Evidence({"a": Measured((1.0,))}, "", seed_counts=()).seeds == Seeds(0, 0)
