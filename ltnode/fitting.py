"""``ltnode.fit`` and ``ltnode.fit_seeds``: train, and choose the operating point of a classifier on what training held out.

`ltnode.training` holds the training loop. This module adds what needs a trained model, so that Python programs and
``ltnode train`` end a training in the same way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ltnode import training
from ltnode.data import Dataset
from ltnode.errors import LTNodeError
from ltnode.models import Model
from ltnode.trained import OperatingPoint, TrainedModel, calibration_examples, choose_operating_point
from ltnode.training import Run, RunStatus, TrainConfig
from ltnode.training.batches import as_dataset
from ltnode.training.loop import OnLog

_LOG = logging.getLogger("ltnode")


def fit(
    model: Model,
    data: Any,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    on_log: OnLog | None = None,
) -> Run:
    """Train a model.

    On the CPU, the same configuration gives the same numbers, and a run that was interrupted and resumed ends with the same
    weights, bit for bit, as an uninterrupted one. Under ``torchrun`` the processes share every batch. If a classifier is trained
    with ``validation_fraction > 0``, its operating point is chosen on the held-out examples and stored in the run folder.

    Args:
        model: Trained in place; it is moved to the device of the configuration and left in eval mode.
        data: A `Dataset`, or a pair (x, y) of arrays or tensors, which are not normalised.
        config: Training configuration; by default `train_preset` of the model and the data.
        out: The run folder; None writes nothing.
        resume: Continue the run in ``out``, or start it if there is none.
        on_log: Called with every line of the log.

    Raises:
        TrainingError: The loss became NaN or infinite, the solve failed, or another process died; ``status`` and the message
            say what to change. The last checkpoint is kept.
        CheckpointError: ``out`` holds a run (and ``resume`` is False) or something else, is damaged, or cannot be written.
        ConfigError: The configuration does not fit the model or the run that is resumed.
        InputError: The data do not fit the model.
    """
    dataset = as_dataset(data, model)
    run = training.fit(model, dataset, config, out, resume=resume, on_log=on_log)
    _store_operating_point(run, dataset)
    return run


def fit_seeds(
    build: Callable[[int], Model],
    data: Any,
    config: TrainConfig | None = None,
    seeds: Sequence[int] = (0, 1, 2, 3, 4),
    out: str | Path | None = None,
    *,
    resume: bool = False,
) -> list[Run]:
    """Train the same model from several seeds concurrently in one process; each run ends as with `fit`.

    Args:
        build: Builds the untrained model of a seed, such as ``lambda seed: ltnode.build("lt-node", data, seed=seed)``.
        data: Training data, as in `fit`.
        config: Training configuration, as in `fit`; every run uses it with its own seed.
        seeds: Seeds of the runs, all different.
        out: The run folders are ``OUT-seed0``, ...; None writes nothing.
        resume: Continue the runs that exist, and start the others.

    Returns:
        The runs, in the order of the seeds.

    Raises:
        TrainingError: A run failed; the other runs were completed first, and the message names the failed one.
        ConfigError, CheckpointError, InputError: As in `fit`, before any training.
    """
    runs = training.fit_seeds(build, data, config, seeds, out, resume=resume)
    for run in runs:
        _store_operating_point(run, as_dataset(data, run.model))
    return runs


def _store_operating_point(run: Run, data: Dataset) -> None:
    """Choose when a classifier abstains, on the examples that its training held out; an existing operating point is kept."""
    held_out = run.config.validation_fraction > 0 and run.model.task == "classification"
    if run.path is None or run.status is not RunStatus.COMPLETE or not held_out or not _is_writer():
        return
    try:
        if OperatingPoint.read(run.path) is not None:
            return
        trained = TrainedModel.of(run, data)
        split, description = calibration_examples(trained, data)
        point = choose_operating_point(trained, split, data=description)
        file = point.save(run.path)
    except LTNodeError as error:  # the run is complete and must not be lost
        _LOG.warning("%s: no operating point was chosen: %s", run.path, error)
        return
    _LOG.info(
        "%s: predictions abstain above an entropy of %.3g nats; the operating point is in %s",
        run.path,
        point.entropy_threshold,
        file,
    )


def _is_writer() -> bool:
    """Whether this is the only process, or the one of several that writes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return int(os.environ.get("RANK", "0")) == 0
