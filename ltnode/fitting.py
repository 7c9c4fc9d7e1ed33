"""``ltnode.fit``, ``fit_seeds``, ``fit_members`` and ``distill``: train, choose the operating point, record the calibration.

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
from ltnode.device import choose_device
from ltnode.errors import LTNodeError
from ltnode.models import Model
from ltnode.trained import CalibrationRecord, OperatingPoint, TrainedModel, calibration_examples, choose_operating_point
from ltnode.trained.renewal import held_out_description
from ltnode.trained.teaching import TrainedTeacher, check_teacher, teaching_parts
from ltnode.training import Run, RunStatus, TrainConfig
from ltnode.training.batches import Teacher, as_dataset
from ltnode.training.callbacks import Callback, Callbacks
from ltnode.training.loop import OnLog
from ltnode.training.members import TrainJobs

_LOG = logging.getLogger("ltnode")


def fit(
    model: Model,
    data: Any,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    on_log: OnLog | None = None,
    on_step: Callback | None = None,
    on_epoch: Callback | None = None,
    on_checkpoint: Callback | None = None,
    teacher: Teacher | None = None,
) -> Run:
    """Train a model.

    On the CPU, the same configuration gives the same numbers, and a run that was interrupted and resumed ends with the same
    weights, bit for bit, as an uninterrupted one. Under ``torchrun`` the processes share every batch. If a classifier is trained
    with ``validation_fraction > 0``, its operating point is chosen on the held-out examples and stored in the run folder.

    Args:
        model: Trained in place; it is moved to the device of the configuration and left in eval mode.
        data: A `Dataset`; a pair (x, y) of arrays or tensors, which are not normalised; or a DataLoader or another iterable of
            such pairs. The items of a DataLoader are read while training, in the order of the configuration; another iterable is
            read once and kept on disk.
        config: Training configuration; by default `train_preset` of the model and the data.
        out: The run folder; None writes nothing.
        resume: Continue the run in ``out``, or start it if there is none.
        on_log: Called with every line of the log.
        on_step: Called after every step with a table: ``step``, ``epoch``, ``total_steps`` and ``loss``, a tensor on the device.
        on_epoch: Called after every epoch with ``epoch``, ``step`` and ``log``, the newest line of the log or None.
        on_checkpoint: Called with ``step`` and ``path`` after a checkpoint is on disk. An exception of any of these functions
            ends the training, which can be resumed from its last checkpoint.
        teacher: A function from network inputs (B, ...) to class probabilities (B, C), towards which the model is trained in
            place of the labels; ``config.distill_weight`` mixes both. It gets each batch as the model sees it, augmented.

    Raises:
        TrainingError: The loss became NaN or infinite, the solve failed, or another process died; ``status`` and the message
            say what to change. The last checkpoint is kept.
        CheckpointError: ``out`` holds a run (and ``resume`` is False) or something else, is damaged, or cannot be written.
        ConfigError: The configuration does not fit the model or the run that is resumed.
        InputError: The data do not fit the model.
    """
    dataset = as_dataset(data, model)
    callbacks = Callbacks.of(on_step, on_epoch, on_checkpoint)
    run = training.fit(model, dataset, config, out, resume=resume, on_log=on_log, teacher=teacher, callbacks=callbacks)
    _record_calibration(run, dataset)
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
        dataset = as_dataset(data, run.model)
        _record_calibration(run, dataset)
        _store_operating_point(run, dataset)
    return runs


def fit_members(
    build: Callable[[int], Model],
    data: Any,
    config: TrainConfig | None = None,
    members: int = 5,
    out: str | Path | None = None,
    *,
    resume: bool = False,
    train: TrainJobs | None = None,
) -> Run:
    """Train a model from several seeds concurrently, and make one model of them, an ensemble.

    The networks have the seeds ``config.seed``, ``config.seed + 1``, ... and hold out the same examples. Prediction grid,
    temperature, widening and ranks are those of the ensemble.

    Args:
        build: Builds the untrained network of a seed, such as ``lambda seed: ltnode.build("lt-node", data, seed=seed)``.
        data: Training data, as in `fit`.
        config: Configuration of every network, as in `fit`.
        members: Number of networks, at least 2.
        out: The run folder of the ensemble, which contains those of the networks in ``members/seed-N``; None writes nothing.
        resume: Continue the ensemble in ``out``, or start it if there is none.
        train: What trains the networks; None lets all of them take turns in this process.

    Returns:
        The run of the ensemble; everything that takes a run, or its folder, takes this one.

    Raises:
        TrainingError: A network failed; the others were completed first, and the message names the failed one.
        ConfigError, CheckpointError, InputError: As in `fit`, before any training.
    """
    run = training.fit_members(build, data, config, members, out, resume=resume, train=train)
    dataset = as_dataset(data, run.model)
    _record_calibration(run, dataset)
    _store_operating_point(run, dataset)
    return run


def assemble_members(runs: Sequence[Run], data: Any, out: str | Path | None = None) -> Run:
    """Make one model, an ensemble, of networks that were already trained; it ends as with `fit_members`.

    Args:
        runs: Two or more complete runs whose configurations differ in the seed only, so that they hold out the same examples.
            Prediction grid and densities of their models are fitted again, for all networks together.
        data: Their training data, as in `fit`.
        out: The run folder of the ensemble, which holds the weights of all networks; None writes nothing.

    Raises:
        ConfigError: There are fewer than two runs, one is not complete, or they differ in more than the seed.
        CheckpointError: ``out`` already exists, or cannot be written.
    """
    run = training.assemble_members(runs, data, out)
    dataset = as_dataset(data, run.model)
    _record_calibration(run, dataset)
    _store_operating_point(run, dataset)
    return run


def distill(
    teacher: TrainedModel | Run | str | Path,
    model: Model,
    data: Any = None,
    config: TrainConfig | None = None,
    out: str | Path | None = None,
    *,
    samples: int = 10,
    resume: bool = False,
    on_log: OnLog | None = None,
) -> Run:
    """Train a model towards the averaged probabilities of a trained classifier, such as an ensemble.

    Teacher and student see the same augmented inputs, and must hold out the same examples.

    Args:
        teacher: Run, run folder or trained model of a classifier.
        model: The untrained student; one network with an end-time.
        data: Training data of the teacher, as in `fit`; None loads the data set that the teacher records.
        config: Training configuration; by default `train_preset` of the student with the held-out examples of the teacher.
            ``distill_weight`` is the share of the teacher's probabilities in the targets, and the labels have the rest.
        out: The run folder, which records name and weights of the teacher; None writes nothing.
        samples: Number of members of the teacher's predictions.
        resume: Continue the run in ``out``, or start it if there is none.
        on_log: Called with every line of the log.

    Raises:
        ConfigError: The student would hold out other examples than its teacher, or cannot learn from probabilities.
        InputError: The teacher is no classifier, nothing records its training, or the data are not its data.
        TrainingError, CheckpointError: As in `fit`.
    """
    trained = TrainedModel.of(teacher, data if isinstance(data, Dataset) else None)
    dataset = trained.dataset(data) if data is None or isinstance(data, str) else as_dataset(data, model)
    if config is None:
        name = "lt-node" if model.spec is None else model.spec["model"]
        config = training.train_preset(name, dataset).replace(**teaching_parts(trained))
    check_teacher(trained, dataset, config)
    trained = TrainedModel.of(trained, device=str(choose_device(config.device)))
    return fit(model, dataset, config, out, resume=resume, on_log=on_log, teacher=TrainedTeacher(trained, samples))


def _record_calibration(run: Run, data: Dataset) -> None:
    """Describe the examples that training held out for the ranks of distances; an existing record is kept."""
    if run.path is None or run.status is not RunStatus.COMPLETE or not _is_writer():
        return
    try:
        trained = TrainedModel.of(run, data)
        if not trained.n_calibration or CalibrationRecord.read(run.path) is not None:
            return
        description = held_out_description(trained, data.name).format(n=trained.n_calibration)
        record = CalibrationRecord(trained.n_calibration, description, trained.weights_digest())
        record.save(run.path)
    except LTNodeError as error:  # the run is complete and must not be lost
        _LOG.warning("%s: the calibration was not recorded: %s", run.path, error)
        return
    _LOG.info(
        "%s: %d held-out examples calibrate the familiarity; the smallest possible false-alarm rate is %.2g",
        run.path,
        record.n,
        record.smallest_rate,
    )


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
