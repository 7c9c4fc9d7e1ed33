"""The convolutional field for many evaluations with the same weights, on a CPU and without a graph.

A `TimeConv2d` computes ``conv(h, W) + b + t M``, where the map M is the convolution of a plane of ones with the weights of the
time channel, and W is a part of its parameter that is not contiguous. Both depend on the weights alone. They are prepared once
for a prediction, which evaluates the field at least seven times.

One or two inputs are computed in the memory format "channels last", in which such convolutions take two thirds of the time; for
more inputs its slower group norms would take what is gained.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional

from ltnode.models.images import ConvField, TimeConv2d
from ltnode.ode.replay import traced
from ltnode.typing import Float, Tensor

_MOST_CHANNELS_LAST = 2
"""Largest batch in this memory format; more inputs do not gain from it."""


class _Layer(NamedTuple):
    """A norm, and the convolution after it."""

    norm: nn.GroupNorm
    weight: Tensor
    bias: Tensor | None
    time_map: Tensor


class PreparedField:
    """``field(t, h)`` of a `ConvField`, equal up to rounding; the caller must not change the weights in between."""

    def __init__(self, field: nn.Module) -> None:
        assert isinstance(field, ConvField)
        self._field = field
        self._layers: tuple[_Layer, ...] = ()
        self._prepared_for: tuple[torch.Size, torch.memory_format] | None = None

    def __call__(self, t: Tensor, h: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Compute dh/dt at time t."""
        if t.ndim > 0:  # one time per sample: only where samples are solved with steps of their own
            derivative: Tensor = self._field(t, h)
            return derivative
        layout = torch.channels_last if len(h) <= _MOST_CHANNELS_LAST else torch.contiguous_format
        if self._prepared_for != (h.shape[2:], layout):
            self._prepared_for = (h.shape[2:], layout)
            pairs = ((self._field.norm1, self._field.conv1), (self._field.norm2, self._field.conv2))
            self._layers = tuple(_prepared(norm, conv, h.shape[2:], layout) for norm, conv in pairs)
        h = h.contiguous(memory_format=layout)
        for norm, weight, bias, time_map in self._layers:
            normed = functional.group_norm(h, norm.num_groups, norm.weight, norm.bias, norm.eps)
            h = functional.conv2d(normed.relu_(), weight, bias, padding=1).add_(t * time_map)
        last = self._field.norm3
        return functional.group_norm(h, last.num_groups, last.weight, last.bias, last.eps)


def _prepared(norm: nn.GroupNorm, layer: TimeConv2d, size: torch.Size, layout: torch.memory_format) -> _Layer:
    weight = layer.conv.weight.detach()
    ones = torch.ones(1, 1, *size, dtype=weight.dtype)
    time_map = functional.conv2d(ones, weight[:, :1], padding=1)
    return _Layer(
        norm, weight[:, 1:].contiguous(memory_format=layout), layer.conv.bias, time_map.contiguous(memory_format=layout)
    )


def can_be_prepared(field: nn.Module, h: Tensor) -> bool:
    """Whether a field is a plain `ConvField` on a CPU, whose layers nobody watches or differentiates."""
    if type(field) is not ConvField or h.device.type != "cpu" or h.ndim != 4 or torch.is_grad_enabled() or traced(h):
        return False
    if torch.is_autocast_enabled("cpu") or any(p.dtype != h.dtype for p in field.parameters()):
        return False
    plain = all(type(layer) is TimeConv2d and type(layer.conv) is nn.Conv2d for layer in (field.conv1, field.conv2))
    if not plain or not all(type(norm) is nn.GroupNorm for norm in (field.norm1, field.norm2, field.norm3)):
        return False
    return not any(m._forward_hooks or m._forward_pre_hooks for m in field.modules())
