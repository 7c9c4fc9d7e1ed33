"""Claims about rotated images and images under attack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ltnode.report.naming import data_title, model_title
from paper.reproduce.claims.claim import Best, Claim, NotBest, Section
from paper.reproduce.claims.evidence import Evidence
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.numbers import BASELINES, DATA, FOREIGN, MODELS, PROPOSED, ImageNumbers, Read, command
from paper.reproduce.claims.verdict import JudgedClaim

HIGH_CONFIDENCE = 0.9
_MEASURES = {"log_likelihood": ("LL", True), "brier": ("Brier score", False), "ece": ("ECE", False)}
"""Title of a measure, and whether larger values are better."""


def rotation_claims(numbers: ImageNumbers) -> Iterator[JudgedClaim]:
    """Likelihood and calibration of rotated images, and the growth of the error with the angle."""
    for data in FOREIGN:
        for metric in _MEASURES:
            yield from _rotated(numbers, data, metric)
        for model in MODELS:
            yield _growth(numbers, data, model)


def _rotated(numbers: ImageNumbers, data: str, metric: str) -> Iterator[JudgedClaim]:
    name, (title, higher) = data_title(data), _MEASURES[metric]
    read = numbers.mean_along("rotation", metric, "angle")
    for model in PROPOSED:
        models = (model, *BASELINES)
        text = f"{name}, rotated by 15 to 180 degrees: {model_title(model)} has a better {title} than every baseline"
        best = Best(model_title(model), higher)
        claim = Claim(f"rotation-{metric}.{data}.{model}", Section.ROTATION, text, best, command(data, models))
        yield judged(claim, numbers.of_models(read, data, models, 3))
    text = f"{name}, rotated: ALT-NODE has a better {title} than LT-NODE"
    pair = ("alt-node", "lt-node")
    claim = Claim(f"rotation-{metric}-alt-lt.{data}", Section.ROTATION, text, Best("ALT-NODE", higher), command(data, pair))
    yield judged(claim, numbers.of_models(read, data, pair, 3))


def _growth(numbers: ImageNumbers, data: str, model: str) -> JudgedClaim:
    upright, turned = (numbers.measured(numbers.number("rotation", "error", angle=a), data, model) for a in (0, 90))
    text = f"{data_title(data)}: the error of {model_title(model)} grows quickly with the angle (0 against 90 degrees)"
    larger = Best("90 degrees", higher=True, word="larger")
    claim = Claim(f"rotation-error.{data}.{model}", Section.ROTATION, text, larger, command(data, [model]))
    shown = "" if upright is None or turned is None else f"{upright.text(3)} → {turned.text(3)}"
    return judged(claim, Evidence({"0 degrees": upright, "90 degrees": turned}, shown))


def confidence_claims(numbers: ImageNumbers) -> Iterator[JudgedClaim]:
    """Accuracy and number of confident predictions on images rotated by 45 degrees."""
    measures = (("confidence_accuracy", "highest accuracy", True, 3), ("confidence_count", "fewest predictions", False, 0))
    for data in FOREIGN:
        for metric, title, higher, digits in measures:
            read = numbers.at("rotation", metric, HIGH_CONFIDENCE, angle=45)
            for model in PROPOSED:
                name, models = model_title(model), (model, *BASELINES)
                text = f"{data_title(data)} at 45 degrees: {name} has the {title} above confidence {HIGH_CONFIDENCE:g}"
                key, made = f"{metric}.{data}.{model}", command(data, models)
                claim = Claim(key, Section.CONFIDENCE, text, Best(name, higher), made)
                yield judged(claim, numbers.of_models(read, data, models, digits))


def attack_claims(numbers: ImageNumbers, read: Read | None = None, baselines: Sequence[str] = BASELINES) -> Iterator[JudgedClaim]:
    """Error under FGSM. The paper makes an exception for SVHN, where the proposed models do not win.

    Args:
        numbers: Our numbers.
        read: What is compared; by default the mean over strengths in units of the normalised input.
        baselines: The models that the proposed ones are compared with.
    """
    read = read or numbers.mean_along("fgsm", "error", "epsilon", units="normalised")
    for data in DATA:
        for model in PROPOSED:
            name, models = model_title(model), (model, *baselines)
            lowest = Best(name, higher=False)
            exception = data == "svhn"
            what = "does not have the lowest error" if exception else "has a lower error than every baseline"
            text = f"{data_title(data)} under FGSM (mean over ε): {name} {what}"
            statement = NotBest(lowest) if exception else lowest
            claim = Claim(f"fgsm.{data}.{model}", Section.ATTACK, text, statement, command(data, models))
            yield judged(claim, numbers.of_models(read, data, models, 3))
