"""The unchanged test set: every metric, the curves of a reliability diagram, the learnt posterior, the spread over draws."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ltnode import metrics
from ltnode.evaluation.predict import ClassPredictions
from ltnode.evaluation.protocols.context import SHIFT_METRICS, ClassMetric, Context
from ltnode.evaluation.results import ResultRow
from ltnode.typing import Tensor

_DESCRIBED = 512
"""Number of test inputs over which an input-dependent posterior is averaged."""

CLEAN_METRICS: Mapping[str, ClassMetric] = {
    **SHIFT_METRICS,
    "brier_mean_over_classes": metrics.brier_mean_over_classes,
    "adaptive_ece": metrics.adaptive_ece,
    "classwise_ece": metrics.classwise_ece,
    "misclassification_auroc": metrics.misclassification_auroc,
    "aurc": metrics.aurc,
}


def clean(context: Context) -> list[ResultRow]:
    """Quality, calibration and uncertainty on the test set.

    The rows are: `CLEAN_METRICS`; the means of entropy, aleatoric and epistemic uncertainty (nats); ``unfamiliar_share``, the
    share of test examples that are called unfamiliar, if the model is calibrated; the curves
    ``reliability_accuracy``, ``reliability_confidence`` and ``reliability_count`` over the lower edges of the bins, and
    ``confidence_accuracy`` and ``confidence_count`` over thresholds; ``parameters``; the learnt posterior, ``learnt.*``; and the
    spread over draws of T.
    """
    y = context.test.y
    predictions = context.predict_test()
    n, cost = len(predictions), predictions.cost
    rows = context.quality_rows("clean", predictions, y, measures=CLEAN_METRICS)
    for name, value in _uncertainty(predictions).items():
        rows.append(context.row("clean", name, value, n, cost))
    rows += context.flag_rows("clean", predictions.familiarity, cost)
    table = metrics.reliability(predictions.probs, y)
    for name, values in (("accuracy", table.accuracy), ("confidence", table.confidence), ("count", table.counts)):
        rows.append(
            context.curve("clean", f"reliability_{name}", values, table.lower, "confidence, lower edge of the bin", n, cost)
        )
    curve = metrics.confidence_curve(predictions.probs, y)
    rows.append(context.curve("clean", "confidence_accuracy", curve.accuracy, curve.threshold, "confidence threshold", n, cost))
    rows.append(context.curve("clean", "confidence_count", curve.counts, curve.threshold, "confidence threshold", n, cost))
    rows += model_rows(context, "clean")
    per_draw = [_measured(context.predict_test(seed, "random"), y) for seed in context.spread_seeds]
    return rows + context.spread_rows("clean", per_draw, n)


def model_rows(context: Context, protocol: str) -> list[ResultRow]:
    """Properties of the model itself: the number of trained parameters, and the learnt posterior."""
    model, n = context.trained.model, len(context.test)
    count = sum(p.numel() for p in model.parameters() if p.requires_grad)
    rows = [context.row(protocol, "parameters", float(count), n)]
    with torch.no_grad():
        learnt = model.describe(context.predictor.inputs(context.test.x[:_DESCRIBED]))
    return rows + [context.row(protocol, f"learnt.{name}", float(value), n) for name, value in learnt.items()]


def _measured(predictions: ClassPredictions, labels: Tensor) -> dict[str, float]:
    quality = {name: float(measure(predictions.probs, labels)) for name, measure in SHIFT_METRICS.items()}
    return quality | _uncertainty(predictions)


def _uncertainty(predictions: ClassPredictions) -> dict[str, float]:
    return {
        "mean_entropy": predictions.entropy.mean().item(),
        "mean_aleatoric": predictions.aleatoric.mean().item(),
        "mean_epistemic": predictions.epistemic.mean().item(),
    }
