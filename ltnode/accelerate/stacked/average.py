"""Averaged weights of stacked networks; `ltnode.models.averaging` is the reference."""

from __future__ import annotations

import numpy as np

from ltnode.accelerate.stacked.parameters import Array, StackedParameters


class StackedAverage:
    """The exponential moving average of stacked parameters, whose weights sum to 1 from the first update on.

    Args:
        parameters: The parameters.
        decay: Decay per update, > 0 and < 1.
    """

    def __init__(self, parameters: StackedParameters, decay: float) -> None:
        self._parameters, self._decay = parameters, decay
        self._sums, self._room = np.zeros_like(parameters.flat), np.zeros_like(parameters.flat)
        self._count = 0

    def update(self) -> None:
        """Add the current parameters."""
        self._count += 1
        np.subtract(self._parameters.flat, self._sums, out=self._room)
        self._room *= 1 - self._decay
        self._sums += self._room

    def value(self) -> Array:
        """The average; the current parameters before the first update."""
        if self._count == 0:
            return self._parameters.flat.copy()
        average: Array = self._sums / np.float32(1 - self._decay**self._count)
        return average
