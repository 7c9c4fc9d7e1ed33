"""``ltnode.fit`` and ``ltnode.fit_seeds``: one training run, or several concurrent runs, from arguments to trained models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ltnode.data import Dataset
from ltnode.device import choose_device, product_precision
from ltnode.errors import ConfigError
from ltnode.models import Model
from ltnode.training.batches import Teacher, as_dataset
from ltnode.training.callbacks import Callbacks
from ltnode.training.concurrent import Turns, take_turns, widen_device_queues
from ltnode.training.config import TrainConfig, train_preset
from ltnode.training.distributed import Workers
from ltnode.training.loop import OnLog, Training
from ltnode.training.metrics_log import tensorboard_writer
from ltnode.training.run import Run


@dataclass(frozen=True)
class Job:
    """The arguments of `ltnode.fit` for one of several runs.

    Attributes:
        model: The untrained model.
        data: A `Dataset`, or a pair (x, y).
        config: Training configuration; None for the preset.
        out: Run folder; None writes nothing.
        on_log: Called with every line of the log.
        teacher: Gives the class probabilities that the model is trained towards, for exactly the inputs of each step; None trains
            towards the labels. ``config.distill_weight`` mixes both.
        callbacks: Functions of the caller; None calls nothing.
    """

    model: Model
    data: Any
    config: TrainConfig | None = None
    out: str | Path | None = None
    on_log: OnLog | None = None
    teacher: Teacher | None = None
    callbacks: Callbacks | None = None


def fit(
    model: Model,
    data: Any,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    on_log: OnLog | None = None,
    teacher: Teacher | None = None,
    callbacks: Callbacks | None = None,
) -> Run:
    """Train a model without choosing an operating point; `ltnode.fitting.fit` has the contract."""
    return fit_together([Job(model, data, config, out, on_log, teacher, callbacks)], resume=resume)[0]


def fit_seeds(
    build: Callable[[int], Model],
    data: Any,
    config: TrainConfig | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    out: str | Path | None = None,
    *,
    resume: bool = False,
) -> list[Run]:
    """Train several seeds concurrently without choosing operating points; `ltnode.fitting.fit_seeds` has the contract."""
    if not seeds or len(set(seeds)) != len(seeds):
        raise ConfigError(f"seeds must be one or more different integers, not {list(seeds)}")
    jobs = []
    for seed in seeds:
        model = build(seed)
        dataset = as_dataset(data, model)
        seeded = checked_config(config, model, dataset, out, resume).replace(seed=seed)
        jobs.append(Job(model, dataset, seeded, None if out is None else seed_folder(out, seed)))
    return fit_together(jobs, resume=resume)


def seed_folder(out: str | Path, seed: int) -> Path:
    """Return the run folder of one seed, ``OUT-seedN``."""
    path = Path(out)
    return path.with_name(f"{path.name}-seed{seed}")


def fit_together(jobs: Sequence[Job], *, resume: bool = False, at_once: int | None = None) -> list[Run]:
    """Train several models concurrently, of any kind and on any data, all on one device and in one precision.

    Args:
        jobs: The runs.
        resume: Continue the runs whose folders exist, and start the others.
        at_once: Number of runs that take turns; when one ends, the next starts. None: all of them.

    Raises:
        TrainingError, ConfigError, CheckpointError, InputError: As in `fit_seeds`.
    """
    if len(jobs) != 1:
        widen_device_queues()
    datasets = [as_dataset(job.data, job.model) for job in jobs]
    configs = [checked_config(job.config, job.model, data, job.out, resume) for job, data in zip(jobs, datasets, strict=True)]
    shared = sorted({f"{config.device} {config.precision}" for config in configs})
    if len(shared) != 1:
        raise ConfigError(f"concurrent runs must have the same device and precision, not {', '.join(shared) or 'no run at all'}")
    device = choose_device(configs[0].device)
    workers = Workers.start(device)
    concurrent_runs = len(jobs) if at_once is None else max(1, min(at_once, len(jobs)))
    try:
        if workers.world > 1 and len(jobs) > 1:
            raise ConfigError("concurrent runs train in one process: start it without torchrun, or use torchrun for single runs")
        with ExitStack() as stack:
            # The random numbers of the caller must not change.
            stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
            stack.enter_context(product_precision(configs[0].precision))
            turns = []
            for job, data, config in zip(jobs, datasets, configs, strict=True):
                stream = torch.cuda.Stream(device) if device.type == "cuda" and len(jobs) > 1 else None
                folder = None if job.out is None else Path(job.out)
                with torch.cuda.stream(stream):  # does nothing for None
                    told = (job.on_log, concurrent_runs, job.teacher, job.callbacks)
                    training = Training(job.model, data, config, device, workers, folder, *told)
                turns.append(Turns(training, stream))
            take_turns(turns, resume, concurrent_runs)
    finally:
        workers.stop()
    return [turn.training.result for turn in turns]


def checked_config(
    config: TrainConfig | None, model: Model, dataset: Dataset, out: str | Path | None, resume: bool
) -> TrainConfig:
    """Return the configuration of a training, by default that of the preset, after checking it against the other arguments.

    Raises:
        ConfigError: The configuration is for another model, there is no folder to resume from, or an extra is not installed.
    """
    name = None if model.spec is None else model.spec["model"]
    if config is None:
        config = train_preset(name or "lt-node", dataset).replace(model=name)
    if config.model is not None and name is not None and config.model != name:
        raise ConfigError(
            f"the configuration is for {config.model!r}, but the model is {name!r}; set config.model to {name!r} or none"
        )
    if resume and out is None:
        raise ConfigError("resume=True requires out, the folder of the run")
    if config.tensorboard:
        tensorboard_writer()  # a missing extra is reported before the folder is made
    return config
