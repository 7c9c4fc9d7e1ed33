"""The two tasks that motivate input-dependent end-times: concentric annuli, in the plane and on the line, and reflection.

The state is the input itself: identity stem, a field on R^d, no augmentation. A flow with one common end-time is then a
homeomorphism of the input space. It cannot bring a ball out of the annulus around it, so that no line separates them, and on the
line it keeps the order of points, so that x never becomes -x. End-times that depend on the input lift both obstructions
(Massaroli et al., "Dissecting Neural ODEs", 2020), and so does one more dimension (Dupont et al., "Augmented Neural ODEs", 2019),
which is trained beside them to show that the budget suffices. In the plane a NODE may still press the ball through a narrow
opening between the training points of the annulus; on the line it errs on a quarter of all points at least.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""Largest test error (share of points) and RMSE that count as solving a task."""
_TRAIN = {"concentric-1d": 300, "concentric": 500, "reflection": 300}
_FRESH = 50_000
_FRESH_SEED = 1_000_003  # of a test set that no training set shares

OnLog = Callable[[Mapping[str, Any]], None]


class FirstCoordinate(nn.Module):
    """The state's first coordinate is the prediction: a learnt factor could turn x into -x without any flow."""

    def forward(self, h: Float[Tensor, "N D"]) -> Float[Tensor, "N 1"]:
        """Read it off."""
        return h[:, :1]


def training_data(task: Task, seed: int) -> Dataset:
    """The training set of a seed, with a test set of 10,000 fresh points that is the same for all."""
    data, fresh = (
        reflection(n, s) if task == "reflection" else concentric_annuli(n, s, _DIM[task])
        for n, s in ((_TRAIN[task], seed), (_FRESH, _FRESH_SEED))
    )
    return Dataset(
        name=data.name,
        task=data.task,
        train=data.train,
        test=fresh.test,
        n_classes=data.n_classes,
        class_names=data.class_names,
        checksums=data.checksums,
        source=data.source,
    )


def build_model(task: Task, model: str, seed: int) -> LatentTimeODE:
    """The untrained model: the state is the input, and zero for the added dimension.

    Args:
        task: Concentric annuli (R^2 or R, linear head) or reflection (R, the state itself is the prediction).
        model: A name of `MODELS`.
        seed: Of the weights.
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
    """A model after training, and its result file's content."""

    task: Task
    model: str
    seed: int
    network: LatentTimeODE
    result: dict[str, Any]


def reproduce(
    task: Task, model: str, seed: int, out: Path, runs: Path, steps: int = STEPS, on_log: OnLog | None = None
) -> Trained:
    """Train one model on one task, or continue it, test it on 10,000 fresh points, and write the result as JSON.

    Args:
        task: The task.
        model: A name of `MODELS`.
        seed: Of data and weights.
        out: Folder of the result.
        runs: Folder of the run folders.
        steps: Training steps.
        on_log: Called with every line of the training log.
    """
    data = training_data(task, seed)
    stem = f"motivating-{task}-{model}-seed{seed}{shortened(steps, STEPS)}"
    config = TrainConfig(
        model=model, data=task, seed=seed, epochs=steps, batch_size=None, lr=1e-2, schedule="cosine", device="cpu"
    )
    run = fit(build_model(task, model, seed), data, config, runs / stem, resume=True, on_log=on_log)
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
    """The number that decides: share of wrong points, or RMSE."""
    return scores["rmse" if task == "reflection" else "error"]
