"""The quantiles of the posterior at which predictions are made."""

from __future__ import annotations

from typing import Any

import torch

from ltnode.endtime import EndTime
from ltnode.ode.replay import traced
from ltnode.typing import Float, Tensor


class KeptQuantiles:
    """Computes the quantiles of an end-time at the levels (s - 1/2)/S.

    On a CPU, the last quantiles of a distribution that all inputs share are kept while its parameters have the same values:
    inverting the cdf takes longer than a layer of a small network.
    """

    def __init__(self) -> None:
        self._kept: tuple[Any, Tensor] | None = None  # replaced as a whole, so that threads never see a part of it

    def __call__(self, end_time: EndTime, x: Tensor, samples: int) -> Float[Tensor, "S *batch"]:
        """Return the quantiles for inputs x without a graph, (S,), or (S, B) where each input has its own distribution."""
        if end_time.amortized or not end_time.learnable or x.device.type != "cpu" or traced(x):
            return _quantiles(end_time, x, samples)
        values = (*end_time.parameters(), *end_time.buffers())
        key = (end_time, end_time.window, end_time.truncate, samples, *((value.dtype, value.tolist()) for value in values))
        kept = self._kept
        if kept is None or kept[0] != key:
            kept = self._kept = (key, _quantiles(end_time, x, samples))
        return kept[1].clone()

    def __deepcopy__(self, memo: dict[int, Any]) -> KeptQuantiles:
        return KeptQuantiles()


def _quantiles(end_time: EndTime, x: Tensor, samples: int) -> Tensor:
    levels = (torch.arange(samples, device=x.device, dtype=torch.float64) + 0.5) / samples
    return end_time(x if end_time.amortized else None).quantile(levels).detach()
