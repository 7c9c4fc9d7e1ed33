"""Regression: error, likelihood, sharpness and coverage on the test set; the entropy in an interval without data."""

from __future__ import annotations

import math

import torch

from ltnode import metrics
from ltnode.evaluation.predict import RealPredictions
from ltnode.evaluation.protocols.clean import model_rows
from ltnode.evaluation.protocols.context import Context
from ltnode.evaluation.results import ResultRow
from ltnode.typing import Tensor

_GRID_STEP = 0.005
"""Spacing of the points over which entropies are averaged, as in the paper's figures."""
_NOISE_FLOOR = 1e-6
"""Smallest standard deviation in a likelihood, since a deterministic model without noise predicts 0."""


def regression(context: Context) -> list[ResultRow]:
    """RMSE, negative log-likelihood, CRPS and interval coverage with the total standard deviation (model and noise).

    For data with one input feature there is also ``entropy``, the Gaussian entropy in nats averaged over ``entropy_interval``:
    ``setting["noise"]`` says whether it includes the noise (in the paper it does not). The spread is over draws of T.
    """
    x, y, o = context.test.x, context.test.y.double(), context.options
    predictions = context.predictor.regress(x)
    n, cost = len(context.test), predictions.cost
    rows = [context.row("regression", name, value, n, cost) for name, value in _quality(predictions, y).items()]
    for level in o.levels:
        covered = metrics.interval_coverage(predictions.mean, _spread(predictions), y, level)
        rows.append(context.row("regression", "coverage", covered, n, cost, {"level": level}))
    rows += context.flag_rows("regression", predictions.familiarity, cost)
    rows += model_rows(context, "regression")
    grid = _grid(context)
    if grid is not None:
        interval = list(o.entropy_interval)
        on_grid = context.predictor.regress(grid)
        for noise, value in _entropies(on_grid, context.predictor.deterministic).items():
            setting = {"interval": interval, "noise": noise}
            rows.append(context.row("regression", "entropy", value, len(grid), on_grid.cost, setting))
    return rows + _spread_over_draws(context, grid)


def _quality(p: RealPredictions, target: Tensor) -> dict[str, float]:
    std = _spread(p)
    return {
        "rmse": metrics.rmse(p.mean, target),
        "nll": metrics.gaussian_nll(p.mean, std, target),
        "crps": metrics.crps_gaussian(p.mean, std, target),
        "mean_std": p.std.mean().item(),
    }


def _spread(p: RealPredictions) -> Tensor:
    return p.total_std.clamp_min(_NOISE_FLOOR)


def _entropies(p: RealPredictions, deterministic: bool) -> dict[bool, float]:
    """Mean entropy without and with observation noise; without it, a deterministic model has no entropy."""
    alone = math.nan if deterministic else metrics.gaussian_entropy(p.std.square())
    return {False: alone, True: metrics.gaussian_entropy(p.total_std.square())}


def _grid(context: Context) -> Tensor | None:
    """Inputs strictly inside the entropy interval; None unless the data have one input feature."""
    if context.data.input_shape != (1,):
        return None
    low, high = context.options.entropy_interval
    count = max(1, math.ceil((high - low) / _GRID_STEP) - 1)
    points = low + (high - low) * torch.arange(1, count + 1, dtype=torch.float64) / (count + 1)
    return points[:, None].to(context.test.x.dtype)


def _spread_over_draws(context: Context, grid: Tensor | None) -> list[ResultRow]:
    predictor, target = context.predictor, context.test.y.double()
    per_draw = []
    for seed in context.spread_seeds:
        measured = _quality(predictor.regress(context.test.x, seed, draw="random"), target)
        if grid is not None:
            measured["entropy"] = metrics.gaussian_entropy(predictor.regress(grid, seed, draw="random").std.square())
        per_draw.append(measured)
    return context.spread_rows("regression", per_draw, len(context.test))
