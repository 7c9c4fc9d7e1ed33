"""What is measured of a trained model of the 1-D experiment."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ltnode import metrics
from ltnode.data import Dataset, gap_grid
from ltnode.endtime import FixedTime
from ltnode.models import LatentTimeODE, Model, Prediction
from ltnode.report.gap import REGIONS, in_gap
from ltnode.typing import Float, Tensor

SAMPLES = 10
TIME_SETS = 10
"""Number of sets of random end-times over which the spread of the entropy is computed."""
_CURVE_STRIDE = 4


def measure(model: Model, data: Dataset) -> dict[str, Any]:
    """Measure everything that the paper states about a trained model, or that explains it.

    Predictions are made as in the paper: 10 random end-times from the untruncated posterior (10 passes of SDE-Net, 10 draws from
    the Gaussian processes), running statistics of BatchNorm, and steps that are chosen for the whole batch. ``entropy.model`` is
    the mean of ``0.5 ln(2 pi e var)`` over the grid points in (-0.5, 0.5), where ``var`` is the variance of the members;
    ``entropy.with_noise`` adds the observation noise. Both are computed for 10 sets of members.
    """
    grid = gap_grid()
    gap = in_gap(grid)
    latent = model if isinstance(model, LatentTimeODE) else None
    deterministic = latent is not None and isinstance(latent.end_time, FixedTime)
    sets = [_predict(model, grid, seed) for seed in range(TIME_SETS)]
    first = sets[0]
    noise = first.noise_std.square()
    regions = torch.tensor(REGIONS)
    on_data = ((grid >= regions[:, 0]) & (grid <= regions[:, 1])).any(dim=1)
    return {
        "entropy": {
            # Without any spread the entropy is minus infinity.
            "model": None if deterministic else _over_sets([metrics.gaussian_entropy(p.std[gap].square()) for p in sets]),
            "with_noise": _over_sets([metrics.gaussian_entropy(p.std[gap].square() + noise) for p in sets]),
        },
        "std": {
            "data": _over_sets([float(p.std[on_data].mean()) for p in sets]),
            "gap": _over_sets([float(p.std[gap].mean()) for p in sets]),
        },
        "fit": _fit(model, data),
        **_posteriors(latent, data.train.x, grid[gap]),
        "noise_std": float(first.noise_std),
        "parameters": _parameters(model),
        "evaluations": first.stats.n_evaluations if first.stats else None,
        "curve": {
            "x": _rounded(grid[::_CURVE_STRIDE, 0]),
            "mean": _rounded(first.mean[::_CURVE_STRIDE]),
            "std": _rounded(first.std[::_CURVE_STRIDE]),
        },
    }


def _predict(model: Model, x: Float[Tensor, "B D"], seed: int) -> Prediction:
    """Predict as in the paper: random members, and adaptive steps if the model has any."""
    if isinstance(model, LatentTimeODE):
        return model.predict(x, SAMPLES, "random", seed, "adaptive")
    return model.predict(x, SAMPLES, "random", seed)


def _parameters(model: Model) -> dict[str, int]:
    """Number of parameters, with and without those of the likelihood."""
    every = sum(p.numel() for p in model.parameters())
    likelihood = sum(p.numel() for p in getattr(model, "likelihood", torch.nn.Identity()).parameters())
    return {"network_and_posterior": every - likelihood, "all": every}


def _posteriors(model: LatentTimeODE | None, x: Float[Tensor, "B D"], in_the_gap: Float[Tensor, "G D"]) -> dict[str, Any]:
    """The learnt posterior on the data and in the gap; None for a model that has none."""
    if model is None or not model.end_time.learnable:
        return {"posterior": None, "posterior_in_gap": None}
    if not model.end_time.amortized:
        return {"posterior": model.end_time.describe(), "posterior_in_gap": None}
    return {"posterior": model.end_time.describe(x), "posterior_in_gap": model.end_time.describe(in_the_gap)}


@torch.no_grad()
def _fit(model: Model, data: Dataset) -> dict[str, Any]:
    """RMSE on the training data of 10 random members.

    For models with end-times it is computed twice: with the running statistics of BatchNorm (``eval``) and with those of the
    batch (``train``).
    """
    x, y = data.train.x, data.train.y
    model.eval()
    result: dict[str, Any] = {"test_rmse": metrics.rmse(_predict(model, data.test.x, 0).mean, data.test.y)}
    if isinstance(model, LatentTimeODE):
        times = model.prediction_times(x, SAMPLES, "random", 0)
        result["times"] = _rounded(times if times.ndim == 1 else times.mean(dim=1))
        outputs = {"eval": model(x, times, "adaptive"), "train": batch_statistics_outputs(model, x, times)}
    else:
        outputs = {"eval": _predict(model, x, 0).outputs}
    for mode, members in outputs.items():
        means = members.squeeze(-1)
        result[mode] = {
            "rmse": metrics.rmse(means.mean(dim=0), y),
            "rmse_of_members": [metrics.rmse(member, y) for member in means],
        }
    return result


@torch.no_grad()
def batch_statistics_outputs(
    model: LatentTimeODE, x: Float[Tensor, "B D"], times: Float[Tensor, "S *batch"]
) -> Float[Tensor, "S B C"]:
    """Outputs as in training, where BatchNorm uses the statistics of the batch; the model itself does not change."""
    return copy.deepcopy(model).train()(x, times, "adaptive")


def _over_sets(values: Sequence[float]) -> dict[str, Any]:
    numbers = torch.tensor(values, dtype=torch.float64)
    return {"mean": float(numbers.mean()), "std": float(numbers.std(correction=0)), "sets": list(values)}


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 6) for value in values]
