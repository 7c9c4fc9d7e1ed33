"""The one-dimensional data with a gap: where the training inputs lie, and the function that generated the targets."""

from __future__ import annotations

import torch

from ltnode.typing import Bool, Float, Tensor

REGIONS = ((-1.0, -0.7), (0.5, 1.0))
"""Intervals that contain the training inputs."""
GAP = (-0.5, 0.5)
"""Interval without data in which the paper measures uncertainty."""
NOISE = 0.1
"""Standard deviation of the noise of the targets."""


def in_gap(x: Float[Tensor, "n 1"]) -> Bool[Tensor, " n"]:
    """Whether each input lies strictly inside the gap."""
    return (x[:, 0] > GAP[0]) & (x[:, 0] < GAP[1])


def on_data(x: Float[Tensor, "n 1"]) -> Bool[Tensor, " n"]:
    """Whether each input lies in an interval with data."""
    return torch.stack([(x[:, 0] >= low) & (x[:, 0] <= high) for low, high in REGIONS]).any(dim=0)


def truth(x: Float[Tensor, "n 1"]) -> Float[Tensor, " n"]:
    """The noiseless targets."""
    return torch.cos(4 * x[:, 0] + 0.8)
