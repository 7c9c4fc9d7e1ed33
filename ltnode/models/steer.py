"""STEER: a plain neural ODE whose end-time is jittered while training.

Ghosh, Behl, Dupont, Torr and Namboodiri, "STEER: Simple Temporal Regularization For Neural ODEs", NeurIPS 2020.
"""

from __future__ import annotations

import torch

from ltnode.counter_rng import CounterGenerator
from ltnode.endtime import EndTime, FixedTime
from ltnode.errors import InputError
from ltnode.typing import Tensor


class SteerTime(FixedTime):
    """T ~ Uniform(t - spread, t + spread) in training, T = t in prediction.

    Args:
        t: End-time of predictions, positive and finite.
        spread: Half the width of the training interval, > 0 and < t.
    """

    def __init__(self, t: float = 1.0, spread: float = 0.5) -> None:
        super().__init__(t)
        if not isinstance(spread, int | float) or not 0.0 < spread < t:
            raise InputError(f"spread must be > 0 and < t = {t:g}, so that every end-time is positive, not {spread!r}")
        self.window = (t - spread, t + spread)

    def _window_times(
        self, shape: tuple[int, ...], scheme: str, generator: torch.Generator | CounterGenerator | None, device: torch.device
    ) -> Tensor:
        return EndTime._window_times(self, shape, scheme, generator, device)

    def extra_repr(self) -> str:
        """Show the end-time and the training interval."""
        low, high = self.window
        return f"t={float(self.get_buffer('t')):g}, training window=({low:g}, {high:g})"
