"""The quantiles of the posterior at which predictions are made."""

from __future__ import annotations

from typing import Any

import torch

from ltnode.endtime import EndTime
from ltnode.models.kept import Kept
from ltnode.ode.replay import traced
from ltnode.typing import Float, Tensor


class KeptQuantiles:
    """Computes the quantiles of an end-time at the levels (s - 1/2)/S.

    On a CPU, the last quantiles of a distribution that all inputs share are kept while its parameters have the same values.
    """

    def __init__(self) -> None:
        self._kept: Kept[Tensor] = Kept()

    def __call__(self, end_time: EndTime, x: Tensor, samples: int) -> Float[Tensor, "S *batch"]:
        """Return the quantiles for inputs x without a graph, (S,), or (S, B) where each input has its own distribution."""
        if end_time.amortized or not end_time.learnable or x.device.type != "cpu" or traced(x):
            return _quantiles(end_time, x, samples)
        values = tuple((value.dtype, _hashable(value.tolist())) for value in (*end_time.parameters(), *end_time.buffers()))
        key = (end_time.window, end_time.truncate, samples, values)
        return self._kept.get((end_time,), key, lambda: _quantiles(end_time, x, samples)).clone()


def _quantiles(end_time: EndTime, x: Tensor, samples: int) -> Tensor:
    levels = (torch.arange(samples, device=x.device, dtype=torch.float64) + 0.5) / samples
    return end_time(x if end_time.amortized else None).quantile(levels).detach()


def _hashable(numbers: Any) -> Any:
    return tuple(map(_hashable, numbers)) if isinstance(numbers, list) else numbers
