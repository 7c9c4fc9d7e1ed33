"""Does q(T) select the end-time? The validation error of NODEs trained at fixed end-times, compared with the learnt posterior.

The paper says that the posterior of LT-NODE, which is dense at small T, agrees with "extensive model selection" in which small T
did well. Here NODEs with the paper's network and schedule are trained at T = 0.25, 0.5, 1, 2 and 3 on 80 % of the points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch

from ltnode import metrics
from ltnode.data import gap_data
from ltnode.endtime import GammaTime
from ltnode.models import LatentTimeODE, build
from ltnode.training import fit
from paper.reproduce.one_dimensional.experiment import ITERATIONS, POINTS, VARIANTS, result_name
from paper.reproduce.one_dimensional.measure import batch_statistics_outputs
from paper.reproduce.records import write_result

TIMES = (0.25, 0.5, 1.0, 2.0, 3.0)
_VALIDATION = 0.2


def selection_name(time: float, seed: int, iterations: int) -> str:
    """Name of the run folder and of the result file of one end-time."""
    return result_name(f"t{time:g}", seed, iterations, experiment="selection")


def reproduce_time(time: float, seed: int, out: Path, runs: Path, iterations: int = ITERATIONS) -> dict[str, Any]:
    """Train a NODE at one end-time, or continue its training, measure its validation error, and write the result as JSON.

    Args:
        time: The end-time T.
        seed: Seed of the weights and of the validation split.
        out: Folder of the results.
        runs: Folder of the run folders.
        iterations: Training steps; the paper makes 3,000.
    """
    data = gap_data(POINTS)
    model = build("node", "synthetic", "paper", seed=seed, end_time={"t": time})
    config = VARIANTS["node"].config(seed, iterations)
    config = config.replace(validation_fraction=_VALIDATION, model_options={"end_time": {"t": time}})
    stem = selection_name(time, seed, iterations)
    run = fit(model, data, config, runs / stem, resume=True)
    assert isinstance(run.model, LatentTimeODE)
    _, held_out = data.with_validation(_VALIDATION, seed=seed)
    batch = batch_statistics_outputs(run.model, held_out.x, torch.tensor([time]))[0, :, 0]
    result = {
        "experiment": "selection",
        "time": time,
        "seed": seed,
        "iterations": iterations,
        "n_validation": len(held_out),
        "validation_rmse": {
            "eval": metrics.rmse(run.model.predict(held_out.x, 1, "random", 0, "adaptive").mean, held_out.y),
            "train": metrics.rmse(batch, held_out.y),
        },
        "provenance": run.results["provenance"],
    }
    write_result(out, stem, result)
    return result


class Support(Enum):
    """What the validation errors say about the posterior."""

    SUPPORTED = auto()
    NOT_SUPPORTED = auto()
    UNDECIDED = auto()
    """Validation cannot distinguish the end-times."""


@dataclass(frozen=True)
class Selection:
    """Validation errors compared with a posterior.

    Attributes:
        support: Whether they support it.
        best_time: End-time with the lowest validation error.
        indistinguishable: End-times whose error is within two standard errors of the lowest.
        posterior_mass: Probability under q of the times that are nearest to each trained end-time.
        favoured: Trained end-time with the largest posterior mass.
    """

    support: Support
    best_time: float
    indistinguishable: tuple[float, ...]
    posterior_mass: tuple[float, ...]
    favoured: float

    @property
    def text(self) -> str:
        """One sentence for a table."""
        mass = f"q(T) has most mass near T = {self.favoured:g}"
        match self.support:
            case Support.SUPPORTED:
                return f"supported: {mass}, which is among the best end-times"
            case Support.NOT_SUPPORTED:
                best = ", ".join(f"{time:g}" for time in self.indistinguishable)
                return f"not supported: {mass}, but the best end-times are {best}"
            case Support.UNDECIDED:
                return "validation cannot distinguish the end-times, so it neither supports nor contradicts q(T)"


def standard_error(rmse: float, n: int) -> float:
    """Standard error of an RMSE over n independent Gaussian residuals: ``rmse / sqrt(2 n)``."""
    return rmse / math.sqrt(2 * n)


@torch.no_grad()
def compare(results: Sequence[Mapping[str, Any]], alpha: float, beta: float) -> Selection:
    """Compare validation errors with the posterior Gamma(alpha, beta).

    The errors are those with the running statistics of BatchNorm, which predictions use. End-times whose error lies within two
    standard errors of the lowest cannot be distinguished from the best.

    Args:
        results: One result per end-time.
        alpha: Shape of q.
        beta: Rate of q.
    """
    ordered = sorted(results, key=lambda result: float(result["time"]))
    times = [float(result["time"]) for result in ordered]
    errors = [float(result["validation_rmse"]["eval"]) for result in ordered]
    best = min(range(len(times)), key=errors.__getitem__)
    limit = errors[best] + 2 * standard_error(errors[best], int(ordered[best]["n_validation"]))
    good = tuple(time for time, error in zip(times, errors, strict=True) if error <= limit)
    q = GammaTime(alpha, beta, truncate=False)
    edges = [math.sqrt(a * b) for a, b in itertools.pairwise(times)]
    tails = [1.0, *(float(q.tail(edge)) for edge in edges), 0.0]
    mass = tuple(a - b for a, b in itertools.pairwise(tails))
    favoured = times[max(range(len(times)), key=mass.__getitem__)]
    support = Support.UNDECIDED if len(good) == len(times) else Support.SUPPORTED if favoured in good else Support.NOT_SUPPORTED
    return Selection(support, times[best], good, mass, favoured)
