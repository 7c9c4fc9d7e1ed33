"""One training run, from the arguments of `ltnode.fit` to the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ltnode.data import Dataset
from ltnode.device import choose_device, product_precision
from ltnode.errors import ConfigError
from ltnode.models import Model
from ltnode.training.batches import as_dataset
from ltnode.training.config import TrainConfig, train_preset
from ltnode.training.distributed import Workers
from ltnode.training.loop import OnLog, Training
from ltnode.training.metrics_log import tensorboard_writer
from ltnode.training.run import Run


def fit(
    model: Model,
    data: Any,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    on_log: OnLog | None = None,
) -> Run:
    """Train a model as `ltnode.fit` documents, without choosing an operating point; a progress bar is shown on a terminal."""
    dataset = as_dataset(data, model)
    config = checked_config(config, model, dataset, out, resume)
    device = choose_device(config.device)
    workers = Workers.start(device)
    try:
        # The random numbers of the caller must not change.
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), product_precision(config.precision):
            training = Training(model, dataset, config, device, workers, None if out is None else Path(out), on_log)
            return training.run(resume)
    finally:
        workers.stop()


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
