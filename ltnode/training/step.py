"""One training step: for each phase of the model, loss, gradient, update."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from ltnode.device import autocast
from ltnode.errors import ConfigError, unknown_name
from ltnode.models import Model, execution
from ltnode.ode import SolverError
from ltnode.training.batches import Batch
from ltnode.training.config import TrainConfig
from ltnode.training.distributed import Workers
from ltnode.training.status import RunStatus, TrainingError
from ltnode.typing import Tensor

Optimizers = Mapping[str, torch.optim.Optimizer]


@dataclass(frozen=True)
class LossPieces:
    """The pieces of a step's loss, the same in all processes.

    Attributes:
        names: Of the pieces.
        values: (pieces,) float64, detached; may be overwritten by the next step.
    """

    names: tuple[str, ...]
    values: Tensor

    @classmethod
    def of(cls, pieces: Mapping[str, Tensor]) -> LossPieces:
        """From 0-dim tensors by name."""
        return cls(tuple(pieces), torch.stack([value.detach().to(torch.float64) for value in pieces.values()]))

    def __getitem__(self, name: str) -> Tensor:
        """A copy of one piece, 0-dim."""
        return self.values[self.names.index(name)].clone()


@runtime_checkable
class TrainingStep(Protocol):
    """What the engine calls for every batch; an accelerated step offers the same."""

    def __call__(self, batch: Batch) -> LossPieces:
        """Update the model and return the pieces of the loss.

        Raises:
            TrainingError: The loss is not finite, or the solve failed.
        """
        ...

    def counts(self) -> dict[str, int]:
        """Counters worth logging, such as masked updates."""
        ...


class EagerStep:
    """The reference: the model's own loss, autograd, torch's optimisers.

    Args:
        model: In train mode.
        optimizers: One per phase.
        config: Precision and seed.
        n_data: Number of training examples.
        workers: The processes that share the batch.
        check: Look at the value of every loss before its update. Reading it waits for the device, so on CUDA the engine
            looks at the logged sums instead.
    """

    def __init__(
        self, model: Model, optimizers: Optimizers, config: TrainConfig, n_data: int, workers: Workers, check: bool
    ) -> None:
        self.model, self.optimizers, self.config = model, optimizers, config
        self.n_data, self.workers, self.check = n_data, workers, check

    def __call__(self, batch: Batch) -> LossPieces:
        """One update per phase; see `TrainingStep`."""
        model = self.model
        times = (
            model.training_times(len(batch.indices), self.config.seed, batch.step, batch.indices) if len(batch.indices) else None
        )
        parts: dict[str, Tensor] = {}
        for phase in model.phases:
            optimizer = self.optimizers[phase]
            # All of them: what another phase left on parameters that are not its own must not be used.
            model.zero_grad(set_to_none=True)
            pieces, failure = self._backward(batch, times, phase)
            pieces = self.workers.combine(_parameters(optimizer), pieces)
            if failure is not None:
                raise TrainingError(RunStatus.SOLVER_FAILED, f"step {batch.step}: {failure}") from failure
            if self.check and not bool(torch.isfinite(pieces["loss"])):
                raise TrainingError(RunStatus.NON_FINITE, f"the loss of step {batch.step} ({phase}) is {float(pieces['loss'])}")
            optimizer.step()
            model.after_step()
            parts |= pieces if phase == model.phases[0] else {f"{phase}.{name}": value for name, value in pieces.items()}
        return LossPieces.of(parts)

    def _backward(self, batch: Batch, times: Tensor | None, phase: str) -> tuple[dict[str, Tensor], SolverError | None]:
        """Gradients of this process's share, and its share of the pieces of the loss."""
        model = self.model
        names = ("loss", "expected_log_likelihood", "kl")
        if not len(batch.indices):
            return {name: torch.zeros((), device=batch.x.device) for name in names}, None
        model.loss_parts = None
        try:
            # "off" is the reference: the layers themselves, no kernels in their place.
            plain = execution.using(execution.REFERENCE) if self.config.accelerate == "off" else contextlib.nullcontext()
            with plain, autocast(self.config.precision, batch.x.device):
                loss = model.loss(batch.x, batch.y, n_data=self.n_data, times=times, phase=phase)
        except SolverError as error:
            if self.workers.world == 1:
                raise TrainingError(RunStatus.SOLVER_FAILED, f"step {batch.step}: {error}") from error
            # The other processes wait for this one's gradients: tell them by a loss that is no number.
            return {name: torch.full((), torch.nan, device=batch.x.device) for name in names}, error
        (loss * batch.share).backward()
        pieces = {"loss": loss}
        if model.loss_parts is not None:
            pieces["expected_log_likelihood"] = model.loss_parts.expected_log_likelihood
            pieces["kl"] = model.loss_parts.kl
        return {name: value.detach() * batch.share for name, value in pieces.items()}, None

    def counts(self) -> dict[str, int]:
        """Nothing to count."""
        return {}


def make_optimizers(model: Model, config: TrainConfig) -> dict[str, torch.optim.Optimizer]:
    """One optimiser per phase, with one group per parameter role.

    Raises:
        ConfigError: ``role_lr`` or ``role_weight_decay`` names a role that the model does not have.
    """
    optimizers: dict[str, torch.optim.Optimizer] = {}
    seen: set[str] = set()
    for phase in model.phases:
        groups = []
        for role, parameters in model.parameter_roles(phase).items():
            seen.add(role)
            lr, weight_decay = config.role_options(role)
            learnt = [p for p in parameters if p.requires_grad]
            if learnt:
                groups.append({"params": learnt, "lr": lr, "base_lr": lr, "weight_decay": weight_decay, "role": role})
        if not groups:
            raise ConfigError(f"the model has nothing to learn in its phase {phase!r}: no parameter requires a gradient")
        if config.optimizer == "sgd":
            optimizers[phase] = torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
        else:
            optimizers[phase] = torch.optim.Adam(groups, lr=config.lr)
    for role in (*config.role_lr, *config.role_weight_decay):
        if role not in seen:
            raise ConfigError(unknown_name("parameter role of this model", role, seen))
    return optimizers


def set_learning_rates(optimizers: Optimizers, factor: float) -> None:
    """Every group's learning rate is its base times the factor."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
