"""The paper's 1-D experiment at its own settings: train, measure, record beside the published values.

Network, loss, optimiser and schedule are those of the ``paper`` preset: BatchNorm networks, SGD with learning rate 1e-3 times
0.1 every 1,000 of 3,000 iterations on all 1,500 points, random end-times, steps chosen by the whole batch. Nothing is tuned.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ltnode import metrics
from ltnode.data import Dataset, gap_data, gap_grid
from ltnode.demo.gap import REGIONS, in_gap
from ltnode.endtime import FixedTime
from ltnode.errors import DataError, InputError, unknown_name
from ltnode.files import write_json
from ltnode.models import LatentTimeODE, Model, Prediction, build
from ltnode.training import TrainConfig, fit, train_preset
from ltnode.typing import Float, Tensor

ITERATIONS = 3000
POINTS = 1500
SAMPLES = 10
TIME_SETS = 10
"""Sets of random end-times over which the spread of the entropy is taken."""
_CHECKPOINT_EVERY = 100
_CURVE_STRIDE = 4

OnLog = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True)
class Variant:
    """One of the models of the experiment.

    Attributes:
        name: Of its run folder and result file.
        model: Name for `ltnode.build`.
        prior: (alpha, beta) of the prior over T; None without one.
        title: What tables and figures call it.
    """

    name: str
    model: str
    prior: tuple[float, float] | None
    title: str

    @property
    def options(self) -> dict[str, Any]:
        """For `ltnode.build`."""
        return {} if self.prior is None else {"end_time": {"prior": list(self.prior)}}

    def build(self, seed: int) -> Model:
        """The untrained model."""
        return build(self.model, "synthetic", "paper", seed=seed, **self.options)

    def config(self, seed: int, iterations: int) -> TrainConfig:
        """How it is trained; fewer iterations are the beginning of the same schedule, which for NODE-GP has 600."""
        preset = train_preset(self.model, "synthetic", "paper")
        return preset.replace(
            seed=seed,
            epochs=min(iterations, preset.epochs),
            device="cpu",
            accelerate="off",
            checkpoint_epochs=_CHECKPOINT_EVERY,
            model_options=self.options,
        )


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("lt-node", "lt-node", (2.0, 0.5), "LT-NODE, prior (2, 0.5)"),
        Variant("alt-node", "alt-node", (2.0, 0.5), "ALT-NODE"),
        Variant("uni-node", "uni-node", None, "Uni-NODE"),
        Variant("node-gp", "node-gp", None, "NODE-GP"),
        Variant("sde-net", "sde-net", None, "SDE-Net"),
        Variant("node", "node", None, "NODE"),
        Variant("lt-node-prior-1-0.01", "lt-node", (1.0, 0.01), "LT-NODE, prior (1, 0.01)"),
    )
}


def has_full_length(result: Mapping[str, Any]) -> bool:
    """Whether a result is of a whole training: the paper's 3,000 iterations, or the 600 of NODE-GP's own schedule."""
    variant = VARIANTS.get(result.get("variant", ""))
    return variant is not None and result.get("iterations") == variant.config(0, ITERATIONS).epochs


def chosen(names: Iterable[str]) -> list[Variant]:
    """The variants of these names, in the order of `VARIANTS`; all of them for none."""
    wanted = list(names)
    for name in wanted:
        if name not in VARIANTS:
            raise InputError(unknown_name("model of this experiment", name, VARIANTS))
    return [variant for variant in VARIANTS.values() if not wanted or variant.name in wanted]


def reproduce(
    variant: Variant, seed: int, out: Path, runs: Path, iterations: int = ITERATIONS, on_log: OnLog | None = None
) -> dict[str, Any]:
    """Train one model, or continue it, measure it, and write the result as JSON.

    A run that was interrupted continues from its last checkpoint and ends bit-identical; a finished one is only measured.

    Args:
        variant: The model.
        seed: Of weights and end-times; the data are the same for every seed.
        out: Folder of the result.
        runs: Folder of the run folders.
        iterations: Steps; the paper's are 3,000.
        on_log: Called with every line of the training log.
    """
    data = gap_data(POINTS)
    stem = result_name(variant.name, seed, iterations)
    config = variant.config(seed, iterations)
    run = fit(variant.build(seed), data, config, runs / stem, resume=True, on_log=on_log)
    result = {
        "experiment": "synthetic",
        "variant": variant.name,
        "title": variant.title,
        "model": variant.model,
        "prior": None if variant.prior is None else list(variant.prior),
        "seed": seed,
        "iterations": config.epochs,
        **measure(run.model, data),
        "provenance": run.results["provenance"],
    }
    write_result(out, stem, result)
    return result


def result_name(variant: str, seed: int, iterations: int, experiment: str = "synthetic") -> str:
    """Name of a run folder and result file; a shortened run never takes the place of the real one."""
    shortened = "" if iterations == ITERATIONS else f"-{iterations}it"
    return f"{experiment}-{variant}-seed{seed}{shortened}"


def write_result(out: Path, stem: str, result: Mapping[str, Any]) -> Path:
    """Write one result file, whole or not at all."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{stem}.json"
    write_json(path, dict(result))
    return path


