"""Post-hoc calibration on held-out examples: temperature scaling, and conformal sets with a guaranteed coverage.

The examples are those that training held out for validation. If it held out none, a random half of the test set is used, and the
metrics are measured on the other half.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ltnode import metrics
from ltnode.errors import InputError
from ltnode.evaluation.predict import ClassPredictions
from ltnode.evaluation.protocols.context import Context
from ltnode.evaluation.results import ResultRow
from ltnode.trained.calibration import calibration_halves
from ltnode.typing import Int, Tensor


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Predictions to calibrate on, and others to measure on.

    Attributes:
        source: "validation split" or "half of the test set".
        calibration: Predictions of the held-out examples.
        calibration_labels: Labels of the held-out examples.
        test: Predictions of the examples to measure on.
        test_labels: Labels of the examples to measure on.
    """

    source: str
    calibration: ClassPredictions
    calibration_labels: Int[Tensor, " N"]
    test: ClassPredictions
    test_labels: Int[Tensor, " M"]

    @classmethod
    def of(cls, context: Context) -> HeldOut:
        """Predict the held-out and the test examples."""
        predictor, test = context.predictor, context.test
        predictions = context.predict_test()
        validation = context.trained.validation_split(context.data)
        if validation is not None:
            held = context.examples(validation)
            return cls("validation split", predictor.classify(held.x), held.y, predictions, test.y)
        if len(test) < 2:
            raise InputError(
                "calibration needs held-out examples: train with validation_fraction > 0, or use at least 2 test examples"
            )
        halves = calibration_halves(len(test), context.options.draw_seed)
        first, second = (half.to(predictor.device) for half in halves)
        return cls("half of the test set", predictions.select(first), test.y[first], predictions.select(second), test.y[second])


def temperature(context: Context) -> list[ResultRow]:
    """The temperature that fits the held-out examples best, and the quality before and after: see ``setting["scaling"]``."""
    held = HeldOut.of(context)
    fitted = metrics.fit_temperature(held.calibration.log_probs, held.calibration_labels)
    scaled = metrics.apply_temperature(held.test.log_probs, fitted)
    after = replace(held.test, probs=scaled.exp(), log_probs=scaled)
    extra = {"held_out": held.source, "n_held_out": len(held.calibration)}
    rows = [context.row("temperature", "temperature", fitted, len(held.calibration), held.calibration.cost, None, extra)]
    for name, predictions in (("none", held.test), ("temperature", after)):
        rows += [
            replace(row, extra=extra)
            for row in context.quality_rows("temperature", predictions, held.test_labels, {"scaling": name})
        ]
    return rows


def conformal(context: Context) -> list[ResultRow]:
    """Coverage, mean size and share of empty sets of split-conformal prediction, for every allowed miscoverage ``alpha``."""
    held = HeldOut.of(context)
    extra = {"held_out": held.source, "n_held_out": len(held.calibration)}
    rows: list[ResultRow] = []
    for alpha in context.options.alphas:
        threshold = metrics.conformal_threshold(held.calibration.probs, held.calibration_labels, alpha)
        sets = metrics.prediction_sets(held.test.probs, threshold)
        sizes = sets.sum(1).double()
        row = partial(context.row, "conformal", n=len(held.test), cost=held.test.cost, setting={"alpha": alpha}, extra=extra)
        rows += [
            row("coverage", sets.gather(1, held.test_labels[:, None]).double().mean().item()),
            row("mean_set_size", sizes.mean().item()),
            row("empty_share", (sizes == 0).double().mean().item()),
        ]
    return rows
