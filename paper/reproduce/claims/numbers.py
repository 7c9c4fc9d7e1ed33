"""The recorded numbers of the image experiments over all seeds, looked up by data set, model, preset and variant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ltnode.evaluation import ResultRow
from ltnode.report.aggregate import Measured
from paper.reproduce.claims.evidence import Evidence, of_models
from paper.reproduce.images.grid import STANDARD
from paper.reproduce.images.results import ImageResult

DATA = ("mnist", "fashion-mnist", "cifar10", "svhn")
BASELINES = ("node", "sde-net", "node-gp", "uni-node")
PROPOSED = ("lt-node", "alt-node")
MODELS = (*BASELINES, *PROPOSED)
FOREIGN = {"cifar10": "svhn", "svhn": "cifar10"}
"""The paper's pairs of data sets: the set that a model is trained on, and the foreign one."""

Read = Callable[[ImageResult], float | None]
"""Reads one number of a result; returns None if the result does not have it."""


class ImageNumbers:
    """Numbers of the image experiments.

    Args:
        results: Recorded results of any cells.
    """

    def __init__(self, results: Sequence[ImageResult]) -> None:
        self.results = list(results)
        self._rows: dict[tuple[int, str, str], list[ResultRow]] = {}
        for result in self.results:
            for row in result.rows():
                if "statistic" not in row.setting:
                    self._rows.setdefault((id(result), row.protocol, row.metric), []).append(row)

    def measured(self, read: Read, data: str, model: str, preset: str = "paper", variant: str = "") -> Measured | None:
        """Read a number from every seed of a cell; returns None if no seed has it."""
        values = [read(result) for result in self.results_of(data, model, preset, variant)]
        known = tuple(value for value in values if value is not None and not math.isnan(value))
        return Measured(known) if known else None

    def of_models(self, read: Read, data: str, models: Sequence[str], digits: int) -> Evidence:
        """Compare several models, with the paper's preset, in one number."""
        return of_models({model: self.measured(read, data, model) for model in models}, digits)

    def results_of(self, data: str, model: str, preset: str = "paper", variant: str = "") -> list[ImageResult]:
        """Results of all seeds of a cell, ordered by seed."""
        found = [r for r in self.results if (r.data, r.model, r.preset, r.variant) == (data, model, preset, variant)]
        return sorted(found, key=lambda result: result.seed)

    def number(self, protocol: str, metric: str, scale: float = 1.0, **setting: Any) -> Read:
        """Make a reader of one number of a protocol, multiplied by a factor."""
        return lambda result: next((scale * row.number for row in self._where(result, protocol, metric, setting)), None)

    def mean_along(self, protocol: str, metric: str, along: str, **setting: Any) -> Read:
        """Make a reader of the mean over all positive angles or strengths of a protocol."""

        def read(result: ImageResult) -> float | None:
            rows = self._where(result, protocol, metric, setting)
            values = [row.number for row in rows if along in row.setting and float(row.setting[along]) > 0]
            return math.fsum(values) / len(values) if values else None

        return read

    def at(self, protocol: str, metric: str, x: float, **setting: Any) -> Read:
        """Make a reader of a curve at the abscissa that is nearest to x."""

        def read(result: ImageResult) -> float | None:
            for row in self._where(result, protocol, metric, setting):
                abscissae: Sequence[float] = row.extra["x"]
                return row.curve[min(range(len(abscissae)), key=lambda k: abs(abscissae[k] - x))]
            return None

        return read

    def _where(self, result: ImageResult, protocol: str, metric: str, setting: Mapping[str, Any]) -> list[ResultRow]:
        rows = self._rows.get((id(result), protocol, metric), ())
        return [row for row in rows if all(row.setting.get(key) == value for key, value in setting.items())]


def command(data: str, models: Sequence[str], variant: str = "") -> str:
    """The command that produces the numbers of a claim, with the paper's preset."""
    chosen = f"--data {data} --models {','.join(models)} --presets paper --variants {variant or STANDARD}"
    return f"ltnode reproduce images {chosen}"
