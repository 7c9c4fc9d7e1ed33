"""Dense output: states at arbitrary times as linear combinations of the stages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

import torch

from ltnode.ode.step import Step, Time
from ltnode.ode.tableau import ButcherTableau
from ltnode.typing import Float, Tensor

_CHUNK = 8
"""Steps per matrix product. A larger chunk multiplies more zero weights, a smaller one launches more products."""
_MOST_KEPT = 1024
"""Edges times end-times up to which weights are kept."""


def dense_weights(
    tableau: ButcherTableau, edges: Float[Tensor, "n1 *grid"], times: Float[Tensor, "S *batch"]
) -> Float[Tensor, "S *rest"]:
    """Weights W with ``y(T) = y(edges[0]) + sum_{m,i} W[..., m, i] k_i^(m)``.

    Steps before T contribute their full increment, the step that contains T its interpolant at ``theta = (T - t_m) / h_m``,
    and later steps nothing. A time on an edge belongs to the step that ends there, so that exactly one step determines the
    derivative in T. Equal edges are steps of length zero. The weights are differentiable in the times, and have the shape
    (S, n, stages), or (S, B, n, stages) if edges (n+1, B) or times (S, B) are per sample.
    """
    edges = edges.to(device=times.device, dtype=torch.float64)
    if edges.ndim == 2 and times.ndim == 1:
        times = times[:, None].expand(-1, edges.shape[1])
    t = times.to(torch.float64)[..., None]
    left, right = edges[:-1].movedim(0, -1), edges[1:].movedim(0, -1)
    length = right - left
    divisor = torch.where(length > 0, length, torch.ones_like(length))
    first = torch.arange(length.shape[-1], device=t.device) == 0
    contains = ((t > left) | (first & (t >= left))) & (t <= right)
    theta = torch.where(contains, (t - left) / divisor, (t > right).to(torch.float64))
    coefficients = _dense_table(tableau, t.device)
    powers = torch.stack([theta**p for p in range(1, coefficients.shape[1] + 1)], dim=-1)
    # A step of length zero contains a time only at the start, where the derivative in time is the first stage.
    return torch.where(contains, divisor, length)[..., None] * (powers @ coefficients.mT)


def _dense_table(tableau: ButcherTableau, device: torch.device) -> Tensor:
    """Coefficients of the dense output; cached on CUDA devices, because a captured graph must not copy from the host."""
    if device.type == "cuda" and not torch.compiler.is_compiling():
        return _table_on_device(tableau, device)
    return torch.tensor(tableau.dense, dtype=torch.float64, device=device)


@cache
def _table_on_device(tableau: ButcherTableau, device: torch.device) -> Tensor:
    return torch.tensor(tableau.dense, dtype=torch.float64, device=device)


def combine(base: Tensor, weights: Tensor, stages: Sequence[Tensor]) -> Tensor:
    """``base + sum_j weights[..., j] stages[j]`` for weights (S, J) shared by the batch, or (S, B, J) per sample."""
    weights = weights.to(base.dtype)
    if weights.ndim == 2:
        stacked = torch.stack(tuple(stages))
        states = (weights @ stacked.reshape(len(stages), -1)).reshape(weights.shape[0], *base.shape)
    else:
        stacked = torch.stack(tuple(stages), dim=1)
        flat = stacked.reshape(base.shape[0], len(stages), -1)
        states = torch.bmm(weights.transpose(0, 1), flat).transpose(0, 1).reshape(weights.shape[0], *base.shape)
    if states.dtype != base.dtype:  # under autocast
        return base + states
    return states.add_(base)  # in place: allocating a large result takes as long as the sum


def times_within(times: Tensor, first: Tensor, last: Tensor, closed: bool) -> tuple[Tensor, Tensor]:
    """Mask of the times in (first, last], or in [first, last] if closed, and mask of the rows that contain such a time."""
    t = times.detach().to(torch.float64)
    mask = (t > first) & (t <= last)
    if closed:
        mask = mask | (t == first)
    return mask, (mask.any(dim=1) if mask.ndim == 2 else mask)


def merge_parts(parts: Sequence[tuple[Tensor, Tensor]], n_times: int, y0: Tensor) -> Tensor:
    """States (S, B, ...) from pieces of the trajectory, each with a mask of its times and the states of their rows."""
    out = torch.full((n_times, *y0.shape), float("nan"), dtype=y0.dtype, device=y0.device)
    for mask, states in parts:
        rows = mask.any(dim=1) if mask.ndim == 2 else mask
        shaped = mask[rows].reshape(-1, *mask.shape[1:], *[1] * (out.ndim - mask.ndim))
        out = out.index_put((rows.nonzero().squeeze(1),), torch.where(shaped, states, out[rows]))
    return out


@dataclass
class DenseOutput:
    """Collects accepted steps and computes the states at the requested times.

    Stages are combined and released after every chunk of steps, so a solve without a graph needs memory for one chunk only. A
    solve of a single chunk (``chunk=None``) reads no value of ``times`` and can therefore be compiled or captured.
    """

    tableau: ButcherTableau
    times: Tensor
    chunk: int | None = _CHUNK
    _edges: list[Tensor] = field(default_factory=list)
    _base: Tensor | None = None
    _steps: list[tuple[Tensor, ...]] = field(default_factory=list)
    _parts: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def add(self, left: Time, right: Time, y: Tensor, step: Step) -> None:
        """Add an accepted step from (left, y) to the edge ``right``."""
        if self.chunk is not None and len(self._steps) == self.chunk:
            self._flush()
        if self._base is None:
            self._base = y
            self._edges = [self._as_edge(left)]
        self._steps.append(step.stages)
        # left + h could differ from the edge by rounding, and a time in between would belong to no chunk.
        self._edges.append(self._as_edge(right))

    def result(self, y0: Tensor) -> Tensor:
        """States (S, B, ...) at the requested times; y0 if no step was added."""
        if self._base is None:
            return y0.expand(self.times.shape[0], *y0.shape)
        if not self._parts:
            return self._combine_chunk(self._base, self.times)
        self._flush()
        return merge_parts(self._parts, self.times.shape[0], y0)

    def _as_edge(self, t: Time) -> Tensor:
        return torch.as_tensor(t, dtype=torch.float64, device=self.times.device)

    def _flush(self) -> None:
        """Compute the states at the times inside the current chunk, and release its stages."""
        assert self._base is not None
        mask, rows = times_within(self.times, self._edges[0], self._edges[-1], closed=not self._parts)
        self._parts.append((mask, self._combine_chunk(self._base, self.times[rows])))
        self._base, self._steps, self._edges = None, [], []

    def _combine_chunk(self, base: Tensor, times: Tensor) -> Tensor:
        weights = self._weights(torch.stack(self._edges), times)
        columns: list[Tensor] = []
        stages: list[Tensor] = []
        for m, step in enumerate(self._steps):
            for i, k in enumerate(step):
                column = weights[..., m, i]
                if stages and k is stages[-1]:  # FSAL: the last stage of a step is the first of the next
                    columns[-1] = columns[-1] + column
                elif any(self.tableau.dense[i]):
                    columns.append(column)
                    stages.append(k)
        return combine(base, torch.stack(columns, dim=-1), stages)

    def _weights(self, edges: Float[Tensor, "n1 *grid"], times: Float[Tensor, "S *batch"]) -> Float[Tensor, "S *rest"]:
        # Predictions of a model have the same edges and times again and again, and on a CPU the weights take as long as a layer.
        readable = self.chunk is not None and times.device.type == "cpu" and edges.ndim == times.ndim == 1
        if torch.is_grad_enabled() or not readable or len(edges) * len(times) > _MOST_KEPT:
            return dense_weights(self.tableau, edges, times)
        return _weights_of_values(self.tableau, tuple(edges.tolist()), tuple(times.tolist()))


@lru_cache(maxsize=64)
def _weights_of_values(tableau: ButcherTableau, edges: tuple[float, ...], times: tuple[float, ...]) -> Tensor:
    """`dense_weights` in float64, which nobody may change."""
    with torch.inference_mode(False):
        return dense_weights(tableau, torch.tensor(edges, dtype=torch.float64), torch.tensor(times, dtype=torch.float64))
