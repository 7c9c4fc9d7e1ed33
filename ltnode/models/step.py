"""One training step: for each phase of the model, the loss, its gradient and an update of the phase's parameters.

`EagerStep` is the readable reference. `ltnode.accelerate` offers faster steps that keep the same contract, `TrainingStep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from ltnode.device import Precision, autocast
from ltnode.errors import LTNodeError
from ltnode.models import execution
from ltnode.models.averaging import Averages
from ltnode.models.contract import Model
from ltnode.models.execution import Execution
from ltnode.objective import LOGGED_PARTS
from ltnode.ode import SolverError
from ltnode.typing import Float, Int, Tensor

Optimizers = Mapping[str, torch.optim.Optimizer]
"""One optimiser per phase of a model."""

Combine = Callable[[Sequence[Tensor], dict[str, Tensor]], dict[str, Tensor]]
"""Sums the gradients of parameters (in place) and the parts of a loss over all processes that share a batch."""


class NonFiniteLossError(LTNodeError, ArithmeticError):
    """The loss of a training step is NaN or infinite; the update was not made."""


@dataclass(frozen=True, eq=False)
class Batch:
    """The examples of one training step, or the share of them that this process computes.

    Attributes:
        x: Inputs (b, ...); b may be 0 when there are more processes than examples.
        y: Targets (b,).
        indices: Positions (b,) in the training set, from which end-times per input are derived.
        step: Number of optimiser steps before this one.
        n_examples: Number of examples of the step over all processes; None when they are all in this batch.
        soft: Class probabilities (b, C) of exactly these inputs, which replace the labels in the loss; None for labels.
        weights: How many examples each input counts for in the loss of a model with an end-time; None counts each once.
    """

    x: Float[Tensor, "b *rest"]
    y: Tensor
    indices: Int[Tensor, " b"]
    step: int
    n_examples: int | None = None
    soft: Float[Tensor, "b C"] | None = None
    weights: Float[Tensor, " b"] | None = None

    @property
    def target(self) -> Tensor:
        """What the loss compares the outputs with."""
        return self.y if self.soft is None else self.soft

    @property
    def share(self) -> float:
        """Fraction of the step's examples that are in this batch."""
        return 1.0 if self.n_examples is None else len(self.indices) / self.n_examples


@dataclass(frozen=True)
class StepSettings:
    """What a training step needs besides the model and its optimisers.

    Attributes:
        precision: Precision of the layers.
        seed: Seed of the end-times, which are a function of the seed, the step and the sample.
        n_data: Number of training examples, which decides the weight of the KL term.
        clip_norm: Largest norm of the gradient of all parameters of a phase; longer gradients are scaled down to it. None keeps
            every gradient as it is.
    """

    precision: Precision = "fp32"
    seed: int = 0
    n_data: int | None = None
    clip_norm: float | None = None


@runtime_checkable
class TrainingStep(Protocol):
    """What a training loop calls for every batch, eager or captured."""

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model.

        Returns:
            The parts of the loss by name (see `part_names`), 0-dim float64 without a graph. The next step may overwrite them.

        Raises:
            SolverError: The ODE could not be solved.
            NonFiniteLossError: The loss is NaN or infinite.
        """
        ...

    def counts(self) -> dict[str, int]:
        """Return counters for the log, such as the number of masked updates."""
        ...


def part_names(model: Model, phase: str) -> tuple[str, ...]:
    """Names under which a step reports the parts of a phase's loss: without a prefix for the model's first phase."""
    return LOGGED_PARTS if phase == model.phases[0] else tuple(f"{phase}.{name}" for name in LOGGED_PARTS)


def clipped(gradients: Sequence[Tensor], limit: float | None) -> Sequence[Tensor]:
    """Return gradients scaled down to a norm of at most ``limit``, like `torch.nn.utils.clip_grad_norm_`, without reading it."""
    if limit is None:
        return gradients
    norm = torch.nn.utils.get_total_norm(list(gradients))
    return torch._foreach_mul(list(gradients), (limit / (norm + 1e-6)).clamp_max(1.0))


class EagerStep:
    """The reference step: the model's own loss, autograd, and the optimisers of torch.

    Args:
        model: A model in train mode.
        optimizers: One optimiser per phase.
        settings: Precision, seed and number of training examples.
        combine: Sums gradients and parts of the loss over processes; None when this process has the whole batch.
        reference: Run every layer as it is written, without the faster execution that may be installed.
        check: Raise an error when a loss is not finite, before its update. Reading the loss waits for the device.
        averages: Averages of the weights of each phase, updated with every step; empty for none.
    """

    def __init__(
        self,
        model: Model,
        optimizers: Optimizers,
        settings: StepSettings,
        *,
        combine: Combine | None = None,
        reference: bool = False,
        check: bool = False,
        averages: Averages | None = None,
    ) -> None:
        self.model, self.optimizers, self.settings = model, optimizers, settings
        self.averages: Averages = averages or {}
        self.combine, self.check = combine, check
        self._execution: Execution | None = execution.REFERENCE if reference else None

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update per phase; see `TrainingStep`."""
        model, seed, size = self.model, self.settings.seed, len(batch.indices)
        times = model.training_times(size, seed, batch.step, batch.indices) if size else None
        reported: dict[str, Tensor] = {}
        for phase in model.phases:
            optimizer = self.optimizers[phase]
            # Clear all gradients: the loss of another phase may have left some on parameters of this one.
            model.zero_grad(set_to_none=True)
            parts, failure = self._backward(batch, times, phase)
            if self.combine is not None:
                parts = self.combine([p for group in optimizer.param_groups for p in group["params"]], parts)
            if failure is not None:
                raise failure
            if self.check and not bool(torch.isfinite(parts["loss"])):
                raise NonFiniteLossError(f"the loss of step {batch.step} ({phase}) is {float(parts['loss'])}")
            if self.settings.clip_norm is not None:
                learnt = [p for group in optimizer.param_groups for p in group["params"]]
                torch.nn.utils.clip_grad_norm_(learnt, self.settings.clip_norm)
            optimizer.step()
            if phase in self.averages:
                self.averages[phase].update()
            model.after_step()
            names = dict(zip(LOGGED_PARTS, part_names(model, phase), strict=True))
            reported |= {names[name]: value.to(torch.float64) for name, value in parts.items()}
        return reported

    def _backward(self, batch: Batch, times: Tensor | None, phase: str) -> tuple[dict[str, Tensor], SolverError | None]:
        """Add the gradients of this process's share; return its share of the parts of the loss, and a failure of the solve."""
        model, device = self.model, batch.x.device
        if not len(batch.indices):
            return {name: torch.zeros((), device=device) for name in LOGGED_PARTS}, None
        model.loss_parts = None
        try:
            with (
                nullcontext() if self._execution is None else execution.using(self._execution),
                autocast(self.settings.precision, device),
            ):
                if batch.weights is None:
                    loss = model.loss(batch.x, batch.target, n_data=self.settings.n_data, times=times, phase=phase)
                else:
                    loss = model.weighted_loss(batch.x, batch.target, batch.weights, self.settings.n_data, times, phase)
        except SolverError as error:
            # Other processes wait for the gradients of this one: a NaN loss tells them that it failed.
            return {name: torch.full((), torch.nan, device=device) for name in LOGGED_PARTS}, error
        (loss * batch.share).backward()
        parts = {"loss": loss} if model.loss_parts is None else {**model.loss_parts.logged(), "loss": loss}
        return {name: value.detach() * batch.share for name, value in parts.items()}, None

    def counts(self) -> dict[str, int]:
        """Return no counters."""
        return {}
