"""How the layers and solves of models are executed: as they are written, unless a faster execution is installed.

This is the only place where the models meet their acceleration. `Execution` is the reference and runs the layers as they are
written. `ltnode.accelerate` derives faster executions from it, which are tested against the reference, and installs one as the
default on import. The models know nothing about kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import nn
from torch.nn import functional

from ltnode.models.options import SolverOptions
from ltnode.models.prediction import Prediction
from ltnode.ode import Stats
from ltnode.ode.replay import Replayer
from ltnode.ode.step import Field
from ltnode.typing import Tensor


class Execution:
    """Runs layers and solves exactly as the models define them; the reference for every faster execution."""

    def run_layers(self, layers: nn.Module, x: Tensor) -> Tensor:
        """Apply a stem, head or inference network to a batch."""
        return layers(x)

    def relu_of_norm(self, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """Compute ``relu(norm(x))``."""
        return functional.relu(norm(x))

    def normed_convolutions(
        self, t: Tensor, h: Tensor, convs: tuple[nn.Conv2d, nn.Conv2d], norms: tuple[nn.GroupNorm, nn.GroupNorm, nn.GroupNorm]
    ) -> Tensor | None:
        """Apply norm, ReLU and convolution of [t, .] twice, then a norm, at once; None asks the caller to run its layers."""
        return None

    def replayer(self, field: nn.Module, h: Tensor, times: Tensor, options: SolverOptions) -> Replayer | None:
        """Return a function that replaces `ltnode.ode.replay.replay` on a training grid; None keeps that reference."""
        return None

    def prediction_field(self, field: nn.Module, h: Tensor) -> Field:
        """Return the field for a prediction from states like h, during which its weights do not change."""
        return field

    def solve_networks(
        self, networks: Sequence[nn.Module], x: Tensor, times: Sequence[Tensor]
    ) -> tuple[list[Tensor], Stats] | None:
        """Solve for several `LatentTimeODE` on their prediction grids at once; None asks the caller to solve for each.

        Args:
            networks: The networks.
            x: Their inputs.
            times: End-times of every network.

        Returns:
            The states of every network at its times, and the work.
        """
        return None

    def predict(self, model: nn.Module, x: Tensor, samples: int, draw: str, seed: int) -> Prediction | None:
        """Return the prediction of a model in eval mode on its prediction grid; None asks the model to compute it."""
        return None


REFERENCE = Execution()
_default = [REFERENCE]  # a list, because threads that start later must see the default, which a ContextVar does not offer
_current: ContextVar[Execution | None] = ContextVar("execution", default=None)


def current() -> Execution:
    """Return the execution of the innermost `using` block, or the default outside of every block.

    Compiled and exported programs contain the layers themselves; tracing could not read the context variable either.
    """
    return REFERENCE if torch.compiler.is_compiling() else _current.get() or _default[0]


def set_default(execution: Execution) -> None:
    """Choose the execution that is used outside of every `using` block."""
    _default[0] = execution


@contextmanager
def using(execution: Execution) -> Iterator[None]:
    """Run models with this execution inside the block; ``using(REFERENCE)`` runs the layers as they are written."""
    token = _current.set(execution)
    try:
        yield
    finally:
        _current.reset(token)
