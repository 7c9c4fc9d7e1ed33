"""Stages that train: the search of the weight decay, the trainings of the table, and the distilled students."""

from __future__ import annotations

import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import ltnode
from ltnode import metrics
from ltnode.device import choose_device, product_precision
from ltnode.training.batches import held_out_parts
from ltnode.training.engine import Job, fit_together
from promise_stages.predicting import raw_log_probs
from promise_stages.settings import (
    SAMPLES,
    SEARCH_DECAYS,
    SEARCH_SEED,
    SEARCH_SETS,
    SEEDS,
    Place,
    is_complete,
    provenance,
    write_unit,
)
from promise_stages.soft_labels import SoftLabels

DISTILLED = "distilled"
"""Name of the students in place of a model's name."""
TEACHER, STUDENT = "node", "lt-node"
_HALVES_SEED = 0


@dataclass(frozen=True)
class Options:
    """How trainings are made.

    Attributes:
        at_once: Number of trainings that take turns.
        precision: Precision of the training steps.
        overrides: Settings such as ``averaging=0.9995`` for every training, as in `TrainConfig.with_overrides`.
        epochs: Number of epochs; milestones are scaled with it. None for the preset's.
        decays: Weight decays by model, in place of the preset's.
    """

    at_once: int = 6
    precision: str = "bf16"
    overrides: tuple[str, ...] = ()
    epochs: int | None = None
    decays: Mapping[str, float] = field(default_factory=dict)


