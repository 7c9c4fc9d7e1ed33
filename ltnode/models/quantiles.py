"""The quantiles of the posterior at which predictions are made."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from ltnode.endtime import EndTime
from ltnode.models.kept import Kept
from ltnode.ode.replay import traced
from ltnode.typing import Float, Tensor


class KeptQuantiles:
    """Computes the quantiles of an end-time, by default at the levels (s - 1/2)/S.

    On a CPU, the last quantiles of a distribution that all inputs share are kept while its parameters have the same values.
    """

    def __init__(self) -> None:
        self._kept: Kept[Tensor] = Kept()

    def __call__(self, end_time: EndTime, x: Tensor, samples: int) -> Float[Tensor, "S *batch"]:
        """Return the quantiles for inputs x without a graph, (S,), or (S, B) where each input has its own distribution."""
        return self._get(
            end_time, x, samples, lambda: (torch.arange(samples, device=x.device, dtype=torch.float64) + 0.5) / samples
        )

    def at(self, end_time: EndTime, x: Tensor, levels: tuple[float, ...]) -> Float[Tensor, "S *batch"]:
        """Return the quantiles at given levels."""
        return self._get(end_time, x, levels, lambda: torch.tensor(levels, device=x.device, dtype=torch.float64))

    def _get(self, end_time: EndTime, x: Tensor, which: Hashable, levels: Callable[[], Tensor]) -> Tensor:
        def compute() -> Tensor:
            return end_time(x if end_time.amortized else None).quantile(levels()).detach()

        if end_time.amortized or not end_time.learnable or x.device.type != "cpu" or traced(x):
            return compute()
        values = tuple((value.dtype, _hashable(value.tolist())) for value in (*end_time.parameters(), *end_time.buffers()))
        return self._kept.get((end_time,), (end_time.window, end_time.truncate, which, values), compute).clone()


def _hashable(numbers: Any) -> Any:
    return tuple(map(_hashable, numbers)) if isinstance(numbers, list) else numbers
