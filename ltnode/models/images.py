"""Stems, fields, heads and inference networks for images."""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional

from ltnode.models import execution
from ltnode.typing import Float, Tensor

_GROUPS = 32
_STATE_SIDE = 8
"""Largest height and width of the state after a deep stem; that of the paper's stem has 6 or 7."""
_FIRST_WIDTH = 16
"""Channels of the first convolution of a deep stem."""


def norm(width: int) -> nn.GroupNorm:
    """Return a GroupNorm with 32 groups, or with the largest number below that divides the number of channels."""
    return nn.GroupNorm(max(n for n in range(1, _GROUPS + 1) if width % n == 0), width)


class TimeConv2d(nn.Module):
    """3x3 convolution of [t, h], where a constant plane of value t is the first channel.

    Instead of concatenating the plane, the layer adds t times a fixed map: the convolution of a plane of ones with the weights of
    that channel.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width + 1, width, kernel_size=3, padding=1)

    def forward(self, t: Tensor, h: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Apply the convolution at time t (0-dim or (B,))."""
        weight = self.conv.weight
        ones = torch.ones(1, 1, *h.shape[2:], device=h.device, dtype=weight.dtype)
        time_map = functional.conv2d(ones, weight[:, :1], padding=1)
        t = t.to(time_map.dtype)
        shift = t * time_map if t.ndim == 0 else t.reshape(-1, 1, 1, 1) * time_map
        return functional.conv2d(h, weight[:, 1:], self.conv.bias, padding=1) + shift


class ConvField(nn.Module):
    """The paper's field: GN, ReLU, conv[t, .], GN, ReLU, conv[t, .], GN; 75,392 parameters at width 64.

    The last normalisation bounds the size of dh/dt.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(width), TimeConv2d(width)
        self.norm2, self.conv2 = norm(width), TimeConv2d(width)
        self.norm3 = norm(width)

    def forward(self, t: Tensor, h: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        """Compute dh/dt at time t."""
        run = execution.current()
        at_once = run.normed_convolutions(t, h, (self.conv1.conv, self.conv2.conv), (self.norm1, self.norm2, self.norm3))
        if at_once is not None:
            return at_once
        h = self.conv1(t, run.relu_of_norm(self.norm1, h))
        h = self.conv2(t, run.relu_of_norm(self.norm2, h))
        return self.norm3(h)


def down_sampling(channels: int, width: int = 64) -> nn.Sequential:
    """Return the down-sampling block: 28x28 to 6x6, 32x32 to 7x7; no normalisation after the last convolution."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3),
        norm(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 4, stride=2, padding=1),
        norm(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 4, stride=2, padding=1),
    )


def deep_down_sampling(channels: int, width: int, side: int) -> nn.Sequential:
    """Return a deeper down-sampling block for photos: it halves height and width until the larger is at most 8.

    Convolutions with stride 2 have few channels where images are still large: at 224 pixels 16, 32, and then ``width``. As in
    `down_sampling`, there is no normalisation after the last convolution.

    Args:
        channels: Channels of the images.
        width: Channels of the initial state.
        side: Larger side of the images in pixels.
    """
    halvings = max(1, math.ceil(math.log2(side / _STATE_SIDE)))
    widths = [channels, *(min(width, _FIRST_WIDTH << level) for level in range(halvings - 1)), width]
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Conv2d(inner, outer, 3, stride=2, padding=1), norm(outer), nn.ReLU()]
    return nn.Sequential(*layers[:-2])


def pooled(width: int = 64) -> nn.Sequential:
    """Return GN, ReLU and the mean over all positions: (B, width, H, W) to (B, width)."""
    return nn.Sequential(norm(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def classifier(n_classes: int = 10, width: int = 64) -> nn.Sequential:
    """Return the head: pooled features and a linear layer."""
    return nn.Sequential(*pooled(width), nn.Linear(width, n_classes))


def encoder(channels: int, width: int = 64, stem: nn.Sequential | None = None) -> nn.Sequential:
    """Return the inference network on normalised images: a down-sampling block of its own and a linear layer to 2 numbers."""
    return nn.Sequential(*(down_sampling(channels, width) if stem is None else stem), *pooled(width), nn.Linear(width, 2))


def init_paper_(module: nn.Module) -> nn.Module:
    """Initialise convolutions Kaiming-normal (fan out), linear weights N(0, 1e-3^2), biases 0; returns the module."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=1e-3)
            nn.init.zeros_(layer.bias)
    return module
