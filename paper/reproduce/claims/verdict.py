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
    """A claim with our evidence and the verdict on it."""

    claim: Claim
    evidence: Evidence
    verdict: Verdict
