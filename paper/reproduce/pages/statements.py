"""The statements of the paper: groups of claims that together say one thing, and how many of them hold on which data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ltnode.report.naming import data_title
from paper.reproduce.claims.numbers import DATA
from paper.reproduce.claims.verdict import JudgedClaim, Outcome

ELSEWHERE = ""
"""Stands for claims that are about no image set."""
HOLDS, FAILS = 0.8, 0.5
"""A statement holds on a set if at least this share of its claims is reproduced; it does not if it is less than the other."""

STATEMENTS: Mapping[str, tuple[str, ...]] = {
    "The networks have the printed sizes": ("parameters",),
    "The models have the printed test errors": ("error",),
    "LT- and ALT-NODE are as accurate as NODE, within 0.02": ("error-comparable",),
    "SDE-Net has the largest error, and the one that varies most": ("error-sde-net", "error-spread"),
    "Errors grow quickly with the rotation of an image": ("rotation-error",),
    "On rotated images, LT- and ALT-NODE have better likelihoods and calibration than all others": (
        "rotation-log_likelihood",
        "rotation-brier",
        "rotation-ece",
    ),
    "At 45 degrees, they are confident less often, and then more often right": ("confidence_accuracy", "confidence_count"),
    "The entropies on foreign images are those printed": ("entropy",),
    "LT- and ALT-NODE are more uncertain about foreign images than all others": ("entropy-order",),
    "Foreign images are detected as well as printed": ("auroc", "aupr_in", "aupr_out"),
    "LT- and ALT-NODE detect foreign images better than the others (CIFAR10), or as well (SVHN)": (
        *(f"{metric}-{kind}" for metric in ("auroc", "aupr_in", "aupr_out") for kind in ("order", "comparable")),
        "rejection",
    ),
    "ALT-NODE improves on LT-NODE": (
        *(f"rotation-{metric}-alt-lt" for metric in ("log_likelihood", "brier", "ece")),
        *(f"{metric}-alt-lt" for metric in ("auroc", "aupr_in", "aupr_out")),
    ),
    "LT- and ALT-NODE resist attacks better than all others (not on SVHN)": ("fgsm",),
    "The printed numbers come out with density weights in the objective": ("weighting-density",),
    "They also come out with other weights (a question, no statement of the paper)": (
        "weighting-normalised",
        "weighting-softmax",
    ),
    "A prediction costs less than the ten passes of SDE-Net": ("cost-evaluations", "cost-seconds_per_1000"),
    "In one dimension, uncertainty grows where there are no data, most of all that of LT-NODE": (
        "synthetic-entropy",
        "synthetic-order",
        "synthetic-stagnation",
    ),
    "In one dimension, ALT-NODE fits the data best, and Uni-NODE worst": ("synthetic-fit-alt", "synthetic-fit-uni"),
    "The learnt posterior is the printed one, and selects the end-time": (
        "synthetic-posterior",
        "synthetic-priors",
        "synthetic-selection",
        "selection",
    ),
    "End-times that depend on the input solve what a common one cannot": ("motivating",),
}
"""Statements in the order of the paper, each with the beginnings of the keys of its claims."""


@dataclass(frozen=True)
class Share:
    """How many of some claims are reproduced."""

    reproduced: int
    claims: int

    @property
    def part(self) -> float:
        """Between 0 and 1."""
        return self.reproduced / self.claims


@dataclass(frozen=True)
class Statement:
    """A statement of the paper.

    Attributes:
        text: What it says.
        claims: Its claims.
    """

    text: str
    claims: tuple[JudgedClaim, ...]

    @property
    def share(self) -> Share:
        """Its claims that are reproduced."""
        return _share(self.claims)

    @property
    def by_data(self) -> dict[str, Share]:
        """The same for every image set, and for claims on no image set."""
        sets = [data for data in (*DATA, ELSEWHERE) if any(data_of(entry) == data for entry in self.claims)]
        return {data: _share([entry for entry in self.claims if data_of(entry) == data]) for data in sets}

    def line(self, low: float, high: float) -> str:
        """The statement and the sets on which the share of its claims is in [low, high); empty if there is none."""
        shares = {data: share for data, share in self.by_data.items() if low <= share.part < high}
        if not shares:
            return ""
        counts = ", ".join(f"{f'{set_title(data)} ' if data else ''}{s.reproduced} of {s.claims}" for data, s in shares.items())
        return f"{self.text}: {counts}."


def statements(judged: Sequence[JudgedClaim]) -> list[Statement]:
    """All statements with their claims; those without a claim are left out."""
    paper = [entry for entry in judged if entry.claim.paper is not None]
    made = [
        Statement(text, tuple(entry for entry in paper if entry.claim.key.partition(".")[0] in kinds))
        for text, kinds in STATEMENTS.items()
    ]
    return [statement for statement in made if statement.claims]


def data_of(entry: JudgedClaim) -> str:
    """The image set in the command of a claim or in its key."""
    words = entry.claim.command.split()
    if "--data" in words:
        return words[words.index("--data") + 1]
    named = entry.claim.key.split(".")
    return next((data for data in DATA if data in named), ELSEWHERE)


def set_title(data: str) -> str:
    """Title of an image set, or of everything else."""
    return data_title(data) if data else "without images"


def _share(claims: Sequence[JudgedClaim]) -> Share:
    return Share(sum(entry.verdict.outcome is Outcome.REPRODUCED for entry in claims), len(claims))
