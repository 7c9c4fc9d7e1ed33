"""What the paper says: a claim, the part of the paper that makes it, and a statement that can be judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from paper.reproduce.published import Printed

CLAIMED = "claimed"
"""What the page shows for a claim that the paper makes in words, without a number."""


class Section(Enum):
    """Sections of the page of claims, each with the part of the paper that it checks (empty: not in the paper)."""

    USERS = ("The users' question", "")
    PARAMETERS = ("Parameters", "table of generalization errors (appendix)")
    ERROR = ("Test error", "table of generalization errors and 'Generalization performance on Image data' (appendix)")
    ROTATION = ("Rotation", "'Performance under rotation', Figures 3 and 4")
    CONFIDENCE = ("Confidence at 45 degrees", "'Performance under rotation', Figure 3")
    ENTROPY = ("Entropy on foreign data", "'Performance on Out of Distribution Data'")
    DETECTION = (
        "Detection of foreign data",
        "table of out-of-distribution detection (appendix); rejection: 'Performance on Out of Distribution Data' and Figure 4",
    )
    ATTACK = ("Attack", "'Robustness Evaluation', Figure 4")
    WEIGHTING = ("Weighting of the objective", "the numbers printed for CIFAR10, compared with each reading of the objective")
    SELECTION = ("Model selection", "'Approximate Posterior and Model Selection' (appendix)")
    COST = ("Cost", "'Experimental details' (appendix): SDE-Net makes ten forward passes, the other models one")
    PRECISION = ("Reduced precision", "")
    ONE_DIMENSIONAL = ("1-D regression", "'Synthetic Data Experiments', Figure 2, and 'Approximate Posterior' (appendix)")
    MOTIVATING = ("Motivating tasks", "'Adaptive Latent Time Neural Ordinary Differential Equations'")

    @property
    def title(self) -> str:
        """Heading of the section."""
        return self.value[0]

    @property
    def source(self) -> str:
        """Part of the paper that makes these claims; empty if none does."""
        return self.value[1]


@dataclass(frozen=True)
class Near:
    """Each number, by name, differs from the printed one by at most a tolerance or two standard deviations."""

    printed: Mapping[str, Printed]
    tolerance: float


@dataclass(frozen=True)
class Best:
    """One number is better than each of the others.

    Attributes:
        name: Name of that number.
        higher: Whether larger numbers are better.
        printed: The paper's values, by name; their standard deviations are used for a model with a single seed.
        word: What a rival is that contradicts the claim.
    """

    name: str
    higher: bool
    printed: Mapping[str, Printed | None] = field(default_factory=dict)
    word: str = "better"


@dataclass(frozen=True)
class NotBest:
    """At least one other number is as good or better: the opposite of `Best`."""

    best: Best


@dataclass(frozen=True)
class Close:
    """The means of all numbers differ by at most a bound."""

    bound: float


@dataclass(frozen=True)
class MostVariable:
    """The number with this name varies most over seeds."""

    name: str


@dataclass(frozen=True)
class AtMost:
    """The mean of every number is at most a bound."""

    bound: float


@dataclass(frozen=True)
class NoWorse:
    """The smallest of the numbers with these names exceeds the smallest of the others by at most a tolerance."""

    names: tuple[str, ...]
    tolerance: float


@dataclass(frozen=True)
class Always:
    """Every number is 1 (true) for every seed."""


@dataclass(frozen=True)
class Overall:
    """A model is better in at least one comparison and worse in none. Numbers are 1 (better), 0 (undecided) or -1 (worse)."""


Statement = Near | Best | NotBest | Close | MostVariable | AtMost | NoWorse | Always | Overall


@dataclass(frozen=True)
class Claim:
    """One claim.

    Attributes:
        key: Identifier for remarks, such as ``error.cifar10.lt-node``.
        section: Section of the page, which names the part of the paper.
        text: The claim as a sentence.
        statement: The claim in a form that `judge` can decide.
        command: Command that produces our numbers.
        paper: What the paper prints; None if the claim is ours and not the paper's.
    """

    key: str
    section: Section
    text: str
    statement: Statement
    command: str
    paper: str | None = CLAIMED
