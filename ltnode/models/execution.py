"""How the layers and solves of a model are executed: literally, unless a faster execution is in force.

This is the only place where the models meet what makes them fast. `Execution` is the reference: it runs the layers as they are
written. `ltnode.accelerate` derives faster executions from it, whose results are tested against the reference, and installs one
as the default when it is imported. The models themselves know nothing about kernels.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from torch import nn
from torch.nn import functional

from ltnode.ode.replay import Replayer
from ltnode.ode.search import TrialStep
from ltnode.typing import Tensor

if TYPE_CHECKING:
    from ltnode.models.options import SolverOptions


class Execution:
    """Runs layers and solves exactly as the models define them; the reference for every faster execution."""

    def run_layers(self, layers: nn.Module, x: Tensor) -> Tensor:
        """Apply a stem, head or inference network to a batch."""
        return layers(x)

    def relu_of_norm(self, norm: nn.GroupNorm, x: Tensor) -> Tensor:
        """``relu(norm(x))``."""
        return functional.relu(norm(x))

    def normed_convolutions(
        self, t: Tensor, h: Tensor, convs: tuple[nn.Conv2d, nn.Conv2d], norms: tuple[nn.GroupNorm, nn.GroupNorm, nn.GroupNorm]
    ) -> Tensor | None:
        """Norm, ReLU and convolution of [t, .], twice, and a last norm, at once; None asks the caller to run its layers."""
        return None

    def replayer(self, field: nn.Module, h: Tensor, times: Tensor, options: SolverOptions) -> Replayer | None:
        """A function that steps over a training grid in place of `ltnode.ode.replay.replay`; None takes that reference."""
        return None

    def trial_step(self, field: nn.Module, h: Tensor, options: SolverOptions) -> TrialStep | None:
        """A function that takes one trial step of an adaptive prediction; None takes `ltnode.ode.step.take_step`."""
        return None


REFERENCE = Execution()
_default: list[Execution] = [REFERENCE]
_in_force: ContextVar[Execution | None] = ContextVar("execution", default=None)


def current() -> Execution:
    """The execution in force: that of the innermost `using` block, otherwise the default."""
    return _in_force.get() or _default[0]


def set_default(execution: Execution) -> None:
    """Choose the execution that is used outside of every `using` block."""
    _default[0] = execution


@contextmanager
def using(execution: Execution) -> Iterator[None]:
    """Run models with this execution inside the block; ``using(REFERENCE)`` runs the layers themselves."""
    token = _in_force.set(execution)
    try:
        yield
    finally:
        _in_force.reset(token)
