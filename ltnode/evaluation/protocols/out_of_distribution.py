"""Out-of-distribution detection: can the model tell another data set from its own?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ltnode import metrics
from ltnode.evaluation.predict import ClassPredictions
from ltnode.evaluation.protocols.context import Context
from ltnode.evaluation.results import Cost, ResultRow
from ltnode.typing import Tensor

DETECTION_METRICS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "auroc": metrics.auroc,
    "aupr_in": metrics.aupr_in,
    "aupr_out": metrics.aupr_out,
    "fpr95": metrics.fpr95,
    "detection_accuracy": metrics.detection_accuracy,
}
DEFAULT_SCORE = "max_probability"
"""Score of the paper."""
SCORES: Mapping[str, Callable[[Any], Tensor]] = {
    "max_probability": lambda p: p.probs.amax(1),
    "entropy": lambda p: -p.entropy,
    "mutual_information": lambda p: -p.epistemic,
    "distance": lambda p: -p.distance,
}
"""Scores of predictions, larger = more in-distribution."""


def ood(context: Context) -> list[ResultRow]:
    """Detection by up to four scores, entropies, and the accuracy on the pooled sets after rejection by entropy.

    Images of the other set are normalised with the constants of the training data. The rows are: `DETECTION_METRICS` per score,
    of which "distance" needs a model whose familiarity is fitted; ``mean_entropy`` of both parts; ``unfamiliar_share`` of both
    parts, if the model is calibrated; the curves ``entropy_histogram`` (counts over the lower edges of the bins) and
    ``rejection_accuracy``; and the spread over draws of T.
    """
    assert context.ood is not None
    other, where = context.examples(context.ood.test), {"ood": context.ood.name}
    inside, outside = context.predict_test(), context.predictor.classify(other.x)
    n, cost = len(inside) + len(outside), _pooled(inside, outside)
    # The mutual information of a deterministic model is rounding noise.
    useless = {"mutual_information"} if context.predictor.deterministic else set()
    scores = [name for name in SCORES if name not in useless | ({"distance"} if inside.distance is None else set())]
    rows = [
        context.row("ood", metric, value, n, cost, {**where, "score": score})
        for score in scores
        for metric, value in _detection(score, inside, outside).items()
    ]
    rows += _entropy_rows(context, "in", inside) + _entropy_rows(context, "out", outside)
    curve = metrics.rejection_curve(inside.probs, context.test.y, outside.probs)
    rows.append(context.curve("ood", "rejection_accuracy", curve.accuracy, curve.rejected, "rejected share", n, cost, where))
    per_draw = []
    for seed in context.spread_seeds:
        inside, outside = context.predict_test(seed, "random"), context.predictor.classify(other.x, seed, draw="random")
        per_draw.append(_detection(DEFAULT_SCORE, inside, outside) | {"mean_entropy": outside.entropy.mean().item()})
    return rows + context.spread_rows("ood", per_draw, n, {**where, "score": DEFAULT_SCORE, "part": "out"})


def _detection(score: str, inside: ClassPredictions, outside: ClassPredictions) -> dict[str, float]:
    return {name: float(metric(SCORES[score](inside), SCORES[score](outside))) for name, metric in DETECTION_METRICS.items()}


def _entropy_rows(context: Context, part: str, predictions: ClassPredictions) -> list[ResultRow]:
    assert context.ood is not None
    n, cost, setting = len(predictions), predictions.cost, {"ood": context.ood.name, "part": part}
    upper = max(2.5, math.ceil(10 * math.log(predictions.probs.shape[1])) / 10)
    histogram = metrics.entropy_histogram(predictions.entropy, upper)
    counts, edges = histogram.counts, histogram.edges[:-1]
    return [
        *context.flag_rows("ood", predictions.familiarity, cost, setting),
        context.row("ood", "mean_entropy", predictions.entropy.mean().item(), n, cost, setting),
        context.curve("ood", "entropy_histogram", counts, edges, "entropy in nats, lower edge of the bin", n, cost, setting),
    ]


def _pooled(inside: ClassPredictions, outside: ClassPredictions) -> Cost:
    """Cost of predicting both sets, per 1,000 examples of the pool."""
    first, second, n, m = inside.cost, outside.cost, len(inside), len(outside)
    evaluations = None
    if first.evaluations is not None and second.evaluations is not None:
        evaluations = (n * first.evaluations + m * second.evaluations) / (n + m)
    peaks = [cost.peak_memory_bytes for cost in (first, second) if cost.peak_memory_bytes is not None]
    seconds = (n * first.seconds_per_1000 + m * second.seconds_per_1000) / (n + m)
    return Cost(evaluations, seconds, max(peaks, default=None))
