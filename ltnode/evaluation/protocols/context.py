"""The model, the data and the options of an evaluation, as protocols use them, and helpers that make rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ltnode import metrics
from ltnode.data import Dataset, Split
from ltnode.evaluation.options import EvaluationOptions
from ltnode.evaluation.predict import ClassPredictions, Predictor
from ltnode.evaluation.results import Cost, ResultRow, Value
from ltnode.trained import TrainedModel
from ltnode.trained.operating_point import FALSE_ALARM_RATE
from ltnode.typing import Tensor

ClassMetric = Callable[[Tensor, Tensor], float]

SHIFT_METRICS: Mapping[str, ClassMetric] = {
    "error": metrics.error,
    "log_likelihood": metrics.log_likelihood,
    "brier": metrics.brier,
    "ece": metrics.ece,
}
"""Metrics that are measured under every shift, by name."""


@dataclass(frozen=True, eq=False)
class Context:
    """A model with its test data, ready for the protocols.

    Attributes:
        trained: The model and the record of its training.
        data: The data set that it is evaluated on, with the normalisation of the training.
        predictor: Predicts with the model.
        options: Options with every default resolved.
        ood: The out-of-distribution set; None if there is none.
    """

    trained: TrainedModel
    data: Dataset
    predictor: Predictor
    options: EvaluationOptions
    ood: Dataset | None
    _predicted: dict[tuple[int, str | None], ClassPredictions] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def test(self) -> Split:
        """Raw test examples on the model's device."""
        return self.examples(self.data.test)

    def examples(self, split: Split) -> Split:
        """The examples of a split within the limit of the options, on the model's device."""
        limit = self.options.limit
        return Split(split.x[:limit], split.y[:limit]).to(self.predictor.device)

    def predict_test(self, draw_seed: int | None = None, draw: str | None = None) -> ClassPredictions:
        """Predictions of the unchanged test set, made once even if several protocols need them; see `Predictor.classify`."""
        key = (self.options.draw_seed if draw_seed is None else draw_seed, draw or self.options.draw)
        if key in self._predicted:
            self.predictor.on_predicted(len(self.test))
        else:
            self._predicted[key] = self.predictor.classify(self.test.x, draw_seed, draw=draw)
        return self._predicted[key]

    def row(
        self,
        protocol: str,
        metric: str,
        value: Value,
        n: int,
        cost: Cost | None = None,
        setting: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> ResultRow:
        """One row about this model."""
        t, o = self.trained, self.options
        draw_seed = o.draw_seed if o.draw == "random" else None
        return ResultRow(
            model=t.model_name,
            data=self.data.name,
            preset=t.preset,
            seed=t.seed,
            protocol=protocol,
            metric=metric,
            value=value,
            n=n,
            setting=setting or {},
            draw_seed=draw_seed,
            extra=extra or {},
            cost=cost,
        )

    def quality_rows(
        self,
        protocol: str,
        predictions: ClassPredictions,
        labels: Tensor,
        setting: Mapping[str, Any] | None = None,
        measures: Mapping[str, ClassMetric] = SHIFT_METRICS,
    ) -> list[ResultRow]:
        """One row per metric of class predictions."""
        return [
            self.row(protocol, name, float(measure(predictions.probs, labels)), len(predictions), predictions.cost, setting)
            for name, measure in measures.items()
        ]

    def curve(
        self,
        protocol: str,
        metric: str,
        values: Tensor,
        x: Tensor,
        x_name: str,
        n: int,
        cost: Cost | None,
        setting: Mapping[str, Any] | None = None,
    ) -> ResultRow:
        """A row that is a curve over the abscissae ``x``."""
        extra = {"x": x.double().tolist(), "x_name": x_name}
        return self.row(protocol, metric, tuple(values.double().tolist()), n, cost, setting, extra)

    def flag_rows(
        self,
        protocol: str,
        familiarity: Tensor | None,
        cost: Cost | None,
        setting: Mapping[str, Any] | None = None,
    ) -> list[ResultRow]:
        """The share of examples that are called unfamiliar at the default false-alarm rate; no row without calibration."""
        if familiarity is None:
            return []
        share = (familiarity <= FALSE_ALARM_RATE).double().mean().item()
        where = {**(setting or {}), "rate": FALSE_ALARM_RATE}
        return [self.row(protocol, "unfamiliar_share", share, len(familiarity), cost, where)]

    @property
    def spread_seeds(self) -> list[int]:
        """Seeds of the draws of T over which the spread is computed; none for a deterministic model."""
        if self.predictor.deterministic:
            return []
        return [self.options.draw_seed + k for k in range(self.options.draws)]

    def spread_rows(
        self, protocol: str, per_draw: Sequence[Mapping[str, float]], n: int, setting: Mapping[str, Any] | None = None
    ) -> list[ResultRow]:
        """Population standard deviation of every metric over draws of T, with the values in ``extra``."""
        if len(per_draw) < 2:
            return []
        where = {**(setting or {}), "statistic": "std over draws"}
        rows = []
        for name in per_draw[0]:
            values = [measured[name] for measured in per_draw]
            extra = {"values": values, "mean": statistics.fmean(values), "seeds": self.spread_seeds}
            rows.append(self.row(protocol, name, statistics.pstdev(values), n, None, where, extra))
        return rows
