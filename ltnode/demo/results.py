"""What the demo measures of a trained model, and the goals that it checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ltnode import metrics
from ltnode.data import Dataset, gap_grid
from ltnode.endtime import AmortizedGammaTime, FixedTime, GammaTime, UniformTime
from ltnode.models import Model
from ltnode.report.gap import in_gap
from ltnode.report.naming import model_title

CHECKED = ("lt-node", "alt-node")
"""Models that must fit the data and be uncertain in the gap."""
LARGEST_RMSE = 0.12
SMALLEST_RATIO = 2.0
HEADER = ("model", "fit\nRMSE", "std on\ndata", "std in\ngap", "ratio", "end-time T", "P(T\n> 3)", "field\ncalls", "time,\ns")
WORDS = (0, 5)


@dataclass(frozen=True)
class Row:
    """Measurements of one model.

    Attributes:
        model: Name of the model.
        title: Name of the model in tables.
        rmse: RMSE of the mean on the training data, whose noise has a standard deviation of 0.1.
        std_data: Mean standard deviation of the members at the training inputs.
        std_gap: Mean standard deviation of the members on the grid points between -0.5 and 0.5.
        end_time: Description of its distribution of T.
        tail: P(T > 3), averaged over the training inputs if T depends on the input.
        evaluations: Evaluations of the field for one prediction of 800 inputs with 10 end-times.
        seconds: Training time.
        misses: Goals that it misses; empty for models that are not checked.
    """

    model: str
    title: str
    rmse: float
    std_data: float
    std_gap: float
    end_time: str
    tail: float | None
    evaluations: int | None
    seconds: float
    misses: tuple[str, ...] = ()

    @property
    def ratio(self) -> float | None:
        """Standard deviation in the gap relative to that on the data; None for a model without spread."""
        return self.std_gap / self.std_data if self.std_data > 0 else None


def measure(model: Model, name: str, data: Dataset, seconds: float) -> Row:
    """Measure a trained model, given its name, its training data and its training time."""
    grid = gap_grid()
    on_data, along = model.predict(data.train.x), model.predict(grid)
    rmse = metrics.rmse(on_data.mean, data.train.y)
    std_data, std_gap = float(on_data.std.mean()), float(along.std[in_gap(grid)].mean())
    misses = []
    if name in CHECKED:
        if not rmse <= LARGEST_RMSE:
            misses.append(f"training RMSE {rmse:.3f} is above {LARGEST_RMSE:g}")
        if not std_gap >= SMALLEST_RATIO * std_data or std_gap == 0:
            misses.append(f"std in the gap {std_gap:.3f} is below {SMALLEST_RATIO:g} times that on the data, {std_data:.3f}")
    end_time, tail = _end_time(model, data)
    evaluations = along.stats.n_evaluations if along.stats else None
    return Row(name, model_title(name), rmse, std_data, std_gap, end_time, tail, evaluations, seconds, tuple(misses))


@torch.no_grad()
def _end_time(model: Model, data: Dataset) -> tuple[str, float | None]:
    """Description of the end-time, and P(T > 3)."""
    end_time: Any = getattr(model, "end_time", None)
    if end_time is None:
        return "–", None
    x = data.train.x if end_time.amortized else None
    tail = float(end_time.tail(3.0, x).mean())
    if isinstance(end_time, FixedTime):
        return f"T = {end_time.window[1]:g}", tail
    if isinstance(end_time, UniformTime):
        return f"uniform on ({end_time.window[0]:g}, {end_time.window[1]:g})", tail
    mean = f"mean {float(end_time(x).mean.mean()):.2f}"
    if isinstance(end_time, GammaTime):
        low, high = end_time.quantile([0.05, 0.95]).tolist()
        return f"Gamma, {mean}, 5-95 % {low:.2f} to {high:.2f}", tail
    if isinstance(end_time, AmortizedGammaTime):
        grid = gap_grid()
        return f"per input: {mean} on the data, {float(end_time(grid[in_gap(grid)]).mean.mean()):.2f} in the gap", tail
    return mean, tail


def cells(row: Row) -> list[str]:
    """A row of the table as strings, below `HEADER`."""
    return [
        row.title,
        f"{row.rmse:.3f}",
        "–" if row.ratio is None else f"{row.std_data:.3f}",
        "–" if row.ratio is None else f"{row.std_gap:.3f}",
        "–" if row.ratio is None else f"{row.ratio:.1f}",
        row.end_time,
        "–" if row.tail is None else f"{row.tail:.2f}",
        "–" if row.evaluations is None else str(row.evaluations),
        f"{row.seconds:.0f}",
    ]


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """For every checked model, whether it reaches its goals, and a sentence that says so."""
    sentences = []
    for row in rows:
        if row.misses:
            sentences.append((False, f"{row.title} misses: {'; '.join(row.misses)}."))
        elif row.model in CHECKED:
            fit = f"fits the data (RMSE {row.rmse:.3f}, at most {LARGEST_RMSE:g})"
            spread = "infinitely" if row.ratio is None else f"{row.ratio:.1f} times"
            gap = f"is {spread} less certain in the gap (at least {SMALLEST_RATIO:g} times)"
            sentences.append((True, f"{row.title} {fit} and {gap}."))
    return sentences
