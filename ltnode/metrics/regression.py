"""Scores of Gaussian predictions. All arguments must have the same shape; there is no broadcasting."""

from __future__ import annotations

import math

import torch

from ltnode.errors import InputError
from ltnode.metrics._checks import accepts_numpy, check_positive, check_same_shape
from ltnode.typing import Float, Tensor

VARIANCE_FLOOR = 1e-12
"""The smallest variance in the logarithm of :func:`gaussian_entropy`."""


@accepts_numpy
def rmse(mean: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"]) -> float:
    """Root mean squared error, in the units of the target.

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0]))
    1.0
    """
    mean, target = check_same_shape(mean=mean, target=target)
    return (mean - target).square().mean().sqrt().item()


@accepts_numpy
def gaussian_nll(mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"]) -> float:
    """Mean of ``0.5 ln(2 pi std^2) + (target - mean)^2 / (2 std^2)``, in nats (smaller is better).

    >>> round(gaussian_nll(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([1.0])), 4)
    1.4189
    """
    mean, std, target = check_same_shape(mean=mean, std=std, target=target)
    z = (target - mean) / check_positive("std", std)
    return (0.5 * z.square() + std.log() + 0.5 * math.log(2 * math.pi)).mean().item()


@accepts_numpy
def crps_gaussian(mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"]) -> float:
    """Mean continuous ranked probability score of Gaussian predictions (Gneiting and Raftery, 2007).

    With ``z = (target - mean) / std`` it is ``std [z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)]``, in the units of the target
    (smaller is better). As std tends to 0 it becomes the absolute error.

    >>> round(crps_gaussian(torch.tensor([0.0]), torch.tensor([1.0]), torch.tensor([1.0])), 4)
    0.6024
    """
    mean, std, target = check_same_shape(mean=mean, std=std, target=target)
    z = (target - mean) / check_positive("std", std)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    score = std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    return score.mean().item()


@accepts_numpy
def interval_coverage(
    mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"], level: float = 0.95
) -> float:
    """Share of targets inside the central Gaussian interval of probability ``level``; equal to it if well calibrated.

    >>> interval_coverage(torch.zeros(2), torch.ones(2), torch.tensor([1.9, 2.0]))
    0.5
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie in (0, 1), for example 0.95 for the 95 % interval, not {level}")
    mean, std, target = check_same_shape(mean=mean, std=std, target=target)
    half_width = torch.special.ndtri(std.new_tensor(0.5 + 0.5 * level)) * check_positive("std", std)
    return ((target - mean).abs() <= half_width).double().mean().item()


@accepts_numpy
def gaussian_entropy(variance: Float[Tensor, "*shape"]) -> float:
    """Mean differential entropy ``0.5 ln(2 pi e max(variance, 1e-12))`` in nats; negative for std below about 0.242.

    >>> round(gaussian_entropy(torch.tensor([1.0])), 4)
    1.4189
    """
    (variance,) = check_same_shape(variance=variance)
    if bool((variance < 0).any()):
        raise InputError(f"variance must not be negative, but the smallest value is {variance.min().item():.6g}")
    return (0.5 * (2 * math.pi * math.e * variance.clamp_min(VARIANCE_FLOOR)).log()).mean().item()
