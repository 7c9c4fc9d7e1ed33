"""The paper's 1-D experiment: its models with the paper's settings, their training, and their results.

Network, loss, optimiser and schedule are those of the preset ``paper``: networks with BatchNorm, SGD with a learning rate of 1e-3
that is divided by 10 every 1,000 of 3,000 iterations, all 1,500 points in one batch, random end-times, and steps that are chosen
for the whole batch. Nothing is tuned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode.data import gap_data
from ltnode.errors import InputError, unknown_name
from ltnode.models import LatentTimeODE, Model, build
from ltnode.objective import Gaussian
from ltnode.training import TrainConfig, fit, train_preset
from paper.reproduce.one_dimensional.measure import measure
from paper.reproduce.records import shortened, write_result

ITERATIONS = 3000
POINTS = 1500
_CHECKPOINT_EVERY = 100


@dataclass(frozen=True)
class Variant:
    """One model of the experiment.

    Attributes:
        name: Name of its run folder and result file.
        model: Name of the model for `ltnode.build`.
        prior: Shape and rate of the prior over T; None for a model without a prior.
        title: Name in tables and figures.
        objective: Changes of the objective of the preset.
        train: Changes of the training configuration of the preset.
        known_noise: Standard deviation of the observation noise; None learns it.
    """

    name: str
    model: str
    prior: tuple[float, float] | None
    title: str
    objective: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Any] = field(default_factory=dict)
    known_noise: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options for `ltnode.build`."""
        end_time = {} if self.prior is None else {"end_time": {"prior": list(self.prior)}}
        return {**end_time, **({"objective": dict(self.objective)} if self.objective else {})}

    def build(self, seed: int) -> Model:
        """Build the untrained model."""
        model = build(self.model, "synthetic", "paper", seed=seed, **self.options)
        if self.known_noise is not None:
            assert isinstance(model, LatentTimeODE)
            model.likelihood = Gaussian(self.known_noise, learn=False)
        return model

    def config(self, seed: int, iterations: int) -> TrainConfig:
        """Training configuration. Fewer iterations are the beginning of the same schedule, which for NODE-GP has 600."""
        preset = train_preset(self.model, "synthetic", "paper")
        return preset.replace(
            seed=seed,
            epochs=min(iterations, self.train.get("epochs", preset.epochs)),
            device="cpu",
            accelerate="off",
            checkpoint_epochs=_CHECKPOINT_EVERY,
            model_options=self.options,
        ).replace(**{key: value for key, value in self.train.items() if key != "epochs"})


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
"""The rows of the paper."""

OTHERS = {
    variant.name: variant
    for variant in (
        Variant("lt-node-known-noise", "lt-node", (2.0, 0.5), "LT-NODE, noise known (0.1)", known_noise=0.1),
        Variant("lt-node-kl-0.1", "lt-node", (2.0, 0.5), "LT-NODE, KL weight 0.1", objective={"kl_weight": 0.1}),
        Variant(
            "lt-node-fast-posterior",
            "lt-node",
            (2.0, 0.5),
            "LT-NODE, posterior learns at 0.01",
            train={"role_lr": {"variational": 0.01}},
        ),
        Variant("node-gp-longer", "node-gp", None, "NODE-GP, 3,000 iterations", train={"epochs": ITERATIONS}),
    )
}
"""Rows of their own, which test why a row of the paper differs; they never replace one."""
EVERY = {**VARIANTS, **OTHERS}


def has_full_length(result: Mapping[str, Any]) -> bool:
    """Whether a result comes from a complete training: the paper's 3,000 iterations, or the 600 of NODE-GP."""
    variant = EVERY.get(result.get("variant", ""))
    return variant is not None and result.get("iterations") == variant.config(0, ITERATIONS).epochs


def chosen(names: Iterable[str]) -> list[Variant]:
    """Select variants by name, in the order of `EVERY`; no names select the rows of the paper.

    Raises:
        InputError: A name is unknown.
    """
    requested = list(names)
    for name in requested:
        if name not in EVERY:
            raise InputError(unknown_name("model of this experiment", name, EVERY))
    return [variant for variant in EVERY.values() if variant.name in (requested or VARIANTS)]


def reproduce(variant: Variant, seed: int, out: Path, runs: Path, iterations: int = ITERATIONS) -> dict[str, Any]:
    """Train one model, or continue its training, measure it, and write the result as JSON.

    An interrupted run continues from its last checkpoint and ends with the same bits; a finished one is only measured.

    Args:
        variant: The model.
        seed: Seed of the weights and end-times; the data are the same for every seed.
        out: Folder of the results.
        runs: Folder of the run folders.
        iterations: Training steps; the paper makes 3,000.
    """
    data = gap_data(POINTS)
    stem = result_name(variant.name, seed, iterations)
    config = variant.config(seed, iterations)
    run = fit(variant.build(seed), data, config, runs / stem, resume=True)
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
    """Name of a run folder and of its result file."""
    return f"{experiment}-{variant}-seed{seed}{shortened(iterations, ITERATIONS)}"
