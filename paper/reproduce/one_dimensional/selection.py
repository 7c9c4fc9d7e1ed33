"""Does q(T) select the end-time? NODEs trained at fixed end-times, their validation error beside the learnt posterior.

The paper says that LT-NODE's posterior, dense at small T, agrees with "extensive model selection" in which small T did well.
Here NODEs with the paper's network and schedule are trained at T = 0.25, 0.5, 1, 2, 3 on 80 % of the points.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ltnode import metrics
from ltnode.data import gap_data
from ltnode.endtime import GammaTime
from ltnode.models import LatentTimeODE, build
from ltnode.training import fit
from paper.reproduce.one_dimensional.synthetic import (
    ITERATIONS,
    POINTS,
    VARIANTS,
    OnLog,
    batch_statistics_outputs,
    result_name,
    write_result,
)

TIMES = (0.25, 0.5, 1.0, 2.0, 3.0)
_VALIDATION = 0.2


def selection_name(time: float, seed: int, iterations: int) -> str:
    """Name of the run folder and result file of one end-time."""
    return result_name(f"t{time:g}", seed, iterations, experiment="selection")


def reproduce_time(
    time: float, seed: int, out: Path, runs: Path, iterations: int = ITERATIONS, on_log: OnLog | None = None
) -> dict[str, Any]:
    """Train a NODE at one end-time, or continue it, measure its validation error, and write the result as JSON.

    Args:
        time: The end-time T.
        seed: Of weights and of the validation split.
        out: Folder of the result.
        runs: Folder of the run folders.
        iterations: Steps; the paper's are 3,000.
        on_log: Called with every line of the training log.
    """
    data = gap_data(POINTS)
    model = build("node", "synthetic", "paper", seed=seed, end_time={"t": time})
    config = VARIANTS["node"].config(seed, iterations)
    config = config.replace(validation_fraction=_VALIDATION, model_options={"end_time": {"t": time}})
    stem = selection_name(time, seed, iterations)
    run = fit(model, data, config, runs / stem, resume=True, on_log=on_log)
    assert isinstance(run.model, LatentTimeODE)
    _, held = data.with_validation(_VALIDATION, seed=seed)
    batch = batch_statistics_outputs(run.model, held.x, torch.tensor([time]))[0, :, 0]
    result = {
        "experiment": "selection",
        "time": time,
        "seed": seed,
        "iterations": iterations,
        "n_validation": len(held),
        "validation_rmse": {
            "eval": metrics.rmse(run.model.predict(held.x, 1, "random", 0, "adaptive").mean, held.y),
            "train": metrics.rmse(batch, held.y),
        },
        "provenance": run.results["provenance"],
    }
    write_result(out, stem, result)
    return result


@dataclass(frozen=True)
class SelectionVerdict:
    """What the validation errors say about the posterior.

    Attributes:
        best_time: End-time of the lowest validation error.
        indistinguishable: End-times whose error is within two standard errors of the lowest.
        posterior_mean: E[T] under q.
        posterior_mass: q's probability of the times nearest to each trained end-time.
        text: In words.
    """

    best_time: float
    indistinguishable: tuple[float, ...]
    posterior_mean: float
    posterior_mass: tuple[float, ...]
    text: str


def standard_error(rmse: float, n: int) -> float:
    """Standard error of an RMSE over n independent Gaussian residuals: ``rmse / sqrt(2 n)``."""
    return rmse / math.sqrt(2 * n)


@torch.no_grad()
def judge(results: Sequence[dict[str, Any]], alpha: float, beta: float) -> SelectionVerdict:
    """Compare validation errors with the posterior Gamma(alpha, beta).

    Errors are those with BatchNorm's running statistics, as one predicts. End-times whose error lies within two standard
    errors of the lowest cannot be told from the best.

    Args:
        results: One per end-time.
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
    mean = alpha / beta
    if len(good) == len(times):
        text = "validation cannot tell the end-times apart, so it neither supports nor contradicts q(T)"
    elif favoured in good:
        text = f"supported: q(T) has most mass near T = {favoured:g}, which is among the best end-times"
    else:
        text = f"not supported: q(T) has most mass near T = {favoured:g}, but the best end-times are {_list(good)}"
    return SelectionVerdict(times[best], good, mean, mass, text)


def _list(times: Sequence[float]) -> str:
    return ", ".join(f"{time:g}" for time in times)
