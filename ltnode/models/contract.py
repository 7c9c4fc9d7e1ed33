"""What every model offers to training, evaluation, saving and serving."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from ltnode.errors import InputError, LTNodeError
from ltnode.models import execution
from ltnode.models.prediction import Prediction
from ltnode.objective import LossParts
from ltnode.ode import Stats
from ltnode.typing import Tensor

Task = Literal["classification", "regression"]
Draw = Literal["quantile", "random"]
Steps = Literal["stored", "adaptive"]


class Model(nn.Module, ABC):
    """Base of all models; the training engine relies on nothing else.

    Attributes:
        task: "classification" or "regression".
        phases: Names of the losses that one training step minimises in turn; each has parameters of its own.
        loss_parts: Pieces of the last loss.
        solve_stats: Work of the last loss's solve; None for models without one.
        spec: How to build the model again (`ltnode.build` arguments); None for a model made of one's own parts.
        fixed_operations: Whether every loss is the same sequence of operations on the device, whatever the values: it can be
            recorded as a CUDA graph.
    """

    phases: ClassVar[tuple[str, ...]] = ("main",)
    fixed_operations: ClassVar[bool] = False

    def __init__(self, task: Task) -> None:
        super().__init__()
        if task not in ("classification", "regression"):
            raise InputError(f"task must be 'classification' or 'regression', not {task!r}")
        self.task: Task = task
        self.loss_parts: LossParts | None = None
        self.solve_stats: Stats | None = None
        self.spec: Mapping[str, Any] | None = None

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """What training minimises, per data point; 0-dim. Randomness not given by ``times`` comes from torch's generator."""

    @abstractmethod
    def predict(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Prediction:
        """Predictive distribution in eval mode, without a graph; the mode is put back afterwards."""

    @abstractmethod
    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Log of the averaged class probabilities (B, C) with a graph to x, for attacks; in the mode the model is in."""

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        """Parameters of one phase by role ("weights", "variational", ...), each of which may have its own learning rate."""
        return {"weights": list(self.parameters())}

    def training_times(self, batch: int, seed: int, step: int, indices: Tensor | None = None) -> Tensor | None:
        """End-times of a training step as a function of (seed, step[, sample index]) alone; None if the model has none."""
        return None

    def after_step(self) -> None:
        """Put parameters back into their valid range; called after every optimiser step."""

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit what prediction needs besides weights (stored grid, residual noise) on training inputs; called at the end."""

    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Learnt quantities worth logging, as plain numbers."""
        return {}

    def solver_state(self) -> dict[str, Any]:
        """What a training solver keeps from step to step, as JSON; a resumed run must continue with it."""
        return {}

    def load_solver_state(self, state: dict[str, Any]) -> None:
        """Put back what `solver_state` gave."""

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Targets must fit the batch and the task; values are read on the CPU only, where it costs nothing."""
        if not isinstance(y, torch.Tensor):
            raise InputError(f"y must be a tensor, not {type(y).__name__}; torch.as_tensor(y) makes one")
        if y.ndim == 0 or y.shape[0] != x.shape[0]:
            raise InputError(f"y must hold one target per input: x has {x.shape[0]} samples, y has shape {tuple(y.shape)}")
        if self.task == "regression":
            if y.ndim > 2 or (y.ndim == 2 and y.shape[1] != 1) or not y.is_floating_point():
                hint = "" if y.is_floating_point() else "; try y.float()"
                raise InputError(
                    f"regression targets must be floats of shape (B,) or (B, 1), not {y.dtype} {tuple(y.shape)}{hint}"
                )
            if _readable(y) and not bool(torch.isfinite(y).all()):
                raise InputError(f"y holds {_count_non_finite(y)}; drop those points or impute the targets first")
        elif y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
            hint = "y.long()" if y.ndim == 1 else "y.argmax(1), if these are one-hot rows"
            raise InputError(f"class labels must be integers of shape (B,), not {y.dtype} {tuple(y.shape)}; try {hint}")

    def check_labels(self, y: Tensor, n_classes: int) -> None:
        """Class labels must lie in 0..n_classes - 1; nothing to check for regression, or where values must not be read."""
        if self.task == "regression" or not _readable(y):
            return
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= n_classes:
            raise InputError(f"labels must lie in 0..{n_classes - 1} for {n_classes} classes, found {low}..{high}")


def check_input(x: Tensor) -> None:
    """Inputs must be finite floating-point batches; values are read on the CPU only."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        got = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
        raise InputError(f"x must be a floating-point tensor (normalise uint8 images first), not {got}")
    if x.ndim < 2 or x.shape[0] == 0:
        raise InputError(f"x must be a batch of shape (B, ...) with B >= 1 and at least one feature axis, not {tuple(x.shape)}")
    if _readable(x) and not bool(torch.isfinite(x).all()):
        raise InputError(f"x holds {_count_non_finite(x)}; clean or impute the data first")


def apply_part(name: str, part: nn.Module, batch: Tensor) -> Tensor:
    """``part(batch)``; where torch refuses, an error that says which part met what."""
    try:
        return execution.current().run_layers(part, batch)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, LTNodeError | torch.OutOfMemoryError):
            raise
        dtypes = {p.dtype for p in part.parameters()}
        remedy = f"; its weights are {dtypes.pop()}: convert one of them" if dtypes and batch.dtype not in dtypes else ""
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the {name} does not take a batch of shape {tuple(batch.shape)}, {batch.dtype}: {reason}{remedy}"
        ) from error


def _readable(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _count_non_finite(x: Tensor) -> str:
    return f"NaN or inf in {int((~torch.isfinite(x)).sum())} of {x.numel()} places"
