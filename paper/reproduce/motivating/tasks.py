"""The tasks that motivate input-dependent end-times: concentric annuli, in the plane and on the line, and reflection.

The state is the input itself: identity stem, a field on R^d, no augmentation. A flow with one common end-time is then a
homeomorphism of the input space. It cannot move a ball out of the annulus around it, so no line separates the two; on the line it
preserves the order of points, so x never becomes -x. End-times that depend on the input remove both obstructions (Massaroli et
al., "Dissecting Neural ODEs", 2020), and so does one more dimension (Dupont et al., "Augmented Neural ODEs", 2019), which is also
trained to show that the training budget suffices. In the plane a NODE may still squeeze the ball through a narrow opening between
the training points of the annulus; on the line it misclassifies at least a quarter of all points.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from ltnode import metrics
from ltnode.data import Dataset, concentric_annuli, reflection
from ltnode.endtime import AmortizedGammaTime, FixedTime
from ltnode.errors import InputError, unknown_name
from ltnode.models import LatentTimeODE, ObjectiveOptions, SolverOptions
from ltnode.models.vectors import TimeMLP, mlp
from ltnode.training import TrainConfig, fit
from ltnode.typing import Float, Tensor
from paper.reproduce.records import shortened, write_result

Task = Literal["concentric-1d", "concentric", "reflection"]
TASKS: tuple[Task, ...] = ("concentric-1d", "concentric", "reflection")
_DIM = {"concentric-1d": 1, "concentric": 2, "reflection": 1}
MODELS = {"node": "NODE", "node-augmented": "NODE, one more dimension", "alt-node": "ALT-NODE"}
STEPS = 600
WIDTH = 32
TOLERANCE = 1e-3
SUCCESS = {"concentric-1d": 0.005, "concentric": 0.005, "reflection": 0.05}
"""Largest test error (share of misclassified points) or RMSE that counts as solving a task."""
_TRAIN = {"concentric-1d": 300, "concentric": 500, "reflection": 300}
_FRESH = 50_000
_FRESH_SEED = 1_000_003  # no training set has this seed


class FirstCoordinate(nn.Module):
    """Reads the prediction from the state without parameters, because a learnt factor could turn x into -x without a flow."""

    def forward(self, h: Float[Tensor, "N D"]) -> Float[Tensor, "N 1"]:
        """Return the first coordinate."""
        return h[:, :1]


def training_data(task: Task, seed: int) -> Dataset:
    """The training set of a seed, and a test set of 10,000 other points that is the same for all seeds."""
    data, fresh = (
        reflection(n, s) if task == "reflection" else concentric_annuli(n, s, _DIM[task])
        for n, s in ((_TRAIN[task], seed), (_FRESH, _FRESH_SEED))
    )
    return replace(data, test=fresh.test)


def build_model(task: Task, model: str, seed: int) -> LatentTimeODE:
    """Build an untrained model, whose state is the input; an added dimension starts at zero.

    Args:
        task: Concentric annuli (R^2 or R, linear head) or reflection (R, the state itself is the prediction).
        model: A key of `MODELS`.
        seed: Seed of the weights.
    """
    if model not in MODELS:
        raise InputError(unknown_name("model of this experiment", model, MODELS))
    dim = _DIM[task]
    augment = 1 if model == "node-augmented" else 0
    amortized = model == "alt-node"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = FirstCoordinate() if task == "reflection" else nn.Linear(dim + augment, 2)
        return LatentTimeODE(
            nn.Identity(),
            TimeMLP(dim + augment, (WIDTH, WIDTH)),
            head,
            AmortizedGammaTime(mlp([dim, WIDTH, 2])) if amortized else FixedTime(1.0),
            "regression" if task == "reflection" else "classification",
            solver=SolverOptions(rtol=TOLERANCE, atol=TOLERANCE),
            objective=ObjectiveOptions(samples=10 if amortized else 1),
            augment=augment,
        )


@dataclass(frozen=True)
class Trained:
    """A trained model and the content of its result file."""

    task: Task
    model: str
    seed: int
    network: LatentTimeODE
    result: dict[str, Any]


def reproduce(task: Task, model: str, seed: int, out: Path, runs: Path, steps: int = STEPS) -> Trained:
    """Train one model on one task, or continue its training, test it, and write the result as JSON.

    Args:
        task: The task.
        model: A key of `MODELS`.
        seed: Seed of the data and weights.
        out: Folder of the results.
        runs: Folder of the run folders.
        steps: Training steps.
    """
    data = training_data(task, seed)
    stem = f"motivating-{task}-{model}-seed{seed}{shortened(steps, STEPS)}"
    config = TrainConfig(
        model=model, data=task, seed=seed, epochs=steps, batch_size=None, lr=1e-2, schedule="cosine", device="cpu"
    )
    run = fit(build_model(task, model, seed), data, config, runs / stem, resume=True)
    assert isinstance(run.model, LatentTimeODE)
    prediction = run.model.predict(data.test.x)
    scores: dict[str, float]
    if task == "reflection":
        scores = {"rmse": metrics.rmse(prediction.mean, data.test.y), "std": float(prediction.std.mean())}
    else:
        scores = {
            "error": metrics.error(prediction.probs, data.test.y),
            "log_likelihood": metrics.log_likelihood(prediction.probs, data.test.y),
        }
    result = {
        "experiment": "motivating",
        "task": task,
        "model": model,
        "seed": seed,
        "steps": steps,
        "scores": scores,
        "solved": main_score(task, scores) <= SUCCESS[task],
        "evaluations": prediction.stats.n_evaluations if prediction.stats else None,
        "learnt": run.model.describe(data.train.x),
        "provenance": run.results["provenance"],
    }
    write_result(out, stem, result)
    return Trained(task, model, seed, run.model, result)


def main_score(task: str, scores: Mapping[str, float]) -> float:
    """The score that decides whether a task is solved: share of misclassified points, or RMSE."""
    return scores["rmse" if task == "reflection" else "error"]
