"""What the demo measures of a trained model, and the goals that it checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ltnode import metrics
from ltnode.data import Dataset, gap_grid
from ltnode.demo.gaussian_process import GaussianProcess
from ltnode.endtime import AmortizedGammaTime, FixedTime, GammaTime, UniformTime
from ltnode.models import Model
from ltnode.report.gap import NOISE, in_gap, on_data, truth
from ltnode.report.naming import model_title
from ltnode.typing import Float, Tensor

CHECKED = ("lt-node", "alt-node")
"""Models that must fit the data, and know elsewhere how little they know."""
LARGEST_RMSE = 0.12
SMALLEST_COVERAGE = 0.9
LARGEST_ON_DATA = 1.3
LARGEST_OFF_DATA = 1.5
HEADER = (
    "model",
    "fit\nRMSE",
    "truth in\n±2 std",
    "on data:\nstd / noise",
    "off data:\nstd / GP's",
    "end-time T",
    "field\ncalls",
    "time,\ns",
)
WORDS = (0, 5)


@dataclass(frozen=True)
class Band:
    """How a model predicts along `gap_grid`: mean, and standard deviation with the observation noise."""

    mean: Float[Tensor, "800"]
    std: Float[Tensor, "800"]


@dataclass(frozen=True)
class Row:
    """Measurements of one model.

    Attributes:
        model: Name of the model.
        title: Name of the model in tables.
        rmse: RMSE of the mean on the training data, whose noise has a standard deviation of 0.1.
        coverage: Share of x in [-2, 2] at which the true function lies within two standard deviations of the mean.
        on_data: Mean standard deviation in the intervals with data, relative to the noise.
        off_data: Mean standard deviation elsewhere in [-2, 2], relative to that of the Gaussian process.
        end_time: Description of its distribution of T.
        tail: P(T > 3), averaged over the training inputs if T depends on the input.
        evaluations: Evaluations of the field for one prediction of 800 inputs with 10 end-times.
        seconds: Training time.
        misses: Goals that it misses; empty for models that are not checked.
    """

    model: str
    title: str
    rmse: float
    coverage: float
    on_data: float
    off_data: float
    end_time: str = "–"
    tail: float | None = None
    evaluations: int | None = None
    seconds: float | None = None
    misses: tuple[str, ...] = ()


def measure(model: Model, name: str, data: Dataset, process: GaussianProcess, seconds: float) -> Row:
    """Measure a trained model, given its name, its training data, a process on the same data and its training time."""
    grid = gap_grid()
    along = model.predict(grid)
    rmse = metrics.rmse(model.predict(data.train.x).mean, data.train.y)
    measured = rmse, *_measure_band(Band(along.mean, along.total_std), Band(*process.predict(grid)))
    end_time, tail = _end_time(model, data)
    evaluations = along.stats.n_evaluations if along.stats else None
    misses = _misses(*measured) if name in CHECKED else ()
    return Row(name, model_title(name), *measured, end_time, tail, evaluations, seconds, misses)


def measure_process(process: GaussianProcess, data: Dataset) -> Row:
    """Measure the Gaussian process itself."""
    band = Band(*process.predict(gap_grid()))
    rmse = metrics.rmse(process.predict(data.train.x)[0], data.train.y)
    return Row("gaussian-process", "Gaussian process on x", rmse, *_measure_band(band, band))


def _measure_band(band: Band, reference: Band) -> tuple[float, float, float]:
    """Coverage of the true function, and widths on and off the data."""
    grid = gap_grid()
    inside = on_data(grid)
    covered = (truth(grid) - band.mean).abs() <= 2 * band.std
    off = float(band.std[~inside].mean() / reference.std[~inside].mean())
    return float(covered.float().mean()), float(band.std[inside].mean()) / NOISE, off


def _misses(rmse: float, coverage: float, on: float, off: float) -> tuple[str, ...]:
    """Describe the goals that are missed; a comparison with NaN counts as a miss."""
    checks = (
        (rmse <= LARGEST_RMSE, f"training RMSE {rmse:.3f} is above {LARGEST_RMSE:g}"),
        (
            coverage >= SMALLEST_COVERAGE,
            f"the true function lies within ±2 std at {coverage:.0%} of x in [-2, 2], not at {SMALLEST_COVERAGE:.0%}",
        ),
        (on <= LARGEST_ON_DATA, f"on the data the std is {on:.2f} times the noise, above {LARGEST_ON_DATA:g}"),
        (off <= LARGEST_OFF_DATA, f"off the data the std is {off:.2f} times the Gaussian process's, above {LARGEST_OFF_DATA:g}"),
    )
    return tuple(text for good, text in checks if not good)


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
        f"{row.coverage:.0%}",
        f"{row.on_data:.2f}",
        f"{row.off_data:.2f}",
        row.end_time,
        "–" if row.evaluations is None else str(row.evaluations),
        "–" if row.seconds is None else f"{row.seconds:.0f}",
    ]


def verdicts(rows: Sequence[Row]) -> list[tuple[bool, str]]:
    """For every checked model, whether it reaches its goals, and a sentence that says so."""
    sentences = []
    for row in rows:
        if row.misses:
            sentences.append((False, f"{row.title} misses: {'; '.join(row.misses)}."))
        elif row.model in CHECKED:
            known = (
                f"the true function lies within ±2 std at {row.coverage:.0%} of x in [-2, 2] (at least {SMALLEST_COVERAGE:.0%})"
            )
            on = f"the std is {row.on_data:.2f} times the noise on the data (at most {LARGEST_ON_DATA:g})"
            off = f"{row.off_data:.2f} times that of a Gaussian process elsewhere (at most {LARGEST_OFF_DATA:g})"
            sentences.append((True, f"{row.title}: {known}; {on} and {off}."))
    return sentences
