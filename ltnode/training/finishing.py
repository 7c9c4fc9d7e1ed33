"""The end of a training: averaged weights, statistics of BatchNorm, prediction grid, familiarity, widening, calibration.

Everything is fitted without augmentation, in eval mode and with the final weights, and each step uses the part of the data that
is meant for it: density and grid the examples that were trained on, temperature and widening the validation part, and the ranks
the calibration part, which chooses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

import torch
from torch import nn

from ltnode.counter_rng import hash_counters
from ltnode.data import Split
from ltnode.models import Model
from ltnode.models.averaging import Averages, swapped_in
from ltnode.models.contract import evaluating
from ltnode.models.familiar_model import FamiliarModel
from ltnode.training.batches import TrainingData
from ltnode.training.transfer import is_frozen
from ltnode.typing import Tensor

_GRID = 2048
"""Number of training inputs on which the prediction grid is fitted."""
_FITTED = 10_000
"""Largest number of training inputs on which familiarity and the statistics of BatchNorm are fitted."""
_DRAW = 5
"""Separates the random numbers of this module from those of data order, augmentation and end-times."""


class Examples(NamedTuple):
    """Network inputs, neither augmented nor in batches, and their targets."""

    x: Tensor
    y: Tensor


def finish(model: Model, data: TrainingData, averages: Averages) -> None:
    """Turn the state after the last step into the trained model, in eval mode.

    Args:
        model: The model.
        data: The parts of the data.
        averages: Averages that replace the trained weights; empty keeps them.

    Raises:
        SolverError: The prediction grid cannot be fitted.
    """
    if averages:
        for average in averages.values():
            average.apply()
        model.after_step()
        refit_batch_norm(model, data)
    model.eval()
    model.finish_training(*data.evaluation_inputs(data.train, _GRID))
    select, calibrate = (
        None if part is None else Examples(*data.evaluation_inputs(part)) for part in (data.validation, data.calibration)
    )
    fit_uncertainty(model, fitting_examples(data), select, calibrate)


def fit_uncertainty(model: Model, fit: Examples, select: Examples | None = None, calibrate: Examples | None = None) -> None:
    """Fit what predictions know about familiarity; models without a path have nothing to fit.

    Args:
        model: A model with its final weights and prediction grid.
        fit: Examples that were trained on, for the density of the path.
        select: Held-out examples for temperature and widening; None fits neither.
        calibrate: Held-out examples that chose nothing, for the ranks; None leaves the ranks unknown.
    """
    if not model.has_path:
        return
    familiar = cast(FamiliarModel, model)
    with torch.no_grad(), evaluating(model):
        familiar.fit_familiarity(fit.x, fit.y)
        if select is not None:
            familiar.fit_widening(select.x, select.y)
        if calibrate is not None:
            familiar.calibrate_familiarity(calibrate.x)


def fitting_examples(data: TrainingData, limit: int = _FITTED) -> Examples:
    """Return at most ``limit`` examples that were trained on; they are drawn, because files may be sorted by class."""
    n, train = len(data.train), data.train
    if n > limit:
        generator = torch.Generator().manual_seed(hash_counters(data.config.seed, _DRAW) >> 1)
        chosen = torch.randperm(n, generator=generator)[:limit].sort().values
        train = train.select(chosen.to(train.x.device))
    return Examples(*data.evaluation_inputs(Split(train.x, train.y)))


@contextmanager
def averaged_weights(model: Model, averages: Averages, data: TrainingData) -> Iterator[None]:
    """Use the model with its averaged weights inside the block; afterwards, everything is as it was, bit for bit.

    Args:
        model: A model in train mode.
        averages: Averages of its weights; empty for a block with the trained weights.
        data: Data on which statistics of BatchNorm are computed.
    """
    if not averages:
        yield
        return
    x = data.train.x
    solver, parts, stats = model.solver_state(), model.loss_parts, model.solve_stats
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []), swapped_in(averages):
        model.after_step()
        refit_batch_norm(model, data)
        try:
            yield
        finally:
            for buffer, saved in buffers:
                buffer.data.copy_(saved)
            model.load_solver_state(solver)
            model.loss_parts, model.solve_stats = parts, stats


@torch.no_grad()
def refit_batch_norm(model: Model, data: TrainingData) -> None:
    """Replace the running statistics of BatchNorm by their mean over passes of the loss on training data, without augmentation.

    Models without BatchNorm stay as they are.
    """
    every = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    norms = [norm for norm in every if not is_frozen(norm)]
    if not norms:
        return
    examples, config = fitting_examples(data), data.config
    size = min(config.batch_size or len(examples.y), len(examples.y))
    momenta = [norm.momentum for norm in norms]
    modes = {part: part.training for part in model.modules()}
    model.train()
    for norm in every:
        norm.train(not is_frozen(norm))
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over all passes
    # The last batch would be a part of one, whose statistics must not count as much as those of the others.
    for number in range(len(examples.y) // size):
        chosen = slice(number * size, (number + 1) * size)
        x, y = examples.x[chosen], examples.y[chosen]
        indices = torch.arange(len(y), device=x.device) + number * size
        times = model.training_times(len(y), config.seed, hash_counters(config.seed, _DRAW, number) >> 33, indices)
        for phase in model.phases:
            model.loss(x, y, n_data=len(data.train), times=times, phase=phase)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    for part, mode in modes.items():
        part.training = mode
