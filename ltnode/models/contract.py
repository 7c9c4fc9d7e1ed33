"""The interface of all models towards training, evaluation, saving and serving."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, get_args
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from ltnode.data.streaming import StreamedTensor
from ltnode.errors import InputError, LTNodeError, unknown_name
from ltnode.models import execution
from ltnode.models.prediction import Prediction
from ltnode.objective import LossParts
from ltnode.ode import Stats
from ltnode.typing import Float, Tensor

Task = Literal["classification", "regression"]
Draw = Literal["quantile", "random"]
Steps = Literal["stored", "adaptive"]
Inputs = Tensor | np.ndarray
"""A batch (B, ...) of floats; a numpy array is converted to the dtype and device of the model."""


_MODE_LOCK = threading.Lock()
_EVALUATING: WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = WeakKeyDictionary()
"""Models that are predicting: how many threads do, and the parts that were in train mode before the first."""


class Model(nn.Module, ABC):
    """Base class of all models; training and evaluation rely on nothing else.

    Attributes:
        task: "classification" or "regression".
        phases: Names of the losses that one training step minimises in turn, each over different parameters.
        loss_parts: Parts of the last loss.
        solve_stats: Work of the solve in the last loss; None for models without a solve.
        spec: Arguments of `ltnode.build` from which the model can be rebuilt; None for a model with user-defined parts.
        fixed_operations: Whether every loss runs the same sequence of operations on the device, whatever the values are, so that
            it can be captured as a CUDA graph.
        has_path: Whether its predictions can have a distance and a familiarity; see `ltnode.models.familiar_model`.
    """

    has_path: ClassVar[bool] = False
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

    @property
    def soft_targets(self) -> bool:
        """Whether the loss also takes class probabilities (B, C) in place of labels."""
        return False

    @property
    def n_targets(self) -> int:
        """Number of real values that a regression predicts."""
        return 1

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor, n_data: int | None = None, times: Tensor | None = None, phase: str = "main") -> Tensor:
        """Return what training minimises, per data point, 0-dim; noise comes from the global generator of torch.

        Args:
            x: Inputs (B, ...).
            y: Class labels (B,) or, with ``soft_targets``, probabilities (B, C); or real values (B,) or (B, 1).
            n_data: Number of training points.
            times: End-times (S,) or (S, B); None draws them.
            phase: One of ``phases``.
        """

    def weighted_loss(
        self,
        x: Tensor,
        y: Tensor,
        weights: Float[Tensor, " B"] | None,
        n_data: int | None = None,
        times: Tensor | None = None,
        phase: str = "main",
    ) -> Tensor:
        """Return `loss` with weights: how many examples each input counts for, with a mean of 1 over the training set.

        Raises:
            InputError: The model cannot weight its examples.
        """
        raise InputError(f"{type(self).__name__} cannot weight its examples; the models with an end-time can")

    @abstractmethod
    def predict(self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Prediction:
        """Return the predictive distribution, computed in eval mode without a graph; the mode is restored afterwards."""

    @abstractmethod
    def log_probs(self, x: Tensor, samples: int = 10, draw: Draw = "quantile", seed: int = 0) -> Tensor:
        """Return the log of the averaged class probabilities (B, C) with a graph to x, in the current mode of the model."""

    def parameter_roles(self, phase: str = "main") -> dict[str, list[nn.Parameter]]:
        """Return the parameters of a phase by role ("weights", "variational", ...); every role may have its own learning rate."""
        return {"weights": list(self.parameters())}

    def training_times(self, batch: int, seed: int, step: int, indices: Tensor | None = None) -> Tensor | None:
        """Return the end-times of a training step, a function of (seed, step[, sample index]) alone; None without end-times."""
        return None

    def after_step(self) -> None:
        """Clamp parameters to their valid range; called after every optimiser step."""

    def finish_training(self, x: Tensor, y: Tensor) -> None:
        """Fit on training inputs what predictions need besides weights (prediction grid, residual noise)."""

    @property
    def has_familiarity(self) -> bool:
        """Whether predictions have a distance; see `ltnode.models.familiar_model`."""
        return False

    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Return learnt quantities for the log, as plain numbers."""
        return {}

    def solver_state(self) -> dict[str, Any]:
        """Return the state of the training solver as JSON; a resumed run continues with it."""
        return {}

    def load_solver_state(self, state: dict[str, Any]) -> None:
        """Restore a state returned by `solver_state`."""

    def check_targets(self, x: Tensor, y: Tensor) -> None:
        """Check that targets fit the batch and the task; values are read on the CPU only, where this is cheap."""
        if not isinstance(y, torch.Tensor):
            raise InputError(f"y must be a tensor, not {type(y).__name__}; convert it with torch.as_tensor(y)")
        if y.ndim == 0 or y.shape[0] != x.shape[0]:
            raise InputError(f"y must hold one target per input: x has {x.shape[0]} samples, y has shape {tuple(y.shape)}")
        if self.task == "regression":
            several = self.n_targets > 1
            if y.ndim > 2 or (several and y.ndim == 1) or y.shape[1:].numel() != self.n_targets or not y.is_floating_point():
                hint = "" if y.is_floating_point() else "; try y.float()"
                shape = f"(B, {self.n_targets})" if several else "(B,) or (B, 1)"
                raise InputError(f"regression targets must be floats of shape {shape}, not {y.dtype} {tuple(y.shape)}{hint}")
            if _readable(y) and not bool(torch.isfinite(y).all()):
                raise InputError(f"y holds {_count_non_finite(y)}; drop or impute these targets first")
        elif self.soft_targets and y.ndim == 2 and y.is_floating_point():
            if _readable(y) and not bool(((y >= 0).all(1) & ((y.sum(1) - 1).abs() < 1e-3)).all()):
                raise InputError("soft targets must be class probabilities (B, C): rows of numbers >= 0 whose sum is 1")
        elif y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
            hint = "y.long()" if y.ndim == 1 else "y.argmax(1), if these are one-hot rows"
            raise InputError(f"class labels must be integers of shape (B,), not {y.dtype} {tuple(y.shape)}; try {hint}")

    def check_labels(self, y: Tensor, n_classes: int) -> None:
        """Check that class labels lie in 0..n_classes - 1, or that soft targets have so many columns."""
        if self.task == "classification" and y.ndim == 2 and y.shape[1] != n_classes:
            raise InputError(f"soft targets must have one column per class, {n_classes}, not {y.shape[1]}")
        if y.ndim == 2 or self.task == "regression" or not _readable(y):
            return
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= n_classes:
            raise InputError(f"labels must lie in 0..{n_classes - 1} for {n_classes} classes, not in {low}..{high}")

    def as_inputs(self, x: Inputs) -> Tensor:
        """Check a batch of inputs; a numpy array becomes a tensor with the dtype and device of the model's parameters."""
        if isinstance(x, np.ndarray) and x.dtype in (np.float16, np.float32, np.float64):
            like = next(self.parameters(), torch.zeros(()))
            x = torch.tensor(np.ascontiguousarray(x), dtype=like.dtype, device=like.device)
        check_input(x)
        assert isinstance(x, torch.Tensor)
        return x


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Set eval mode inside the block and restore the mode of every submodule afterwards.

    Several threads may be inside at once: the first one sets the mode, and the last one restores it.
    """
    with _MODE_LOCK:
        inside, in_training = _EVALUATING.get(module, (0, []))
        if not inside:
            in_training = [part for part in module.modules() if part.training]
            if in_training:  # setting the mode of a model that is in eval mode already would take longer than a small layer
                module.eval()
        _EVALUATING[module] = (inside + 1, in_training)
    try:
        yield
    finally:
        with _MODE_LOCK:
            inside, in_training = _EVALUATING.pop(module)
            if inside > 1:
                _EVALUATING[module] = (inside - 1, in_training)
            else:
                for part in in_training:
                    part.training = True


def check_input(x: Inputs) -> None:
    """Check that inputs are a finite floating-point batch; values are looked at on the CPU only, and not if they must be read."""
    if not isinstance(x, torch.Tensor) or not x.is_floating_point():
        got = f"{type(x).__name__} of {x.dtype}" if isinstance(x, torch.Tensor | np.ndarray) else type(x).__name__
        raise InputError(f"x must be a floating-point tensor or array (normalise uint8 images first), not {got}")
    if x.ndim < 2 or x.shape[0] == 0:
        raise InputError(f"x must be a batch of shape (B, ...) with B >= 1 and at least one feature axis, not {tuple(x.shape)}")
    if _readable(x) and not isinstance(x, StreamedTensor) and not bool(torch.isfinite(x).all()):
        raise InputError(f"x holds {_count_non_finite(x)}; clean or impute the data first")


def check_draw(draw: str) -> None:
    """Check the name of a way to draw the members of a prediction."""
    if draw not in get_args(Draw):
        raise InputError(unknown_name("draw", draw, get_args(Draw)))


def check_steps(steps: str) -> None:
    """Check the name of a way to choose the steps of a prediction."""
    if steps not in get_args(Steps):
        raise InputError(unknown_name("kind of steps", steps, get_args(Steps)))


def apply_part(name: str, part: nn.Module, batch: Tensor) -> Tensor:
    """Apply a part of a model to a batch; an error of torch becomes one that names the part and the shape of the batch."""
    try:
        return execution.current().run_layers(part, batch)
    except (RuntimeError, ValueError) as error:
        if isinstance(error, LTNodeError | torch.OutOfMemoryError):
            raise
        dtypes = {p.dtype for p in part.parameters()}
        remedy = f"; its weights are {dtypes.pop()}: convert x or the model" if dtypes and batch.dtype not in dtypes else ""
        reason = str(error).splitlines()[0]
        raise InputError(
            f"the {name} does not accept a batch of shape {tuple(batch.shape)}, {batch.dtype}: {reason}{remedy}"
        ) from error


def _readable(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _count_non_finite(x: Tensor) -> str:
    return f"NaN or inf in {int((~torch.isfinite(x)).sum())} of {x.numel()} places"
