"""All claims of the paper, judged by the recorded results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from paper.reproduce.claims.foreign import detection_claims, entropy_claims, rejection_claims
from paper.reproduce.claims.generalisation import cost_claims, error_claims, parameter_claims
from paper.reproduce.claims.motivating import motivating_claims
from paper.reproduce.claims.numbers import ImageNumbers
from paper.reproduce.claims.one_dimensional import OneDimensionalResults, one_dimensional_claims
from paper.reproduce.claims.shift import attack_claims, confidence_claims, rotation_claims
from paper.reproduce.claims.significance import with_significance
from paper.reproduce.claims.users import users_question
from paper.reproduce.claims.variants import precision_claims, selection_claims, weighting_claims
from paper.reproduce.claims.verdict import JudgedClaim, Outcome
from paper.reproduce.images.results import ImageResult
from paper.reproduce.motivating.tasks import STEPS
from paper.reproduce.one_dimensional.experiment import ITERATIONS, has_full_length
from paper.reproduce.published import PaperValues
from paper.reproduce.records import read_results


def all_claims(images: Sequence[ImageResult], folder: Path, published: PaperValues) -> list[JudgedClaim]:
    """Judge every claim, in the order of the page.

    Args:
        images: Results of the image experiments.
        folder: Folder with the result files of the other experiments; shortened runs do not count.
        published: What the paper prints.
    """
    numbers = ImageNumbers(images)
    claims = [
        *users_question(numbers, published),
        *parameter_claims(published),
        *image_claims(numbers, published),
        *one_dimensional_claims(one_dimensional_results(folder), published),
        *motivating_claims([result for result in _read(folder, "motivating-*.json") if result.get("steps") == STEPS]),
    ]
    return with_significance(claims)


def image_claims(numbers: ImageNumbers, published: PaperValues) -> list[JudgedClaim]:
    """Judge the claims that rest on the image experiments."""
    return [
        *error_claims(numbers, published),
        *rotation_claims(numbers),
        *confidence_claims(numbers),
        *entropy_claims(numbers, published),
        *detection_claims(numbers, published),
        *rejection_claims(numbers),
        *attack_claims(numbers),
        *weighting_claims(numbers, published),
        *selection_claims(numbers),
        *cost_claims(numbers),
        *precision_claims(numbers),
    ]


def outcome_counts(judged: Iterable[JudgedClaim]) -> Counter[Outcome]:
    """Count the claims of the paper by outcome; questions and claims of our own are left out."""
    return Counter(Outcome(entry.verdict.outcome) for entry in judged if entry.claim.paper is not None)


def one_dimensional_results(folder: Path) -> OneDimensionalResults:
    """The recorded results of the 1-D experiment; shortened runs do not count."""
    return OneDimensionalResults(
        [result for result in _read(folder, "synthetic-*.json") if has_full_length(result)],
        [result for result in _read(folder, "selection-*.json") if result.get("iterations") == ITERATIONS],
    )


def _read(folder: Path, pattern: str) -> list[dict[str, Any]]:
    return read_results(folder, sorted(path.stem for path in folder.glob(pattern)))[0]
