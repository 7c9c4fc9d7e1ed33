"""Stems, fields, heads and inference networks for vectors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import nn

from ltnode.typing import Float, Tensor


def prepend_time(t: Tensor, h: Float[Tensor, "B D"]) -> Float[Tensor, "B D1"]:
    """Concatenate [t, h]; t is 0-dim or (B,)."""
    column = t.to(h.dtype).expand(h.shape[0]).unsqueeze(1)
    return torch.cat([column, h], dim=1)


class TimeConcat(nn.Module):
    """A field made of layers whose input is [t, h]."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, t: Tensor, h: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Compute dh/dt at time t."""
        return self.layers(prepend_time(t, h))


class TimeMLP(TimeConcat):
    """Smooth field ``f(t, h) = W_n act(... act(W_1 [t, h]))``, without normalisation, so that samples do not interact."""

    def __init__(self, width: int, hidden: Sequence[int] = (64, 64), activation: type[nn.Module] = nn.Tanh) -> None:
        super().__init__(mlp([width + 1, *hidden, width], activation))


def mlp(sizes: Sequence[int], activation: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Return linear layers with an activation between them and none after the last."""
    layers: list[nn.Module] = []
    for m, (a, b) in enumerate(itertools.pairwise(sizes)):
        layers.append(nn.Linear(a, b))
        if m < len(sizes) - 2:
            layers.append(activation())
    return nn.Sequential(*layers)


def linear_norm_relu(sizes: Sequence[int], relu_first: Sequence[int] = ()) -> nn.Sequential:
    """Return the paper's 1-D block, Linear, BatchNorm, ReLU per layer; ``relu_first`` names layers with ReLU before the norm."""
    layers: list[nn.Module] = []
    for m, (a, b) in enumerate(itertools.pairwise(sizes)):
        norm, relu = nn.BatchNorm1d(b), nn.ReLU()
        layers += [nn.Linear(a, b), relu, norm] if m in relu_first else [nn.Linear(a, b), norm, relu]
    return nn.Sequential(*layers)


def paper_stem() -> nn.Module:
    """Return the input block of the 1-D experiments, 28,600 parameters; its second layer has ReLU before the norm."""
    return linear_norm_relu([1, 50, 100, 150, 50], relu_first=(1,))


def paper_field() -> nn.Module:
    """Return the NODE block of the 1-D experiments, 41,300 parameters; it ends with a ReLU, so dh/dt >= 0."""
    return TimeConcat(linear_norm_relu([51, 100, 150, 100, 50]))


def paper_encoder() -> nn.Module:
    """Return the inference network of the 1-D experiments, 2,952 parameters."""
    return nn.Sequential(linear_norm_relu([1, 50, 50], relu_first=(0, 1)), nn.Linear(50, 2))


def init_paper_(module: nn.Module) -> nn.Module:
    """Initialise linear weights N(0, 0.1^2) and biases 0, as in the paper's 1-D code; returns the module."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.zeros_(layer.bias)
    return module
