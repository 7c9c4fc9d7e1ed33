"""Another data set: can the model tell that it is not its own?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ltnode import metrics
from ltnode.evaluation.predict import ClassPredictions
from ltnode.evaluation.protocols.context import Context
from ltnode.evaluation.results import Cost, ResultRow
from ltnode.trained.operating_point import SCORES
from ltnode.typing import Tensor

DETECTION_METRICS: Mapping[str, Callable[[Tensor, Tensor], float]] = {
    "auroc": metrics.auroc,
    "aupr_in": metrics.aupr_in,
    "aupr_out": metrics.aupr_out,
    "fpr95": metrics.fpr95,
    "detection_accuracy": metrics.detection_accuracy,
}


def ood(context: Context) -> list[ResultRow]:
    """Detection by three scores, entropies, and the accuracy on the pooled sets after rejection by entropy.

    Images of the other set are normalised with the constants of the training data. Rows: `DETECTION_METRICS` per score;
    ``mean_entropy`` of both parts; the curves ``entropy_histogram`` (counts over the bins' lower edges) and
    ``rejection_accuracy``; and the spread over draws of T.
    """
    assert context.ood is not None
    other = context.examples(context.ood.test)
    labels, where = context.test.y, {"ood": context.ood.name}
    inside, outside = context.predict_test(), context.predictor.classify(other.x)
    n = len(inside) + len(outside)
    cost = _pooled(inside, outside)
    scores = {
        name: score for name, score in SCORES.items() if name != "mutual_information" or not context.predictor.deterministic
    }
    rows = [
        context.row("ood", name, float(measure(score(inside), score(outside))), n, cost, {**where, "score": kind})
        for kind, score in scores.items()
        for name, measure in DETECTION_METRICS.items()
    ]
    upper = max(2.5, math.ceil(10 * math.log(inside.probs.shape[1])) / 10)
    for part, predictions in (("in", inside), ("out", outside)):
        setting, count = {**where, "part": part}, len(predictions)
        rows.append(context.row("ood", "mean_entropy", predictions.entropy.mean().item(), count, predictions.cost, setting))
        histogram = metrics.entropy_histogram(predictions.entropy, upper)
        rows.append(
            context.curve(
                "ood", "entropy_histogram", histogram.counts, histogram.edges[:-1], "entropy in nats, lower edge of the bin",
                count, predictions.cost, setting,
            )
        )  # fmt: skip
    curve = metrics.rejection_curve(inside.probs, labels, outside.probs)
    rows.append(context.curve("ood", "rejection_accuracy", curve.accuracy, curve.rejected, "rejected share", n, cost, where))
    per_draw = []
    for seed in context.spread_seeds:
        inside, outside = context.predict_test(seed, "random"), context.predictor.classify(other.x, seed, draw="random")
        confident = SCORES["max_probability"]
        per_draw.append(
            {
                **{name: float(m(confident(inside), confident(outside))) for name, m in DETECTION_METRICS.items()},
                "mean_entropy": outside.entropy.mean().item(),
            }
        )
    return rows + context.spread_rows("ood", per_draw, n, {**where, "score": "max_probability", "part": "out"})


def _pooled(inside: ClassPredictions, outside: ClassPredictions) -> Cost:
    """Cost of both sets together: per 1,000 examples of the pool."""
    first, second, n, m = inside.cost, outside.cost, len(inside), len(outside)
    evaluations = None
    if first.evaluations is not None and second.evaluations is not None:
        evaluations = (n * first.evaluations + m * second.evaluations) / (n + m)
    peaks = [cost.peak_memory_bytes for cost in (first, second) if cost.peak_memory_bytes is not None]
    seconds = (n * first.seconds_per_1000 + m * second.seconds_per_1000) / (n + m)
    return Cost(evaluations, seconds, max(peaks, default=None))
