"""Claims that need variants of the training: weightings of the objective, fixed end-times, and reduced precision."""

from __future__ import annotations

from collections.abc import Iterator

from ltnode.report.naming import data_title, model_title
from paper.reproduce.claims.claim import Claim, Close, Near, NoWorse, Section
from paper.reproduce.claims.evidence import Evidence, of_number
from paper.reproduce.claims.foreign import ENTROPY_TOLERANCE, PERCENT_TOLERANCE
from paper.reproduce.claims.generalisation import ERROR_TOLERANCE
from paper.reproduce.claims.judge import judged
from paper.reproduce.claims.numbers import PROPOSED, ImageNumbers, command
from paper.reproduce.claims.verdict import JudgedClaim
from paper.reproduce.published import PaperValues

SELECTION_TIMES, SMALL_TIMES, SELECTION_TOLERANCE = (0.25, 0.5, 1.0, 2.0, 3.0), 1.0, 0.002
WEIGHTINGS = ("", "normalised", "softmax")
"""Variants by name; the preset itself weighs with densities."""


def weighting_claims(numbers: ImageNumbers, published: PaperValues) -> Iterator[JudgedClaim]:
    """The numbers printed for CIFAR10, compared with runs under each weighting that the paper could mean."""
    data, other = "cifar10", "svhn"
    error = numbers.number("clean", "error")
    entropy = numbers.number("ood", "mean_entropy", ood=other, part="out")
    auroc = numbers.number("ood", "auroc", 100, ood=other, score="max_probability")
    for model in PROPOSED:
        measures = (
            ("error", error, published.error(data, model), ERROR_TOLERANCE[data]),
            ("entropy", entropy, published.entropy(data, other, model), ENTROPY_TOLERANCE),
            ("AUROC (%)", auroc, published.detection(data, other, model, "auroc"), PERCENT_TOLERANCE),
        )
        for variant in WEIGHTINGS:
            weighting = variant or "density"
            for title, read, printed, tolerance in measures:
                if printed is not None:
                    text = f"CIFAR10, {model_title(model)} with {weighting} weights: {title}"
                    key = f"weighting-{weighting}.{model}.{title.split()[0].lower()}"
                    near, made = Near({"number": printed}, tolerance), command(data, [model], variant)
                    claim = Claim(key, Section.WEIGHTING, text, near, made, printed.text)
                    yield judged(claim, of_number(numbers.measured(read, data, model, "paper", variant)))


def selection_claims(numbers: ImageNumbers) -> Iterator[JudgedClaim]:
    """Whether NODEs with small end-times do as well as NODEs with large ones."""
    data, read = "fashion-mnist", numbers.number("clean", "error")
    errors = {
        f"T = {time:g}": numbers.measured(read, data, "node", "paper", "" if time == 1 else f"t{time:g}")
        for time in SELECTION_TIMES
    }
    small = tuple(f"T = {time:g}" for time in SELECTION_TIMES if time <= SMALL_TIMES)
    text = f"{data_title(data)}: NODEs do as well with small end-times as with large ones (error within {SELECTION_TOLERANCE:g})"
    made = f"ltnode reproduce images --data {data} --models node,lt-node --presets paper"
    claim = Claim(f"selection.{data}", Section.SELECTION, text, NoWorse(small, SELECTION_TOLERANCE), made)
    shown = ", ".join(f"{name}: {error.text(4)}" for name, error in errors.items() if error is not None)
    posterior = numbers.measured(lambda result: (result.content["learnt"] or {}).get("mean"), data, "lt-node")
    shown += "" if posterior is None else f"; E[T] of LT-NODE {posterior.text(2)}"
    yield judged(claim, Evidence(errors, shown))


def precision_claims(numbers: ImageNumbers) -> Iterator[JudgedClaim]:
    """Our own claim: training in bf16 changes the quality little."""
    for metric, tolerance in (("error", ERROR_TOLERANCE["svhn"]), ("log_likelihood", 0.03)):
        read = numbers.number("clean", metric)
        trained = {
            name: numbers.measured(read, "svhn", "node", "paper", variant) for name, variant in (("bf16", ""), ("fp32", "fp32"))
        }
        text = f"SVHN, NODE: training in bf16 changes the {metric.replace('_', '-')} by at most {tolerance:g}"
        made = "ltnode reproduce images --data svhn --models node --presets paper"
        claim = Claim(f"precision.{metric}", Section.PRECISION, text, Close(tolerance), made, paper=None)
        shown = "; ".join(f"{name} {number.text(4)}" for name, number in trained.items() if number is not None)
        yield judged(claim, Evidence(trained, shown))
