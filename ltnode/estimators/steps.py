"""Optimiser steps of a training on one table: the stacked step of `ltnode.accelerate` where it applies, else the eager one."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ltnode.accelerate.stacked.adam import StackedAdam
from ltnode.accelerate.stacked.average import StackedAverage
from ltnode.accelerate.stacked.step import StackedStep, unsupported_reason_stacked, with_ones
from ltnode.data import Split
from ltnode.estimators.networks import TableModel, networks_of
from ltnode.models.averaging import swapped_in
from ltnode.models.step import Batch
from ltnode.ode import SolverError
from ltnode.training.batches import TrainingData
from ltnode.training.config import TrainConfig
from ltnode.training.status import RunStatus, TrainingError
from ltnode.training.step import make_averages, make_optimizers, make_step, set_learning_rates
from ltnode.typing import Int, Tensor


class TableSteps(ABC):
    """Steps over the rows of a table; the networks of an ensemble are trained on the same batches, at the same end-times."""

    @abstractmethod
    def set_rate(self, factor: float) -> None:
        """Set the learning rate to that of the configuration times a factor."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state of the optimiser."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Continue with what `state` returned."""

    @abstractmethod
    def averaged(self) -> AbstractContextManager[None]:
        """Give the model its averaged weights inside of a block; it keeps its own where the configuration averages none."""

    @abstractmethod
    def epoch(self, order: Int[Tensor, " N"], first_step: int) -> float:
        """Train one pass over the rows in some order, and return the mean loss of a row and a network.

        Raises:
            TrainingError: The ODE could not be solved, or a loss is not finite.
        """


class EagerSteps(TableSteps):
    """The reference: loss and gradient by the model and by autograd, on any device and for every end-time."""

    def __init__(self, model: TableModel, table: Split, config: TrainConfig, weights: Tensor | None) -> None:
        self._optimizers = make_optimizers(model, config)
        self._averages = make_averages(self._optimizers, config)
        self._model, self._table, self._size, self._weights = model, table, config.batch_size or len(table), weights
        self._step = make_step(model, self._optimizers, config, len(table), averages=self._averages)

    def set_rate(self, factor: float) -> None:
        """See `TableSteps.set_rate`."""
        set_learning_rates(self._optimizers, factor)

    def state(self) -> dict[str, Any]:
        """See `TableSteps.state`."""
        return {phase: optimizer.state_dict() for phase, optimizer in self._optimizers.items()}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `TableSteps.load_state`."""
        for phase, optimizer in self._optimizers.items():
            optimizer.load_state_dict(state[phase])

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """See `TableSteps.averaged`."""
        with swapped_in(self._averages):
            self._model.after_step()
            yield

    def epoch(self, order: Int[Tensor, " N"], first_step: int) -> float:
        """See `TableSteps.epoch`."""
        self._model.train()
        total = 0.0
        for position, rows in enumerate(order.split(self._size)):
            batch = Batch(self._table.x[rows], self._table.y[rows], rows, first_step + position)
            batch = batch if self._weights is None else replace(batch, weights=self._weights[rows])
            total += float(self._step(batch)["loss"]) * len(rows)
        return total / len(order) / len(networks_of(self._model))


class StackedSteps(TableSteps):
    """Steps with hand-written gradients in float32, after which the model gets the weights."""

    def __init__(self, model: TableModel, table: Split, config: TrainConfig, weights: Tensor | None) -> None:
        self._step = StackedStep(networks_of(model), config.seed, len(table), config.weight_decay)
        self._adam, self._rate = StackedAdam(self._step.parameters), config.lr
        self._average = None if config.averaging is None else StackedAverage(self._step.parameters, config.averaging)
        self._x, self._y = with_ones(table.x), (table.y.float() if table.y.is_floating_point() else table.y).numpy()
        self._size, self._weights = config.batch_size or len(table), None if weights is None else weights.float().numpy()
        self.set_rate(1.0)

    def set_rate(self, factor: float) -> None:
        """See `TableSteps.set_rate`."""
        self._adam.lr = factor * self._rate

    def state(self) -> dict[str, Any]:
        """See `TableSteps.state`."""
        return self._adam.state_dict()

    def load_state(self, state: dict[str, Any]) -> None:
        """See `TableSteps.load_state`."""
        self._adam.load_state_dict(state)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """See `TableSteps.averaged`."""
        if self._average is None:
            yield
            return
        trained = self._step.parameters.flat.copy()
        self._step.parameters.flat[...] = self._average.value()
        self._step.constrain()
        self._step.parameters.store()
        try:
            yield
        finally:
            self._step.parameters.flat[...] = trained
            self._step.parameters.store()

    def epoch(self, order: Int[Tensor, " N"], first_step: int) -> float:
        """See `TableSteps.epoch`."""
        total = 0.0
        with np.errstate(all="ignore"):  # what is not finite becomes an error below
            for step, part in enumerate(order.split(self._size), first_step):
                total += self._update(part.numpy(), step) * len(part)
        self._step.parameters.store()
        return total / len(order)

    def _update(self, rows: NDArray[np.int64], step: int) -> float:
        """Make one update, and return its loss."""
        weights = None if self._weights is None else self._weights[rows]
        try:
            loss = float(self._step.losses(self._x[rows], self._y[rows], step, weights).mean())
        except SolverError as error:
            raise TrainingError(RunStatus.SOLVER_FAILED, f"step {step}: {error}") from error
        if not math.isfinite(loss):
            raise TrainingError(RunStatus.NON_FINITE, f"the loss of step {step} is {loss}")
        self._adam.step()
        if self._average is not None:
            self._average.update()
        self._step.constrain()
        return loss


def table_steps(model: TableModel, data: TrainingData, weights: Tensor | None) -> TableSteps:
    """Return the fastest steps for a model on the device of its data; ``accelerate="off"`` asks for the reference."""
    stacked = data.config.accelerate != "off" and unsupported_reason_stacked(networks_of(model)) is None
    kind = StackedSteps if stacked else EagerSteps
    return kind(model, data.train, data.config, weights)
