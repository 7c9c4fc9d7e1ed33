"""End-times of captured steps: the host draws random numbers ahead, the device turns them into times.

Drawing a few steps at once into pinned memory avoids launches and waiting in every step. The times are the same function of
(seed, step, sample) as in the eager step.
"""

from __future__ import annotations

import torch

from ltnode.counter_rng import CounterGenerator
from ltnode.models.latent_time import LatentTimeODE
from ltnode.typing import Tensor

_DRAWS = 2
"""Largest number of generator calls for the end-times of one step."""
_AHEAD = 8
"""Number of steps whose end-times are drawn at once: few, so that the device never waits for the host, even when several runs
train concurrently."""


class DrawnTimes:
    """End-times of the steps of one training, from the end-time distribution of a network."""

    def __init__(self, network: LatentTimeODE, seed: int) -> None:
        self._network, self._seed = network, seed
        self.per_input = network.end_time.amortized
        """Whether every input has its own end-times."""
        self._block: tuple[int, Tensor] | None = None

    def draw(self, step: int) -> Tensor:
        """Return what the host draws for a step: shared end-times (S,), or the generator keys for end-times per input."""
        block, position = divmod(step, _AHEAD)
        if self._block is None or self._block[0] != block:
            self._block = block, self._draw_steps(range(block * _AHEAD, (block + 1) * _AHEAD)).pin_memory()
        return self._block[1][position]

    def _draw_steps(self, steps: range) -> Tensor:
        if self.per_input:
            return torch.stack([CounterGenerator.keys_of(self._seed, step, _DRAWS) for step in steps])
        times = self._network.training_times(1, self._seed, steps, device=torch.device("cpu"))
        return times.expand(len(steps), -1).contiguous()  # a fixed end-time has one row for all steps

    def on_device(self, times_or_keys: Tensor, indices: Tensor | None) -> Tensor:
        """Return the end-times (S,) or (S, B) from what `draw` returned, both on the device; no indices if inputs share them."""
        if indices is None:
            return times_or_keys
        return self._network.training_times(len(indices), self._seed, 0, indices, keys=times_or_keys)