def read_results(out: Path, stems: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The results that are there, and the names of those that are missing."""
    found: list[dict[str, Any]] = []
    missing: list[str] = []
    for stem in stems:
        path = out / f"{stem}.json"
        try:
            found.append(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            missing.append(stem)
        except ValueError as error:
            raise DataError(f"{path} is damaged ({error}); delete it and run the command again") from error
    return found, missing


def measure(model: Model, data: Dataset) -> dict[str, Any]:
    """Everything that the paper says, or that explains it, about a trained model.

    Prediction is the paper's: 10 random end-times from the untruncated posterior (10 passes, or 10 draws from the Gaussian
    processes), running statistics of BatchNorm, steps chosen by the whole batch. ``entropy.model`` is the mean of
    ``0.5 ln(2 pi e var)`` over the grid points in (-0.5, 0.5) with the variance of the members, ``entropy.with_noise`` adds the
    observation noise; both over 10 sets of members.
    """
    grid = gap_grid()
    gap = in_gap(grid)
    latent = model if isinstance(model, LatentTimeODE) else None
    deterministic = latent is not None and isinstance(latent.end_time, FixedTime)
    sets = [_predict(model, grid, seed) for seed in range(TIME_SETS)]
    noise = sets[0].noise_std.square()
    first = sets[0]
    on_data = (grid >= torch.tensor(REGIONS)[:, 0]) & (grid <= torch.tensor(REGIONS)[:, 1])
    likelihood = [p.numel() for p in getattr(model, "likelihood", torch.nn.Identity()).parameters()]
    every = sum(p.numel() for p in model.parameters())
    return {
        "entropy": {
            # The entropy of a model without spread is minus infinity.
            "model": None if deterministic else _over_sets([metrics.gaussian_entropy(p.std[gap].square()) for p in sets]),
            "with_noise": _over_sets([metrics.gaussian_entropy(p.std[gap].square() + noise) for p in sets]),
        },
        "std": {
            "data": _over_sets([float(p.std[on_data.any(dim=1)].mean()) for p in sets]),
            "gap": _over_sets([float(p.std[gap].mean()) for p in sets]),
        },
        "fit": _fit(model, data),
        **_posteriors(latent, data.train.x, grid[gap]),
        "noise_std": float(first.noise_std),
        "parameters": {"network_and_posterior": every - sum(likelihood), "all": every},
        "evaluations": first.stats.n_evaluations if first.stats else None,
        "curve": {
            "x": _rounded(grid[::_CURVE_STRIDE, 0]),
            "mean": _rounded(first.mean[::_CURVE_STRIDE]),
            "std": _rounded(first.std[::_CURVE_STRIDE]),
        },
    }


def _predict(model: Model, x: Float[Tensor, "B D"], seed: int) -> Prediction:
    """The paper's prediction: random members, and adaptive steps where there are any."""
    if isinstance(model, LatentTimeODE):
        return model.predict(x, SAMPLES, "random", seed, "adaptive")
    return model.predict(x, SAMPLES, "random", seed)


def _posteriors(model: LatentTimeODE | None, x: Float[Tensor, "B D"], in_the_gap: Float[Tensor, "G D"]) -> dict[str, Any]:
    """The learnt posterior on the data and in the gap; None where there is none."""
    if model is None or not model.end_time.learnable:
        return {"posterior": None, "posterior_in_gap": None}
    if not model.end_time.amortized:
        return {"posterior": model.end_time.describe(), "posterior_in_gap": None}
    return {"posterior": model.end_time.describe(x), "posterior_in_gap": model.end_time.describe(in_the_gap)}


@torch.no_grad()
def _fit(model: Model, data: Dataset) -> dict[str, Any]:
    """RMSE on the training data over 10 random members; for end-times with running and with batch statistics of BatchNorm."""
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
    """Outputs as in training, where BatchNorm uses the statistics of the batch; the model itself is not touched."""
    return copy.deepcopy(model).train()(x, times, "adaptive")


def _over_sets(values: Sequence[float]) -> dict[str, Any]:
    numbers = torch.tensor(values, dtype=torch.float64)
    return {"mean": float(numbers.mean()), "std": float(numbers.std(correction=0)), "sets": list(values)}


def _rounded(values: Tensor) -> list[float]:
    return [round(float(value), 6) for value in values]
