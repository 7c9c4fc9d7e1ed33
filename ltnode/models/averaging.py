"""Averaged weights: the exponential moving average of the weights over the steps of a training.

After n updates with weights w_1 ... w_n and a decay d, the average is

    sum_k (1 - d) d^(n - k) w_k / (1 - d^n),

whose weights sum to 1 from the first update on, so that short trainings do not keep a share of anything but their own weights.
`WeightAverage` is the reference; the captured step updates the same tensors in its own kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from ltnode.errors import ConfigError
from ltnode.typing import Bool, Int, Tensor


class WeightAverage:
    """The average of the parameters of one optimiser.

    The parameters are taken as the optimiser leaves them, before `Model.after_step` clamps them; whoever uses the average clamps
    it in turn.

    Args:
        parameters: The parameters.
        decay: Decay per step, > 0 and < 1.

    Attributes:
        sums: ``sum_k (1 - d) d^(n - k) w_k`` of every parameter.
        count: Number of updates n, on the device of the parameters, because only the device knows which updates were masked.
    """

    def __init__(self, parameters: Iterable[Tensor], decay: float) -> None:
        if not 0 < decay < 1:
            raise ConfigError(f"the decay of averaged weights must be > 0 and < 1, not {decay!r}")
        self.parameters = list(parameters)
        self.decay = float(decay)
        self.sums = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]
        self.count: Int[Tensor, ""] = torch.zeros((), dtype=torch.int64, device=self.parameters[0].device)

    @torch.no_grad()
    def update(self, valid: Bool[Tensor, ""] | None = None) -> None:
        """Add the current parameters, unless a flag on their device is False; nothing is read from the device."""
        if valid is None:
            torch._foreach_lerp_(self.sums, self.parameters, 1 - self.decay)
            self.count += 1
            return
        changes = torch._foreach_sub(self.parameters, self.sums)
        torch._foreach_mul_(changes, valid.to(self.sums[0].dtype) * (1 - self.decay))
        torch._foreach_add_(self.sums, changes)
        self.count += valid

    def averaged(self) -> list[Tensor]:
        """Return the averages; the current parameters before the first update."""
        count = int(self.count)
        if count == 0:
            return [p.detach().clone() for p in self.parameters]
        return [total / (1 - self.decay**count) for total in self.sums]

    @torch.no_grad()
    def apply(self) -> None:
        """Replace the parameters by their averages, in place."""
        for p, value in zip(self.parameters, self.averaged(), strict=True):
            p.copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """Return the state, as a checkpoint stores it."""
        return {"count": self.count, **{str(index): total for index, total in enumerate(self.sums)}}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `tensors` returned."""
        for name, own in self.tensors().items():
            own.copy_(tensors[name])


Averages = Mapping[str, WeightAverage]
"""One average per phase of a model."""


@contextmanager
def swapped_in(averages: Averages) -> Iterator[None]:
    """Use the averages as weights inside the block; afterwards, the trained weights are restored bit for bit."""
    trained = [(p, p.detach().clone()) for average in averages.values() for p in average.parameters]
    for average in averages.values():
        average.apply()
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in trained:
                p.copy_(value)
