"""Optimisers and steps of a training run, made from its configuration."""

from __future__ import annotations

import torch

from ltnode.accelerate.step import accelerated_step
from ltnode.errors import ConfigError, unknown_name
from ltnode.models import Model
from ltnode.models.averaging import Averages, WeightAverage
from ltnode.models.step import Batch, EagerStep, NonFiniteLossError, Optimizers, StepSettings, TrainingStep
from ltnode.ode import SolverError
from ltnode.training.config import TrainConfig
from ltnode.training.distributed import Workers
from ltnode.training.status import RunStatus, TrainingError
from ltnode.typing import Tensor


class RunStep:
    """The step of a run: an eager or captured step whose failures become `TrainingError`."""

    def __init__(self, step: TrainingStep) -> None:
        self._step = step

    def __call__(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model; see `TrainingStep`.

        Raises:
            TrainingError: The ODE could not be solved, or the loss is not finite.
        """
        try:
            return self._step(batch)
        except SolverError as error:
            raise TrainingError(RunStatus.SOLVER_FAILED, f"step {batch.step}: {error}") from error
        except NonFiniteLossError as error:
            raise TrainingError(RunStatus.NON_FINITE, str(error)) from error

    def counts(self) -> dict[str, int]:
        """Return the counters of the step."""
        return self._step.counts()


def make_step(
    model: Model,
    optimizers: Optimizers,
    config: TrainConfig,
    n_data: int,
    *,
    workers: Workers | None = None,
    averages: Averages | None = None,
    example: Tensor | None = None,
    concurrent_runs: int = 1,
) -> RunStep:
    """Make the step of a run.

    Args:
        model: A model in train mode on the device of the training.
        optimizers: One optimiser per phase.
        config: Precision, seed and acceleration.
        n_data: Number of training examples.
        workers: The processes that share every batch.
        averages: Averages of the weights, which every step updates; see `make_averages`.
        example: One input or more, from which an accelerated step is planned; None for the eager step.
        concurrent_runs: Number of trainings that share the device at the same time.

    Raises:
        ConfigError: The configuration asks for an acceleration that is not supported.
    """
    combine = workers.combine if workers is not None and workers.world > 1 else None
    on_cuda = next(model.parameters()).device.type == "cuda"
    eager = EagerStep(
        model,
        optimizers,
        StepSettings(config.precision, config.seed, n_data, config.clip_norm),
        combine=combine,
        reference=config.accelerate == "off",
        # On CUDA, where reading a loss would wait for the device, the engine checks the sums for the log instead.
        check=example is None or not on_cuda,
        averages=averages,
    )
    # Captured steps update all weights of a model.
    accelerate = "off" if config.frozen else config.accelerate
    return RunStep(eager if example is None else accelerated_step(eager, example, accelerate, concurrent_runs))


def make_optimizers(model: Model, config: TrainConfig) -> dict[str, torch.optim.Optimizer]:
    """Make one optimiser per phase, with one parameter group per role.

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
            kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
            optimizers[phase] = kind(groups, lr=config.lr)
    for role in (*config.role_lr, *config.role_weight_decay):
        # Presets and configurations of earlier versions name the variational role for every model.
        if role not in {*seen, "variational"}:
            raise ConfigError(unknown_name("parameter role of this model", role, seen))
    return optimizers


def make_averages(optimizers: Optimizers, config: TrainConfig) -> dict[str, WeightAverage]:
    """Make one average of the weights per phase; none without ``averaging``."""
    if config.averaging is None:
        return {}
    return {
        phase: WeightAverage((p for group in optimizer.param_groups for p in group["params"]), config.averaging)
        for phase, optimizer in optimizers.items()
    }


def set_learning_rates(optimizers: Optimizers, factor: float) -> None:
    """Set the learning rate of every parameter group to its base rate times the factor."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * factor
