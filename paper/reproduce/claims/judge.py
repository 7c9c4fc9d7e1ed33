"""The judge: the one place that decides whether our numbers support a claim of the paper.

All rules were fixed before the runs that they judge, except for one. A printed number is reproduced if ours differs from it by at
most a tolerance, or by at most two standard deviations (the paper's and ours combined, where ours counts for at most the
paper's). This last limit was added when one of our seeds failed and its large deviation widened what was allowed; it can only
turn "reproduced" into "not reproduced". An order is reproduced if the gap exceeds the spread over seeds, reversed if it does so
in the other direction, and not reproduced in between. The spread of a single seed is unknown: the standard deviation that the
paper prints is used instead, if there is one, and the verdict says that it rests on one seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

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
    Overall,
    Statement,
)
from paper.reproduce.claims.evidence import Evidence
from paper.reproduce.claims.verdict import Answer, JudgedClaim, Outcome, Verdict
from paper.reproduce.published import Printed

Numbers = Mapping[str, Measured | None]


def judged(claim: Claim, evidence: Evidence) -> JudgedClaim:
    """Judge a claim by our evidence."""
    return JudgedClaim(claim, evidence, judge(claim.statement, evidence))


def judge(statement: Statement, evidence: Evidence) -> Verdict:
    """Decide whether our evidence supports a statement.

    Args:
        statement: What is claimed; its names are those of the evidence.
        evidence: What we measured.
    """
    if evidence.unusable:
        return Verdict(Outcome.MISSING, evidence.seeds, evidence.unusable)
    outcome, reason = _decide(statement, evidence.numbers)
    return Verdict(outcome, evidence.seeds, reason)


def _decide(statement: Statement, numbers: Numbers) -> tuple[Outcome | Answer, str]:
    """The outcome and the reason for it."""
    match statement:
        case Best():
            return _best(statement, numbers)
        case NotBest():
            return _not_best(statement, numbers)
        case Close():
            return _close(statement, numbers)
        case MostVariable():
            return _most_variable(statement, numbers)
        case Overall():
            return _overall(numbers), ""
    known = {name: number for name, number in numbers.items() if number is not None}
    if len(known) < len(numbers):
        return Outcome.MISSING, _missing(name for name in numbers if name not in known) if known else ""
    return _plain(_holds(statement, known)), ""


def _holds(statement: Near | AtMost | NoWorse | Always, numbers: Mapping[str, Measured]) -> bool:
    match statement:
        case Near():
            return all(_is_near(numbers[name], printed, statement.tolerance) for name, printed in statement.printed.items())
        case AtMost():
            return all(number.mean <= statement.bound for number in numbers.values())
        case NoWorse():
            these = min(number.mean for name, number in numbers.items() if name in statement.names)
            others = min(number.mean for name, number in numbers.items() if name not in statement.names)
            return these <= others + statement.tolerance
        case Always():
            return all(value == 1 for number in numbers.values() for value in number.values)


def _is_near(ours: Measured, paper: Printed, tolerance: float) -> bool:
    allowed = max(tolerance, 2 * math.hypot(paper.std, min(ours.std, paper.std)))
    # Printed numbers have few digits, so a difference that equals the bound up to rounding counts as within it.
    return abs(ours.mean - paper.mean) <= allowed * (1 + 1e-9)


def _best(statement: Best, numbers: Numbers) -> tuple[Outcome, str]:
    """A rival that is better beyond the spread reverses the claim even while others are missing."""
    candidate = numbers[statement.name]
    absent = _missing(name for name, number in numbers.items() if number is None)
    if candidate is None:
        return Outcome.MISSING, absent
    rivals = {name: number for name, number in numbers.items() if name != statement.name and number is not None}
    single = {name: _compare(statement, candidate, name, rival) for name, rival in rivals.items()}
    by = {outcome: ", ".join(name for name, found in single.items() if found is outcome) for outcome in Outcome}
    if by[Outcome.REVERSED]:
        return Outcome.REVERSED, _joined(f"{statement.word}: {by[Outcome.REVERSED]}", absent)
    if by[Outcome.NOT_REPRODUCED]:
        return Outcome.NOT_REPRODUCED, _joined(f"within the spread of {by[Outcome.NOT_REPRODUCED]}", absent)
    if absent:
        ahead = f"ahead of {by[Outcome.REPRODUCED]} so far" if by[Outcome.REPRODUCED] else ""
        return Outcome.MISSING, _joined(ahead, absent)
    return Outcome.REPRODUCED, ""


def _compare(statement: Best, candidate: Measured, name: str, rival: Measured) -> Outcome:
    gap = (candidate.mean - rival.mean) * (1 if statement.higher else -1)
    spread = math.hypot(_spread(candidate, statement.printed.get(statement.name)), _spread(rival, statement.printed.get(name)))
    return Outcome.REPRODUCED if gap > spread else Outcome.REVERSED if gap < -spread else Outcome.NOT_REPRODUCED


def _spread(number: Measured, printed: Printed | None) -> float:
    return number.std if number.seeds > 1 or printed is None else printed.std


def _not_best(statement: NotBest, numbers: Numbers) -> tuple[Outcome, str]:
    outcome, reason = _best(statement.best, numbers)
    opposite = {Outcome.REPRODUCED: Outcome.REVERSED, Outcome.MISSING: Outcome.MISSING}
    return opposite.get(outcome, Outcome.REPRODUCED), reason


def _close(statement: Close, numbers: Numbers) -> tuple[Outcome, str]:
    means = [number.mean for number in numbers.values() if number is not None]
    absent = _missing(name for name, number in numbers.items() if number is None)
    if len(means) < 2:
        return Outcome.MISSING, absent
    difference = max(means) - min(means)
    reason = f"largest difference {difference:.3f}"
    # A missing number can only increase the largest difference.
    if absent and difference <= statement.bound:
        return Outcome.MISSING, _joined(reason, absent)
    return _plain(difference <= statement.bound), reason


def _most_variable(statement: MostVariable, numbers: Numbers) -> tuple[Outcome, str]:
    spreads = {name: number.std for name, number in numbers.items() if number is not None and number.seeds > 1}
    if len(spreads) < len(numbers):
        return Outcome.MISSING, "needs at least two seeds of every model"
    return (Outcome.REPRODUCED if max(spreads, key=spreads.__getitem__) == statement.name else Outcome.REVERSED), ""


def _overall(numbers: Numbers) -> Answer:
    scores = {None if number is None else number.mean for number in numbers.values()}
    if not scores or None in scores:
        return Answer.MISSING
    better, worse = 1 in scores, -1 in scores
    return Answer.IN_PART if better and worse else Answer.YES if better else Answer.NO if worse else Answer.UNDECIDED


def _plain(holds: bool) -> Outcome:
    return Outcome.REPRODUCED if holds else Outcome.NOT_REPRODUCED


def _missing(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f"missing: {listed}" if listed else ""


def _joined(*reasons: str) -> str:
    return "; ".join(reason for reason in reasons if reason)
