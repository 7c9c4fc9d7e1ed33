"""Claims about foreign images: entropy, detection, and rejection of uncertain inputs."""

from __future__ import annotations

from collections.abc import Iterator

from ltnode.report.naming import data_title, model_title
from paper.reproduce.claims.claim import Best, Claim, Close, Near, Section
from paper.reproduce.claims.evidence import of_number
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.numbers import BASELINES, FOREIGN, MODELS, PROPOSED, ImageNumbers, Read, command
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.published import PaperValues

PERCENT_TOLERANCE, ENTROPY_TOLERANCE = 1.0, 0.1
COMPARABLE_PERCENT, REJECTED, CLOSE_ACCURACY = 2.0, 0.5, 0.05
_METRICS = {"auroc": "AUROC", "aupr_in": "AUPR In", "aupr_out": "AUPR Out"}


def entropy_claims(numbers: ImageNumbers, published: PaperValues) -> Iterator[JudgedClaim]:
    """The printed mean entropies on foreign images, and their order."""
    section = Section.ENTROPY
    for data, other in FOREIGN.items():
        pair = _pair(data)
        read = numbers.number("ood", "mean_entropy", ood=other, part="out")
        printed = {model: published.entropy(data, other, model) for model in MODELS}
        for model, value in printed.items():
            if value is not None:
                text = f"{pair}, {model_title(model)}: mean entropy (nats)"
                near = Near({"number": value}, ENTROPY_TOLERANCE)
                claim = Claim(f"entropy.{data}.{model}", section, text, near, command(data, [model]), value.text)
                yield judged(claim, of_number(numbers.measured(read, data, model)))
        titled = {model_title(model): value for model, value in printed.items()}
        for model in PROPOSED:
            name, models = model_title(model), (model, *BASELINES)
            text = f"{pair}: {name} is more uncertain than every baseline"
            best = Best(name, higher=True, printed=titled, word="more uncertain")
            claim = Claim(f"entropy-order.{data}.{model}", section, text, best, command(data, models))
            yield judged(claim, numbers.of_models(read, data, models, 3))


def detection_claims(numbers: ImageNumbers, published: PaperValues) -> Iterator[JudgedClaim]:
    """The printed detection of foreign images by the largest probability, and what the paper says about it."""
    for data in FOREIGN:
        for metric in _METRICS:
            yield from _detection(numbers, published, data, metric)


def _detection(numbers: ImageNumbers, published: PaperValues, data: str, metric: str) -> Iterator[JudgedClaim]:
    other, title, pair, section = FOREIGN[data], _METRICS[metric], _pair(data), Section.DETECTION
    read = numbers.number("ood", metric, 100, ood=other, score="max_probability")
    printed = {model: published.detection(data, other, model, metric) for model in MODELS}
    for model, value in printed.items():
        if value is not None:
            text = f"{pair}, {model_title(model)}: {title} (%)"
            near = Near({"number": value}, PERCENT_TOLERANCE)
            claim = Claim(f"{metric}.{data}.{model}", section, text, near, command(data, [model]), value.text)
            yield judged(claim, of_number(numbers.measured(read, data, model)))
    titled = {model_title(model): value for model, value in printed.items()}
    if data == "cifar10":
        for model in PROPOSED:
            name, models = model_title(model), (model, *BASELINES)
            text = f"{pair}: {name} has a higher {title} than every baseline"
            best = Best(name, higher=True, printed=titled)
            claim = Claim(f"{metric}-order.{data}.{model}", section, text, best, command(data, models))
            yield judged(claim, numbers.of_models(read, data, models, 2))
    elif metric != "aupr_out":
        yield from _comparable(numbers, read, data, metric)
    text = f"{pair}: ALT-NODE has a higher {title} than LT-NODE"
    two = ("alt-node", "lt-node")
    best = Best("ALT-NODE", higher=True, printed=titled)
    yield judged(Claim(f"{metric}-alt-lt.{data}", section, text, best, command(data, two)), numbers.of_models(read, data, two, 2))


def _comparable(numbers: ImageNumbers, read: Read, data: str, metric: str) -> Iterator[JudgedClaim]:
    for model in PROPOSED:
        what = f"comparable in {_METRICS[metric]} with SDE-Net, the best (within {COMPARABLE_PERCENT:g} points)"
        text = f"{_pair(data)}: {model_title(model)} is {what}"
        key, made = f"{metric}-comparable.{data}.{model}", command(data, [model, "sde-net"])
        claim = Claim(key, Section.DETECTION, text, Close(COMPARABLE_PERCENT), made)
        yield judged(claim, numbers.of_models(read, data, (model, "sde-net"), 2))


def rejection_claims(numbers: ImageNumbers) -> Iterator[JudgedClaim]:
    """Accuracy on test and foreign images together, after the most uncertain ones are rejected."""
    for data, other in FOREIGN.items():
        read = numbers.at("ood", "rejection_accuracy", REJECTED, ood=other)
        text = (
            f"{data_title(data)} with {data_title(other)}: all models are close when uncertain inputs are rejected "
            f"(accuracy at {100 * REJECTED:g} % rejected within {CLOSE_ACCURACY:g})"
        )
        claim = Claim(f"rejection.{data}", Section.DETECTION, text, Close(CLOSE_ACCURACY), command(data, MODELS))
        yield judged(claim, numbers.of_models(read, data, MODELS, 3))


def _pair(data: str) -> str:
    return f"{data_title(data)} → {data_title(FOREIGN[data])}"
