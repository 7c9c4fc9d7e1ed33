"""The numbers of every hypothesis: ours, the target, and that of the run that tests it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ltnode.report.aggregate import Measured
from ltnode.report.naming import data_title, model_title
from paper.reproduce.causes.again import PREFIX
from paper.reproduce.causes.cause import Cause
from paper.reproduce.causes.outcome import Compared
from paper.reproduce.claims.numbers import BASELINES, ImageNumbers, Read
from paper.reproduce.claims.one_dimensional import OneDimensionalResults
from paper.reproduce.claims.shift import attack_claims
from paper.reproduce.claims.verdict import Outcome
from paper.reproduce.images.results import ImageResult
from paper.reproduce.published import PaperValues

_PRIOR = (2.0, 0.5)
_WEAKEST = 0.05
_SCORE = "max_probability"
_FOREIGN = {"cifar10": "svhn", "svhn": "cifar10", "mnist": "fashion-mnist", "fashion-mnist": "mnist"}


def compared(
    causes: Sequence[Cause],
    images: ImageNumbers,
    again: ImageNumbers,
    one_dimensional: OneDimensionalResults,
    published: PaperValues,
) -> list[Compared]:
    """Compare every hypothesis with what was measured.

    Args:
        causes: The hypotheses.
        images: Numbers of the image experiments.
        again: Numbers of stored networks that were evaluated again.
        one_dimensional: Results of the 1-D experiment.
        published: What the paper prints.
    """
    found = []
    for cause in causes:
        if cause.is_image:
            found.append(_image(cause, images, again, published))
        elif cause.measure == "attacks":
            found.append(_attacks(cause, images))
        else:
            found.append(_one_dimensional(cause, one_dimensional, published))
    return found


def _image(cause: Cause, images: ImageNumbers, again: ImageNumbers, published: PaperValues) -> Compared:
    data, model = cause.data, cause.model
    title, read, digits = _reader(cause.measure, data, images)
    target: float | None
    if cause.target == "printed":
        other = _FOREIGN[data]
        printed = published.error(data, model) if cause.measure == "error" else published.detection(data, other, model, "auroc")
        target, of_whom = None if printed is None else printed.mean, "that of the paper"
    else:
        measured = images.measured(read, data, cause.target)
        target, of_whom = None if measured is None else measured.mean, f"that of {model_title(cause.target)}"
    ours = images.measured(read, data, model)
    if cause.again:
        changed = again.measured(_reader(cause.measure, data, again)[1], data, model, variant=f"{PREFIX}{cause.again}")
    elif cause.reading:
        changed = images.measured(_other_reading(cause, images), data, model)
    else:
        changed = images.measured(read, data, model, cause.preset, cause.variant)
    what = f"{data_title(data)}, {model_title(model)}: {title} against {of_whom}"
    return Compared(cause, what, ours, target, changed, digits)


def _reader(measure: str, data: str, images: ImageNumbers) -> tuple[str, Read, int]:
    if measure == "error":
        return "test error", images.number("clean", "error"), 4
    if measure == "fgsm":
        return "error under FGSM (mean over ε)", images.mean_along("fgsm", "error", "epsilon", units="normalised"), 4
    return "AUROC (%)", images.number("ood", "auroc", 100, ood=_FOREIGN[data], score=_SCORE), 1


def _other_reading(cause: Cause, images: ImageNumbers) -> Read:
    """The AUROC by the entropy, or the mean of a number over five draws of the end-times."""
    if cause.reading == "entropy-score":
        return images.number("ood", "auroc", 100, ood=_FOREIGN[cause.data], score="entropy")
    protocol, scale = ("clean", 1.0) if cause.measure == "error" else ("ood", 100.0)

    def mean_over_draws(result: ImageResult) -> float | None:
        for row in result.rows():
            is_spread = row.protocol == protocol and row.metric == cause.measure and "statistic" in row.setting
            if is_spread and row.setting.get("score", _SCORE) == _SCORE:
                return scale * float(row.extra["mean"])
        return None

    return mean_over_draws


def _attacks(cause: Cause, images: ImageNumbers) -> Compared:
    """How many claims on attacks are reproduced, under the reading of the claims and under another one."""
    readings = {
        "pixel": partial(attack_claims, read=images.mean_along("fgsm", "error", "epsilon", units="pixel")),
        "weakest": partial(attack_claims, read=images.number("fgsm", "error", units="normalised", epsilon=_WEAKEST)),
        "without-node-gp": partial(attack_claims, baselines=tuple(name for name in BASELINES if name != "node-gp")),
    }
    usual, other = (list(made(images)) for made in (attack_claims, readings[cause.reading]))
    counts = [sum(entry.verdict.outcome is Outcome.REPRODUCED for entry in claims) for claims in (usual, other)]
    missing = any(entry.verdict.outcome is Outcome.MISSING for entry in (*usual, *other))
    ours, changed = (None if missing else Measured((float(count),)) for count in counts)
    what = f"attack: claims that are reproduced, of {len(usual)}"
    return Compared(cause, what, ours, float(len(usual)), changed, digits=0)


def _one_dimensional(cause: Cause, results: OneDimensionalResults, published: PaperValues) -> Compared:
    if cause.measure == "rate":
        posterior = published.learnt_posterior(_PRIOR)
        target, what = (
            None if posterior is None else posterior[1],
            "1-D, LT-NODE: rate of the learnt posterior against the paper's",
        )
        ours, changed = (results.measured(name, lambda r: r["posterior"]["beta"]) for name in ("lt-node", cause.variant))
    else:
        target, what = published.gap_entropies.get(cause.model), f"1-D, {model_title(cause.model)}: E against the paper's"
        names = (cause.model, cause.variant)
        ours, changed = (results.measured(name, lambda r: r["entropy"]["model"]["mean"]) for name in names)
    return Compared(cause, what, ours, target, changed, digits=2)
