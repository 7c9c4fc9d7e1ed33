"""The test of significance beside the verdicts: its p-values are those of scipy's tests, and it can go both ways."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from ltnode.report.aggregate import Measured
from paper.reproduce.claims.claim import (
    Always,
    AtMost,
    Best,
    Claim,
    Close,
    MostVariable,
    Near,
    NotBest,
    NoWorse,
    Section,
    Statement,
)
from paper.reproduce.claims.evidence import Evidence
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.significance import Pair, holm, p_values, with_significance
from paper.reproduce.claims.verdict import Finding, Significance
from paper.reproduce.published import Printed

values = st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=2, max_size=6)
varied = values.filter(lambda found: len(set(found)) > 1)
LOW, HIGH = (0.10, 0.11, 0.12, 0.11, 0.10), (0.20, 0.21, 0.19, 0.20, 0.22)


def pair(statement: Statement, **numbers: tuple[float, ...] | list[float]) -> Pair:
    found = p_values(statement, {name: Measured(tuple(value)) for name, value in numbers.items()})
    assert found is not None
    return found


@given(varied, varied)
def test_an_order_of_two_models_is_welchs_test(a: list[float], b: list[float]) -> None:
    """Oracle: scipy.stats.ttest_ind. The tolerance is that of sums over numbers with three decimal places."""
    expected = stats.ttest_ind(a, b, equal_var=False, alternative="greater").pvalue
    found = pair(Best("a", higher=True), a=a, b=b)
    assert found.false == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert found.true == pytest.approx(1 - expected, rel=1e-6, abs=1e-9)
    assert pair(Best("a", higher=False), a=a, b=b) == pytest.approx(found[::-1], rel=1e-6, abs=1e-9)
    assert pair(NotBest(Best("a", higher=True)), a=a, b=b) == found[::-1]


@given(varied, st.floats(-5, 5), st.floats(0.001, 3), st.floats(0.01, 4))
def test_a_printed_number_is_two_one_sided_tests(ours: list[float], mean: float, std: float, tolerance: float) -> None:
    """Oracle: ttest_ind_from_stats with the printed deviation, which has ddof 0, of five seeds, as one with ddof 1."""

    def exceeds(bound: float) -> float:
        sample = (np.mean(ours) - bound, np.std(ours, ddof=1), len(ours))
        paper = (mean, std * np.sqrt(5 / 4), 5)
        return float(stats.ttest_ind_from_stats(*sample, *paper, equal_var=False, alternative="greater").pvalue)

    found = pair(Near({"x": Printed(mean, std)}, tolerance), x=ours)
    assert found.false == pytest.approx(max(exceeds(-tolerance), 1 - exceeds(tolerance)), rel=1e-6, abs=1e-9)
    assert found.true == pytest.approx(min(1.0, 2 * min(1 - exceeds(-tolerance), exceeds(tolerance))), rel=1e-6, abs=1e-9)


@given(varied, st.floats(-5, 5))
def test_a_number_without_a_deviation_is_exact(ours: list[float], printed: float) -> None:
    """Oracle: scipy's test of one sample, also for bounds."""
    above, below = (
        float(stats.ttest_1samp(ours, printed + bound, alternative=side).pvalue)
        for bound, side in ((-1.0, "greater"), (1.0, "less"))
    )
    found = pair(Near({"x": Printed(printed, 0.7, seeds=0)}, 1.0), x=ours)
    assert found.false == pytest.approx(max(above, below), rel=1e-6, abs=1e-9)
    bounded = pair(AtMost(printed), x=ours)
    assert bounded.false == pytest.approx(stats.ttest_1samp(ours, printed, alternative="less").pvalue, rel=1e-6, abs=1e-9)


def test_a_rounded_deviation_of_zero_is_half_a_unit() -> None:
    """0.005 ± 0.000 can be a deviation of almost 0.0005, so it is tested as that."""
    numbers = (0.0040, 0.0042, 0.0044)
    printed = [pair(Near({"x": Printed(0.005, std)}, 0.002), x=numbers) for std in (0.0, 0.0005)]
    assert printed[0] == printed[1]


@given(varied, varied)
def test_the_largest_variance_is_an_f_test(a: list[float], b: list[float]) -> None:
    ratio = np.var(a, ddof=1) / np.var(b, ddof=1)
    found = pair(MostVariable("a"), a=a, b=b)
    assert found.false == pytest.approx(stats.f.sf(ratio, len(a) - 1, len(b) - 1), rel=1e-5, abs=1e-9)


