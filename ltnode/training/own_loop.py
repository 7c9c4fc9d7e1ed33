"""``ltnode.accelerate``: the training step of `ltnode.fit` for loops outside of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

from ltnode.accelerate.plan import Accelerate
from ltnode.accelerate.step import accelerated_step
from ltnode.checks import checked_count
from ltnode.device import Precision, product_precision
from ltnode.errors import ConfigError, InputError
from ltnode.models import Model
from ltnode.models.contract import Inputs
from ltnode.models.step import Batch, EagerStep, Optimizers, StepSettings, TrainingStep
from ltnode.training.distributed import Workers
from ltnode.typing import Float, Tensor


class OwnLoopStep:
    """A training step to call as ``loss = step(x, y)``; made by `accelerate`.

    Attributes:
        model: The model.
        steps: Number of steps so far. End-times are a function of the seed and this number.
        parts: The parts of the last loss by name, 0-dim; those of further phases have the name of the phase as a prefix.
    """

    def __init__(self, eager: EagerStep, requested: Accelerate, workers: Workers) -> None:
        self.model, self._eager, self._requested, self._workers = eager.model, eager, requested, workers
        self.steps = 0
        self.parts: dict[str, Tensor] = {}
        self._step: TrainingStep | None = None

    def __call__(self, x: Inputs, y: Tensor) -> Float[Tensor, ""]:
        """Compute loss and gradient of a batch, and update the model.

        Args:
            x: Inputs (B, ...).
            y: Labels (B,), class probabilities (B, C), or real values (B,) or (B, targets).

        Returns:
            The loss, 0-dim without a graph. The next step may overwrite it: read it, or clone it, before.

        Raises:
            InputError: The model is in eval mode, or inputs and targets do not fit it.
            SolverError: The ODE could not be solved.
        """
        model = self.model
        if not model.training:
            raise InputError("the model is in eval mode: call model.train() before a training step")
        device = next(model.parameters()).device
        x = model.as_inputs(x).to(device, non_blocking=True)
        y = y.to(device, non_blocking=True) if isinstance(y, Tensor) else y
        model.check_targets(x, y)
        if self._step is None:
            self._step = accelerated_step(self._eager, x[:1], self._requested)
        with product_precision(self._eager.settings.precision):
            self.parts = self._step(self._batch(x, y))
        self.steps += 1
        return self.parts["loss"]

    def _batch(self, x: Tensor, y: Tensor) -> Batch:
        soft = y if self.model.task == "classification" and y.ndim == 2 else None
        labels = y if soft is None else y.argmax(dim=1)
        first, total = self._place(len(x), x.device)
        return Batch(x, labels, torch.arange(first, first + len(x), device=x.device), self.steps, total, soft)

    def _place(self, size: int, device: torch.device) -> tuple[int, int]:
        """Return the position of this process's first example among those of all processes, and their number."""
        if self._workers.world == 1:
            return 0, size
        sizes = torch.zeros(self._workers.world, dtype=torch.long, device=device)
        sizes[self._workers.rank] = size
        dist.all_reduce(sizes)
        counts = sizes.tolist()
        return sum(counts[: self._workers.rank]), sum(counts)

    def counts(self) -> dict[str, int]:
        """Return counters of the captured step, such as the number of masked updates; none for the eager step."""
        return {} if self._step is None else self._step.counts()

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on besides model and optimiser."""
        return {"steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.steps = int(state["steps"])


def accelerate(
    model: Model,
    optimizer: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer],
    *,
    n_data: int | None = None,
    precision: Precision = "fp32",
    seed: int = 0,
    clip_norm: float | None = None,
    accelerate: Accelerate = "auto",
) -> OwnLoopStep:
    """Return the training step of `ltnode.fit` for a loop of one's own: ``loss = step(x, y)`` replaces loss, gradient and update.

    On CUDA the step is captured in a CUDA graph where model and optimiser support it; the log states what is used, and why not
    more. Elsewhere it is the eager step on the training grid. Learning rates may change between steps, for example by a
    scheduler of torch. If torch.distributed is initialised, the processes share every step, and each passes its own examples.

    Args:
        model: The model, in train mode and on its device, not wrapped in another module.
        optimizer: Any optimiser of torch, or one that Lightning or Accelerate has wrapped; for a model with several phases one
            per phase, by name.
        n_data: Number of training examples, which ``kl_weight="elbo"`` needs.
        precision: ``"fp32"``, ``"tf32"`` or ``"bf16"``; see `TrainConfig`.
        seed: Seed of the end-times.
        clip_norm: Largest norm of the gradient; longer gradients are scaled down to it. None keeps them.
        accelerate: ``"auto"``, ``"off"``, ``"graph"``, ``"compiled"`` or ``"fused"``; see `TrainConfig`.

    Raises:
        InputError: The model is not one of ltnode.
        ConfigError: The optimisers are not those of the model's phases.
    """
    if not isinstance(model, Model):
        raise InputError(
            f"model must be a model of ltnode, not a {type(model).__name__}; pass the model inside, "
            "such as accelerator.unwrap_model(model) or wrapped.module"
        )
    checked = None if n_data is None else checked_count("n_data", n_data)
    workers = Workers(dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else Workers()
    eager = EagerStep(
        model,
        _by_phase(model, optimizer),
        StepSettings(precision, seed, checked, clip_norm),
        combine=workers.combine if workers.world > 1 else None,
        reference=accelerate == "off",
    )
    return OwnLoopStep(eager, accelerate, workers)


def _by_phase(model: Model, given: torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]) -> Optimizers:
    optimizers = dict(given) if isinstance(given, Mapping) else {model.phases[0]: given}
    if set(optimizers) != set(model.phases):
        raise ConfigError(
            f"{type(model).__name__} needs one optimiser for each of its phases {', '.join(model.phases)}: pass a mapping from "
            "names to optimisers; model.parameter_roles(phase) returns the parameters of a phase"
        )
    return {phase: _unwrapped(optimizers[phase]) for phase in model.phases}


def _unwrapped(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimiser of torch inside the wrappers of Lightning and Accelerate."""
    while (inner := getattr(optimizer, "optimizer", None)) is not None:
        optimizer = inner
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigError(f"optimizer must be an optimiser of torch, not a {type(optimizer).__name__}")
    return optimizer
