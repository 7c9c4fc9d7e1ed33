"""The verdict on a claim."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from paper.reproduce.claims.claim import Claim
from paper.reproduce.claims.evidence import Evidence, Seeds


class Outcome(StrEnum):
    """What our numbers say about a claim."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    REVERSED = "reversed"
    MISSING = "missing"


class Answer(StrEnum):
    """What our numbers say about the users' question."""

    YES = "yes"
    IN_PART = "in part"
    NO = "no"
    UNDECIDED = "undecided"
    MISSING = "missing"


class Finding(StrEnum):
    """What a test of significance says about a claim."""

    SUPPORTED = "supported"
    CONTRADICTED = "contradicted"
    UNDECIDED = "undecided"
    NO_TEST = "no test"


@dataclass(frozen=True)
class Significance:
    """The result of a test of significance.

    Attributes:
        finding: What it says.
        p: The smaller of the corrected p-values for and against the claim; None without a test.
    """

    finding: Finding
    p: float | None = None

    @property
    def text(self) -> str:
        """The finding with its p-value; empty without a test."""
        if self.p is None:
            return ""
        return f"{self.finding.value} ({'p < 0.001' if self.p < 0.001 else f'p = {self.p:.3f}'})"


@dataclass(frozen=True)
class Verdict:
    """A verdict and what it rests on.

    Attributes:
        outcome: The verdict itself.
        seeds: Numbers of seeds behind the evidence.
        reason: What decided it; may be empty.
    """

    outcome: Outcome | Answer
    seeds: Seeds
    reason: str = ""

    @property
    def rests_on_one_seed(self) -> bool:
        """Whether at least one of the numbers that decided has a single seed."""
        return self.seeds.fewest == 1 and self.outcome not in (Outcome.MISSING, Answer.MISSING)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with our evidence, the verdict of the rule, and the finding of the test of significance beside it."""

    claim: Claim
    evidence: Evidence
    verdict: Verdict
    significance: Significance = Significance(Finding.NO_TEST)
