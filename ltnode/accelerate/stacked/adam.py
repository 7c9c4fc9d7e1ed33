"""The update of Adam for stacked parameters; `torch.optim.Adam` is the reference."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ltnode.accelerate.stacked.parameters import StackedParameters

_BETAS = (0.9, 0.999)
_EPS = 1e-8


class StackedAdam:
    """Adam with the moments of torch's defaults.

    Args:
        parameters: The parameters with their gradients.

    Attributes:
        lr: Learning rate.
    """

    lr: float = 1e-3

    def __init__(self, parameters: StackedParameters) -> None:
        self._parameters = parameters
        self._mean, self._square, self._room = (np.zeros_like(parameters.flat) for _ in range(3))
        self._steps = 0

    def step(self) -> None:
        """Update the parameters."""
        self._steps += 1
        gradient, mean, square, room = self._parameters.flat_gradient, self._mean, self._square, self._room
        mean *= _BETAS[0]
        mean += np.multiply(gradient, 1 - _BETAS[0], out=room)
        square *= _BETAS[1]
        np.multiply(gradient, gradient, out=room)
        room *= 1 - _BETAS[1]
        square += room
        np.sqrt(square, out=room)
        room *= 1 / math.sqrt(1 - _BETAS[1] ** self._steps)
        room += _EPS
        np.divide(mean, room, out=room)
        room *= self.lr / (1 - _BETAS[0] ** self._steps)
        self._parameters.flat -= room

    def state_dict(self) -> dict[str, Any]:
        """Return the moments and the number of updates."""
        return {"steps": self._steps, "mean": self._mean.copy(), "square": self._square.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what `state_dict` returned."""
        self._steps = state["steps"]
        self._mean[...], self._square[...] = state["mean"], state["square"]