def searched_decays(units: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the weight decay of every model that the search chooses: the best mean of the tempered log-likelihood over sets."""
    scores: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for unit in units:
        scores[unit["model"]][unit["weight_decay"]].append(unit["log_likelihood_tempered"])
    return {model: max(found, key=lambda decay: statistics.fmean(found[decay])) for model, found in scores.items()}


def train(place: Place, options: Options, models: Sequence[str], sets: Sequence[str], seeds: Sequence[int]) -> None:
    """Train models with the default preset; folders that are complete are kept, stopped trainings are continued."""
    jobs = []
    for data in sets:
        wanted = [(model, seed) for seed in seeds for model in models if not is_complete(place.run(model, data, seed))]
        dataset = place.dataset(data) if wanted else None
        for model, seed in wanted:
            config = _config(place, options, model, data).replace(seed=seed)
            jobs.append(Job(_built(model, data, config), dataset, config, place.run(model, data, seed)))
    _fit(jobs, options)


def distill(place: Place, options: Options, seeds: Sequence[int], data: str = "cifar10") -> None:
    """Train students towards the mean of five trained networks, for exactly the crops that the students see."""
    jobs = []
    wanted = [seed for seed in seeds if not is_complete(place.run(DISTILLED, data, seed))]
    if not wanted:
        return
    dataset, device = place.dataset(data), choose_device(place.device)
    members = [ltnode.load(place.run(TEACHER, data, seed), device=device) for seed in SEEDS]
    config = _config(place, options, STUDENT, data)
    _require_same_parts(config, [place.run(TEACHER, data, seed) for seed in SEEDS])
    used, parts = held_out_parts(dataset, config)
    teacher = SoftLabels.of(members, used, parts.fit, place.work / f"soft-labels-{data}.pt")
    for seed in wanted:
        config = config.replace(seed=seed)
        jobs.append(Job(_built(STUDENT, data, config), dataset, config, place.run(DISTILLED, data, seed), teacher=teacher))
    _fit(jobs, options)


def _require_same_parts(config: ltnode.TrainConfig, teachers: Sequence[Path]) -> None:
    """Refuse teachers that were trained on examples that the student holds out."""
    for folder in teachers:
        taught = ltnode.TrainedModel.of(folder).config
        keys = ("parts_seed", "validation_fraction", "calibration_fraction", "limit")
        if taught is None or any(getattr(taught, key) != getattr(config, key) for key in keys):
            raise SystemExit(f"{folder} held out other examples than the student; set split_seed to the same value for both")


def search(
    place: Place,
    options: Options,
    models: Sequence[str],
    sets: Sequence[str] = SEARCH_SETS,
    decays: Sequence[float] = SEARCH_DECAYS,
    fit: bool = True,
) -> None:
    """Train every model with every weight decay on the fit part, and score it on the select part."""
    jobs, folders, datasets = [], [], {}
    for data in sets:
        datasets[data] = place.dataset(data)
        for decay in decays:
            for model in models:
                name = f"{data}-{model}-decay{decay:g}"
                folder = place.work / "search" / name
                folders.append((name, data, folder))
                config = _config(place, options, model, data).replace(
                    seed=SEARCH_SEED, weight_decay=decay, validation_fraction=0.05, calibration_fraction=0.0
                )
                if not is_complete(folder):
                    jobs.append(Job(_built(model, data, config), datasets[data], config, folder))
    try:
        if fit:
            _fit(jobs, options)
    finally:  # an interrupted search keeps the scores of what is complete
        for name, data, folder in folders:
            if is_complete(folder) and not place.unit("search", name).exists():
                write_unit(place.unit("search", name), _select_score(place, folder, datasets[data]))


def _config(place: Place, options: Options, model: str, data: str) -> ltnode.TrainConfig:
    config = ltnode.train_preset(model, data)
    config = config.replace(weight_decay=options.decays.get(model, config.weight_decay))
    if options.epochs is not None:
        scale = options.epochs / config.epochs
        config = config.replace(epochs=options.epochs, milestones=tuple(round(scale * epoch) for epoch in config.milestones))
    return config.replace(
        precision=options.precision,
        device=place.device,
        limit=place.limit,
        checkpoint_epochs=None,
        checkpoint_minutes=None,
        keep_checkpoints=1,
        log_every=20_000,  # a validation stops the other runs for as long as hundreds of their steps
    ).with_overrides(options.overrides)


def _built(model: str, data: str, config: ltnode.TrainConfig) -> ltnode.Model:
    return ltnode.build(model, data, seed=config.seed, **config.model_options)


def _fit(jobs: list[Job], options: Options) -> None:
    """Train what is not complete, the longest trainings first, and remove the checkpoints of complete runs."""
    jobs.sort(key=lambda job: -job.config.epochs * job.data.n_train)
    folders = [Path(job.out) for job in jobs]
    began = time.monotonic()
    if jobs:
        fit_together(jobs, resume=True, at_once=options.at_once)
    for folder in folders:
        if is_complete(folder):
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    print(f"{len(jobs)} trainings, {options.at_once} at once: {time.monotonic() - began:.1f} s", flush=True)


def _select_score(place: Place, folder: Path, dataset: Any) -> dict[str, Any]:
    """Score a run on its select part: with a temperature fitted on one half, the log-likelihood of the other half."""
    began, device = time.monotonic(), choose_device(place.device)
    trained = ltnode.TrainedModel.of(folder, dataset, str(device))
    held = trained.validation_split(dataset)
    assert held is not None and trained.config is not None
    with product_precision("fp32"), torch.no_grad():
        parts = [raw_log_probs(trained.model, trained.prepare(x), SAMPLES).double() for x in torch.split(held.x, 2500)]
    log_probs, y = torch.cat(parts), held.y
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(_HALVES_SEED)).to(y.device)
    halves = order.chunk(2)
    temperatures, tempered = [], []
    for fitted, scored in (halves, halves[::-1]):
        temperature = metrics.fit_temperature(log_probs[fitted], y[fitted])
        tempered.append(metrics.log_likelihood(metrics.apply_temperature(log_probs[scored], temperature).exp(), y[scored]))
        temperatures.append(temperature)
    probs = log_probs.exp()
    return {
        "model": trained.model_name,
        "data": dataset.name,
        "weight_decay": trained.config.weight_decay,
        "epochs": trained.config.epochs,
        "averaging": trained.config.averaging,
        "error": metrics.error(probs, y),
        "log_likelihood": metrics.log_likelihood(probs, y),
        "ece": metrics.ece(probs, y),
        "log_likelihood_tempered": sum(tempered) / len(tempered),
        "temperature": sum(temperatures) / len(temperatures),
        "n_select": len(y),
        "provenance": provenance(device, began, config_hash=trained.config.hash, config=trained.config.to_json()),
    }
