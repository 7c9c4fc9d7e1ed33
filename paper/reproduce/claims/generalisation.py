"""Claims about the networks on unchanged test images: their size, their error, and the cost of a prediction."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

from ltnode.errors import MissingExtraError
from ltnode.models import build
from ltnode.report.aggregate import Measured
from ltnode.report.naming import data_title, model_title
from paper.reproduce.claims.claim import Best, Claim, Close, MostVariable, Near, Section
from paper.reproduce.claims.evidence import Evidence, of_models, of_number
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.numbers import DATA, MODELS, PROPOSED, ImageNumbers, Read, command
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.images.results import ImageResult
from paper.reproduce.published import PaperValues, Printed

ERROR_TOLERANCE = {"mnist": 0.002, "fashion-mnist": 0.008, "cifar10": 0.01, "svhn": 0.006}
"""Largest difference from a published error that counts as the same error."""
COMPARABLE_ERROR = 0.02
COST_DATA = "cifar10"
PARAMETER_TOLERANCE = 0.009999
"""In millions: less than 0.01, because the paper rounds some sizes and truncates others to two digits."""


def parameter_claims(published: PaperValues) -> Iterator[JudgedClaim]:
    """The printed numbers of parameters."""
    for data in DATA:
        for model in MODELS:
            millions = published.parameters_in_millions(data, model)
            if millions is None:
                continue
            count = _parameter_count(data, model)
            claim = Claim(
                f"parameters.{data}.{model}",
                Section.PARAMETERS,
                f"{data_title(data)}, {model_title(model)}: parameters",
                Near({"parameters": Printed(millions, 0.0, seeds=0)}, PARAMETER_TOLERANCE),
                "ltnode reproduce claims",
                f"{millions:.2f} M",
            )
            number = None if count is None else Measured((count / 1e6,))
            yield judged(claim, Evidence({"parameters": number}, "" if count is None else f"{count:,}", seed_counts=()))


@cache
def _parameter_count(data: str, model: str) -> int | None:
    try:
        return sum(p.numel() for p in build(model, data, "paper", seed=0).parameters() if p.requires_grad)
    except MissingExtraError:
        return None


def error_claims(numbers: ImageNumbers, published: PaperValues) -> Iterator[JudgedClaim]:
    """The printed test errors, and what the paper says about them."""
    read = numbers.number("clean", "error")
    for data in DATA:
        for model in MODELS:
            printed = published.error(data, model)
            if printed is not None:
                text = f"{data_title(data)}, {model_title(model)}: test error"
                key, near = f"error.{data}.{model}", Near({"number": printed}, ERROR_TOLERANCE[data])
                claim = Claim(key, Section.ERROR, text, near, command(data, [model]), printed.text)
                yield judged(claim, of_number(numbers.measured(read, data, model)))
    for data in DATA:
        yield from _comparable_errors(numbers, read, data)
        if data != "svhn":
            yield from _errors_of_sde_net(numbers, read, data, published)


def _comparable_errors(numbers: ImageNumbers, read: Read, data: str) -> Iterator[JudgedClaim]:
    bound = max(COMPARABLE_ERROR, ERROR_TOLERANCE[data])
    for model in PROPOSED:
        text = f"{data_title(data)}: {model_title(model)} generalises comparably to NODE (error within {bound:g})"
        key, made = f"error-comparable.{data}.{model}", command(data, ["node", model])
        claim = Claim(key, Section.ERROR, text, Close(bound), made)
        yield judged(claim, numbers.of_models(read, data, (model, "node"), 4))


def _errors_of_sde_net(numbers: ImageNumbers, read: Read, data: str, published: PaperValues) -> Iterator[JudgedClaim]:
    printed = {model_title(model): published.error(data, model) for model in MODELS}
    models = ("sde-net", *(model for model in MODELS if model != "sde-net"))
    largest = Best("SDE-Net", higher=True, printed=printed, word="larger")
    text = f"{data_title(data)}: SDE-Net has the largest error"
    claim = Claim(f"error-sde-net.{data}", Section.ERROR, text, largest, command(data, models))
    yield judged(claim, numbers.of_models(read, data, models, 4))
    text = f"{data_title(data)}: the error of SDE-Net varies most over seeds"
    made = f"{command(data, MODELS)} --seeds 0-4"
    claim = Claim(f"error-spread.{data}", Section.ERROR, text, MostVariable("SDE-Net"), made)
    yield judged(claim, numbers.of_models(read, data, MODELS, 4))


def cost_claims(numbers: ImageNumbers) -> Iterator[JudgedClaim]:
    """Predictions cost less than the ten passes of SDE-Net, in evaluations of the field and in time."""
    measures = (("evaluations", "evaluations of the field", 0), ("seconds_per_1000", "s per 1,000 images", 3))
    for measure, title, digits in measures:
        for model in PROPOSED:
            models = (model, "sde-net")
            text = f"CIFAR10: a prediction by {model_title(model)} costs less than the ten passes of SDE-Net: {title}"
            less = Best(model_title(model), higher=False, word="cheaper")
            claim = Claim(f"cost-{measure}.{model}", Section.COST, text, less, command(COST_DATA, models))
            found = {name: numbers.measured(partial(_cost, measure), COST_DATA, name) for name in models}
            devices = {
                result.protocols["clean"]["provenance"]["device"]
                for name in models
                for result in numbers.results_of(COST_DATA, name)
                if "clean" in result.protocols
            }
            not_comparable = measure == "seconds_per_1000" and len(devices) > 1
            yield judged(claim, of_models(found, digits, unusable="measured on different devices" if not_comparable else ""))


def _cost(measure: str, result: ImageResult) -> float | None:
    """Cost of the predictions on unchanged test images: ``evaluations`` or ``seconds_per_1000``."""
    value = (result.protocols.get("clean", {}).get("cost") or {}).get(measure)
    return None if value is None else float(value)
