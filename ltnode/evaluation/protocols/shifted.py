"""Shifted test images: rotation as in the paper, and corruptions at five severities."""

from __future__ import annotations

from functools import partial

from ltnode import metrics
from ltnode.data.streaming import mapped
from ltnode.evaluation.protocols.context import Context
from ltnode.evaluation.results import ResultRow
from ltnode.evaluation.shifts import corrupt, rotate


def rotation(context: Context) -> list[ResultRow]:
    """Error, log-likelihood, Brier score and ECE at every angle; confidence curves at one of them (45 degrees).

    Raw images are rotated before they are normalised, so that the corners are black and not grey.
    """
    x, y, o = context.test.x, context.test.y, context.options
    rows: list[ResultRow] = []
    for angle in o.angles:
        predictions = (
            context.predictor.classify(mapped(partial(rotate, degrees=angle), x)) if angle % 360 else context.predict_test()
        )
        setting, n, cost = {"angle": angle}, len(predictions), predictions.cost
        rows += context.quality_rows("rotation", predictions, y, setting)
        rows.append(context.row("rotation", "mean_entropy", predictions.entropy.mean().item(), n, cost, setting))
        if angle == o.confidence_angle:
            curve = metrics.confidence_curve(predictions.probs, y)
            for name, values in (("confidence_accuracy", curve.accuracy), ("confidence_count", curve.counts)):
                rows.append(context.curve("rotation", name, values, curve.threshold, "confidence threshold", n, cost, setting))
    return rows


def corruption(context: Context) -> list[ResultRow]:
    """Error, log-likelihood, Brier score and ECE under every corruption and severity."""
    x, y, o = context.test.x, context.test.y, context.options
    rows: list[ResultRow] = []
    for name in o.corruptions:
        for severity in o.severities:
            predictions = context.predictor.classify(corrupt(x, name, severity, seed=o.draw_seed))
            rows += context.quality_rows("corruption", predictions, y, {"corruption": name, "severity": severity})
    return rows
