"""Claims about the cost of a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from ltnode.report.naming import model_title
from paper.reproduce.claims.claim import Best, Claim, Section
from paper.reproduce.claims.evidence import of_models
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.numbers import PROPOSED, ImageNumbers, command
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.images.results import ImageResult

_DATA = "cifar10"


def cost_claims(numbers: ImageNumbers) -> Iterator[JudgedClaim]:
    """Predictions cost less than the ten passes of SDE-Net, in evaluations of the field and in time."""
    measures = (("evaluations", "evaluations of the field", 0), ("seconds_per_1000", "s per 1,000 images", 3))
    for measure, title, digits in measures:
        for model in PROPOSED:
            models = (model, "sde-net")
            text = f"CIFAR10: a prediction by {model_title(model)} costs less than the ten passes of SDE-Net: {title}"
            less = Best(model_title(model), higher=False, word="cheaper")
            claim = Claim(f"cost-{measure}.{model}", Section.COST, text, less, command(_DATA, models))
            found = {name: numbers.measured(partial(_cost, measure), _DATA, name) for name in models}
            devices = {
                result.protocols["clean"]["provenance"]["device"]
                for name in models
                for result in numbers.results_of(_DATA, name)
                if "clean" in result.protocols
            }
            not_comparable = measure == "seconds_per_1000" and len(devices) > 1
            yield judged(claim, of_models(found, digits, unusable="measured on different devices" if not_comparable else ""))


def _cost(measure: str, result: ImageResult) -> float | None:
    """Cost of the predictions on unchanged test images: ``evaluations`` or ``seconds_per_1000``."""
    value = (result.protocols.get("clean", {}).get("cost") or {}).get(measure)
    return None if value is None else float(value)
