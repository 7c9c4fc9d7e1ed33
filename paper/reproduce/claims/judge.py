"""How a claim of the paper is judged by our numbers. The rules were fixed before the runs that they judge, but for one.

A printed number is reproduced within a tolerance or within two deviations, the paper's and ours together, where ours counts for
no more than the paper's: a model that varies more than the paper's does not come closer to it by that. (This limit came later,
when one of our seeds failed and so widened what was allowed; it can only turn "reproduced" into "not".) An order is reproduced
where the gap exceeds the spread over seeds, reversed where it does so the other way, and not reproduced in between. A deviation
over one seed is unknown: the paper's stands in for it where it prints one, and the verdict says that it rests on one seed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ltnode.report.published import Printed


class Verdict(StrEnum):
    """What our numbers say about a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    REVERSED = "reversed"
    MISSING = "missing"


@dataclass(frozen=True)
class Measured:
    """A number over seeds.

    Attributes:
        values: One per seed.
    """

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return math.fsum(self.values) / len(self.values)

    @property
    def std(self) -> float:
        """Population standard deviation (ddof 0), as in the paper; 0 for one seed."""
        return math.sqrt(math.fsum((value - self.mean) ** 2 for value in self.values) / len(self.values))

    @property
    def seeds(self) -> int:
        """How many there are."""
        return len(self.values)

    def spread(self, printed: Printed | None = None) -> float:
        """The deviation; of one seed the paper's, where it prints one."""
        if self.seeds > 1 or printed is None:
            return self.std
        return printed.std

    def text(self, digits: int, scale: float = 1.0) -> str:
        """Mean ± deviation, or the number of one seed."""
        mean = f"{scale * self.mean:.{digits}f}"
        return mean if self.seeds == 1 else f"{mean} ± {scale * self.std:.{digits}f}"


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on.

    Attributes:
        verdict: The verdict.
        one_seed: Whether a number of one seed is part of it.
        detail: What decided, in words.
    """

    verdict: Verdict
    one_seed: bool = False
    detail: str = ""

    @property
    def text(self) -> str:
        """For a table."""
        return f"{self.verdict.value} (one seed)" if self.one_seed and self.verdict is not Verdict.MISSING else self.verdict.value


MISSING = Judgement(Verdict.MISSING)


def judge_number(ours: Measured | None, paper: Printed, tolerance: float) -> Judgement:
    """A printed number: within the tolerance, or within two deviations, ours no larger than the paper's.

    Args:
        ours: In the paper's units; None where there is none.
        paper: Mean and deviation.
        tolerance: Fixed beforehand.
    """
    if ours is None:
        return MISSING
    allowed = max(tolerance, 2 * math.hypot(paper.std, min(ours.std, paper.std)))
    # Numbers are printed with few digits; a difference equal to the bound counts as within it.
    close = abs(ours.mean - paper.mean) <= allowed * (1 + 1e-9)
    return Judgement(Verdict.REPRODUCED if close else Verdict.NOT_REPRODUCED, ours.seeds == 1)


def judge_order(
    better: Measured | None,
    worse: Measured | None,
    higher: bool,
    printed: tuple[Printed | None, Printed | None] = (None, None),
) -> Judgement:
    """That one model is better than another.

    Args:
        better: Numbers of the model that the paper finds better.
        worse: Numbers of the other.
        higher: Whether larger numbers are better.
        printed: What the paper prints for both, for the spread of a single seed.
    """
    if better is None or worse is None:
        return MISSING
    gap = (better.mean - worse.mean) * (1 if higher else -1)
    spread = math.hypot(better.spread(printed[0]), worse.spread(printed[1]))
    one_seed = min(better.seeds, worse.seeds) == 1
    if gap > spread:
        return Judgement(Verdict.REPRODUCED, one_seed)
    if gap < -spread:
        return Judgement(Verdict.REVERSED, one_seed)
    return Judgement(Verdict.NOT_REPRODUCED, one_seed, "the gap is within the spread")


def judge_best(
    candidate: Measured | None,
    others: Mapping[str, Measured | None],
    higher: bool,
    printed: Mapping[str, Printed | None] | None = None,
    name: str = "",
    beats: str = "better",
) -> Judgement:
    """That one model is better than each of several others.

    One that is better beyond the spread reverses the claim, whoever is missing; it is reproduced only against all of them.

    Args:
        candidate: Numbers of the model.
        others: Numbers of the others by name.
        higher: Whether larger numbers are better.
        printed: What the paper prints, by name.
        name: The candidate's, for ``printed``.
        beats: Word for one that reverses the claim.
    """
    if candidate is None:
        absent = [other for other, numbers in others.items() if numbers is None]
        return Judgement(Verdict.MISSING, False, f"missing: {', '.join([*([name] if name else []), *absent])}")
    known = printed or {}
    single = {
        other: judge_order(candidate, numbers, higher, (known.get(name), known.get(other))) for other, numbers in others.items()
    }
    one_seed = any(judged.one_seed for judged in single.values())
    by = {verdict: [other for other, judged in single.items() if judged.verdict is verdict] for verdict in Verdict}
    missing = f"missing: {', '.join(by[Verdict.MISSING])}" if by[Verdict.MISSING] else ""
    if by[Verdict.REVERSED]:
        return Judgement(Verdict.REVERSED, one_seed, _joined(f"{', '.join(by[Verdict.REVERSED])} {beats}", missing))
    if by[Verdict.NOT_REPRODUCED]:
        close = f"within the spread of {', '.join(by[Verdict.NOT_REPRODUCED])}"
        return Judgement(Verdict.NOT_REPRODUCED, one_seed, _joined(close, missing))
    if by[Verdict.MISSING]:
        so_far = f"ahead of {', '.join(by[Verdict.REPRODUCED])} so far" if by[Verdict.REPRODUCED] else ""
        return Judgement(Verdict.MISSING, one_seed, _joined(so_far, missing))
    return Judgement(Verdict.REPRODUCED, one_seed)


def judge_close(numbers: Mapping[str, Measured | None], bound: float) -> Judgement:
    """That several models are close: the largest difference of their means is within a bound."""
    there = [found for found in numbers.values() if found is not None]
    absent = [name for name, found in numbers.items() if found is None]
    if len(there) < 2:
        return Judgement(Verdict.MISSING, False, f"missing: {', '.join(absent)}")
    means = [found.mean for found in there]
    far = max(means) - min(means) > bound
    one_seed = any(found.seeds == 1 for found in there)
    detail = f"largest difference {max(means) - min(means):.3f}"
    if absent and not far:
        return Judgement(Verdict.MISSING, one_seed, _joined(detail, f"missing: {', '.join(absent)}"))
    return Judgement(Verdict.NOT_REPRODUCED if far else Verdict.REPRODUCED, one_seed, detail)


def judge_largest_spread(name: str, numbers: Mapping[str, Measured | None]) -> Judgement:
    """That the numbers of one model vary most over seeds; nothing can be said with fewer than two seeds of each."""
    if any(found is None or found.seeds < 2 for found in numbers.values()):
        return Judgement(Verdict.MISSING, False, "needs at least two seeds of every model")
    spreads = {other: found.std for other, found in numbers.items() if found is not None}
    largest = max(spreads, key=spreads.__getitem__)
    return Judgement(Verdict.REPRODUCED if largest == name else Verdict.REVERSED)


def judge_users(numbers: Sequence[Judgement]) -> tuple[str, bool]:
    """Whether a model is better than others, over several measures: yes, in part, no, undecided or missing; and one seed or more.

    ``yes``: better in at least one measure and worse in none; ``no``: better in none and worse in at least one.
    """
    verdicts = [judged.verdict for judged in numbers]
    one_seed = any(judged.one_seed for judged in numbers)
    if not verdicts or Verdict.MISSING in verdicts:
        return Verdict.MISSING.value, one_seed
    better, worse = Verdict.REPRODUCED in verdicts, Verdict.REVERSED in verdicts
    return ("in part" if better and worse else "yes" if better else "no" if worse else "undecided"), one_seed


def _joined(*words: str) -> str:
    return "; ".join(word for word in words if word)