def test_a_claim_about_several_models_must_hold_against_each() -> None:
    """For support the worst p-value counts, for contradiction the best, times the number of comparisons."""
    best = Best("a", higher=True)
    single = {rival: pair(best, a=HIGH, **{rival: value}) for rival, value in (("b", LOW), ("c", HIGH))}
    both = pair(best, a=HIGH, b=LOW, c=HIGH)
    assert both.false == max(single["b"].false, single["c"].false)
    assert both.true == min(1.0, 2 * min(single["b"].true, single["c"].true))


def test_bounds_on_differences_go_both_ways() -> None:
    """The means differ by 0.096, with standard errors of about 0.006."""
    assert pair(Close(0.2), a=LOW, b=HIGH).false < 1e-4
    assert pair(Close(0.02), a=LOW, b=HIGH).true < 1e-4
    assert min(pair(Close(0.096), a=LOW, b=HIGH)) > 0.4
    assert pair(NoWorse(("a",), 0.01), a=LOW, b=HIGH).false < 1e-4
    assert pair(NoWorse(("b",), 0.01), a=LOW, b=HIGH).true < 1e-4
    assert pair(NoWorse(("a", "b"), 0.01), a=LOW, b=HIGH, c=HIGH).false < 1e-4  # one of the two suffices


def test_numbers_that_do_not_vary_are_compared_as_they_are() -> None:
    same, other = (0.5, 0.5), (0.4, 0.4)
    assert pair(Best("a", higher=True), a=same, b=other) == (0.0, 1.0)
    assert pair(Best("a", higher=False), a=same, b=other) == (1.0, 0.0)
    assert pair(Best("a", higher=True), a=same, b=same) == (0.5, 0.5)
    assert [pair(MostVariable("a"), a=a, b=b) for a, b in ((LOW, same), (same, LOW), (same, same))] == [
        (0.0, 1.0), (1.0, 0.0), (0.5, 0.5),
    ]  # fmt: skip


def test_without_two_seeds_of_each_there_is_no_test() -> None:
    assert p_values(Close(0.1), {"a": Measured(LOW), "b": Measured((0.1,))}) is None
    assert p_values(Close(0.1), {"a": Measured(LOW), "b": None}) is None
    assert p_values(NotBest(Best("a", higher=True)), {}) is None
    assert p_values(Always(), {"a": Measured((1.0, 1.0))}) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holms_correction(p: list[float]) -> None:
    """It is never below the p-value nor above Bonferroni's, keeps the order, and multiplies the smallest by the number."""
    found = holm(p)
    for raw, corrected in zip(p, found, strict=True):
        assert raw <= corrected <= min(1.0, len(p) * raw) or corrected == raw
    assert sorted(found) == [found[k] for k in sorted(range(len(p)), key=p.__getitem__)]
    assert min(found) == min(1.0, len(p) * min(p))
    # The textbook example, by hand: 0.01 * 4, 0.02 * 3, max(0.06, 0.03 * 2), 0.04 -> 0.06.
    assert holm([0.01, 0.04, 0.03, 0.02]) == pytest.approx([0.04, 0.06, 0.06, 0.06])


def test_corrections_are_made_for_each_section() -> None:
    """The same comparison alone in its section has a smaller p-value than among three; a single seed has no test."""

    def made(section: Section, key: str, *, one_seed: bool = False) -> Claim:
        return Claim(key, section, key, Best("a", higher=True), "")

    numbers = {"a": Measured(HIGH), "b": Measured(LOW)}
    claims = [judged(made(Section.ERROR, "alone"), Evidence(numbers, ""))]
    claims += [judged(made(Section.ATTACK, f"{k}"), Evidence(numbers, "")) for k in range(3)]
    claims += [judged(made(Section.ATTACK, "one"), Evidence({"a": Measured((1.0,)), "b": Measured(LOW)}, ""))]
    claims += [judged(made(Section.ATTACK, "unusable"), Evidence(numbers, "", unusable="why"))]
    alone, *among, one, unusable = with_significance(claims)
    assert alone.significance.finding is Finding.SUPPORTED
    assert alone.significance.p is not None
    assert [entry.significance.p for entry in among] == pytest.approx([3 * alone.significance.p] * 3)
    assert one.significance == unusable.significance == Significance(Finding.NO_TEST)
    assert (one.significance.text, Significance(Finding.SUPPORTED, 0.0123).text) == ("", "supported (p = 0.012)")
    reversed_claim = judged(made(Section.ERROR, "x"), Evidence({"a": Measured(LOW), "b": Measured(HIGH)}, ""))
    assert with_significance([reversed_claim])[0].significance.finding is Finding.CONTRADICTED
