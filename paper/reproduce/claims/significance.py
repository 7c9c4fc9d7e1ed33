"""A test of significance for every claim, beside the rule of `judge`: five seeds of ours against five of the paper, or of ours.

It was chosen before the runs that complete five seeds, and it does not change with them. A statement says that a difference of
means lies in some region. It is *supported* if the hypothesis that the difference lies outside is rejected, *contradicted* if the
hypothesis that it lies inside is rejected, and *undecided* otherwise.

- The difference of two means of seeds has Welch's t distribution, with degrees of freedom by Welch and Satterthwaite.
  A printed mean ± deviation counts as five seeds with that deviation, which is at least half a unit of the third decimal place,
  since it is rounded. A number that the paper prints without a deviation is taken as exact.
- A printed number: the region is within the tolerance of the rule. An order: the region is above zero, against every rival; all
  must be rejected for support (the largest p), and one suffices for contradiction (the smallest p, times the number of rivals).
  "Within a bound": two one-sided tests. The largest variance over seeds: F tests.
- p-values are corrected by Holm's method over all tests of a section of the page, two for each claim; the level is 5 %.
- Statements about every seed, about numbers that do not depend on a seed, and about numbers with a single seed have no test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ltnode.errors import missing_extra
from ltnode.report.aggregate import Measured
from paper.reproduce.claims.claim import AtMost, Best, Close, MostVariable, Near, NotBest, NoWorse, Statement
from paper.reproduce.claims.verdict import Finding, JudgedClaim, Significance
from paper.reproduce.published import Printed

LEVEL = 0.05
_HALF_A_UNIT = 0.0005


class Side(NamedTuple):
    """Mean, squared standard error, and degrees of freedom of one side of a comparison."""

    mean: float
    squared_error: float
    freedom: float


class Pair(NamedTuple):
    """The p-values of one claim: of the hypothesis that it is false, and of the hypothesis that it is true."""

    false: float
    true: float


def with_significance(judged: Iterable[JudgedClaim]) -> list[JudgedClaim]:
    """Add the findings of the tests to claims; the correction is over the claims of each section."""
    claims = list(judged)
    pairs = [p_values(entry.claim.statement, entry.evidence.numbers) if not entry.evidence.unusable else None for entry in claims]
    findings: list[Significance] = [Significance(Finding.NO_TEST)] * len(claims)
    for section in {entry.claim.section for entry in claims}:
        places = [k for k, entry in enumerate(claims) if entry.claim.section is section and pairs[k] is not None]
        corrected = holm([p for k in places for p in pairs[k] or ()])
        for k, false, true in zip(places, corrected[::2], corrected[1::2], strict=True):
            finding = Finding.SUPPORTED if false < LEVEL else Finding.CONTRADICTED if true < LEVEL else Finding.UNDECIDED
            findings[k] = Significance(finding, min(false, true))
    return [replace(entry, significance=finding) for entry, finding in zip(claims, findings, strict=True)]


def p_values(statement: Statement, numbers: Mapping[str, Measured | None]) -> Pair | None:
    """The p-values of a statement, before the correction; None if it has no test or a number has fewer than two seeds.

    Args:
        statement: What is claimed; its names are those of the numbers.
        numbers: Our numbers over seeds.
    """
    known = {name: number for name, number in numbers.items() if number is not None and number.seeds > 1}
    if not known or len(known) < len(numbers):
        return None
    sides = {name: _measured(number) for name, number in known.items()}
    match statement:
        case Near(printed, tolerance):
            return _every([_within(sides[name], _printed(value), tolerance) for name, value in printed.items()])
        case Best(name, higher):
            sign = 1 if higher else -1
            return _every([_above(sides[name], side, 0.0, sign) for rival, side in sides.items() if rival != name])
        case NotBest(best):
            opposite = p_values(best, numbers)
            return None if opposite is None else Pair(opposite.true, opposite.false)
        case Close(bound):
            return _every([_within(a, b, bound) for a, b in itertools.combinations(sides.values(), 2)])
        case AtMost(bound):
            return _every([_above(Side(bound, 0.0, math.inf), side, 0.0) for side in sides.values()])
        case NoWorse(names, tolerance):
            others = [side for name, side in sides.items() if name not in names]
            # One of the named numbers exceeds none of the others by the tolerance.
            return _some([_every([_above(other, sides[name], -tolerance) for other in others]) for name in names])
        case MostVariable(name):
            return _every([_more_variable(known[name], known[rival]) for rival in known if rival != name])
    return None


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values by Holm's method; returns them in the order of the arguments."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, k in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[k]))
        corrected[k] = largest
    return corrected


def _every(pairs: Sequence[Pair]) -> Pair:
    """A statement that consists of several, all of which must hold."""
    return Pair(max(pair.false for pair in pairs), min(1.0, len(pairs) * min(pair.true for pair in pairs)))


def _some(pairs: Sequence[Pair]) -> Pair:
    """A statement that holds if one of several does."""
    return Pair(min(1.0, len(pairs) * min(pair.false for pair in pairs)), max(pair.true for pair in pairs))


def _within(a: Side, b: Side, bound: float) -> Pair:
    """The means differ by at most a bound: two one-sided tests, of which at most one can contradict."""
    return _every([_above(a, b, -bound), _above(b, a, -bound)])


def _above(a: Side, b: Side, bound: float, sign: int = 1) -> Pair:
    """The mean of a exceeds that of b by more than a bound (for sign -1: b that of a)."""
    difference = sign * (a.mean - b.mean) - bound
    squared = a.squared_error + b.squared_error
    if squared == 0:  # numbers that do not vary at all
        return Pair(0.5, 0.5) if difference == 0 else Pair(0.0, 1.0) if difference > 0 else Pair(1.0, 0.0)
    parts = [side.squared_error**2 / side.freedom for side in (a, b) if side.squared_error]
    freedom, t = squared**2 / math.fsum(parts), difference / math.sqrt(squared)
    return Pair(float(_special().stdtr(freedom, -t)), float(_special().stdtr(freedom, t)))


def _more_variable(a: Measured, b: Measured) -> Pair:
    """The variance of a over seeds exceeds that of b."""
    if a.std == 0 or b.std == 0:
        return Pair(0.5, 0.5) if a.std == b.std else Pair(0.0, 1.0) if a.std > b.std else Pair(1.0, 0.0)
    ratio = (a.std**2 * a.seeds / (a.seeds - 1)) / (b.std**2 * b.seeds / (b.seeds - 1))
    freedoms = (a.seeds - 1, b.seeds - 1)
    return Pair(float(_special().fdtrc(*freedoms, ratio)), float(_special().fdtr(*freedoms, ratio)))


def _measured(number: Measured) -> Side:
    # The deviation has ddof 0, and the squared standard error is the variance with ddof 1 over the number of seeds.
    return Side(number.mean, number.std**2 / (number.seeds - 1), number.seeds - 1)


def _printed(value: Printed) -> Side:
    if value.seeds < 2:
        return Side(value.mean, 0.0, math.inf)
    return Side(value.mean, max(value.std, _HALF_A_UNIT) ** 2 / (value.seeds - 1), value.seeds - 1)


def _special() -> Any:
    try:
        from scipy import special
    except ImportError as error:
        raise missing_extra("scipy", "images", "testing the claims") from error
    return special
