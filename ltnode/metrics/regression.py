"""Scores of Gaussian predictions. Every argument has one common shape: nothing is broadcast."""

from __future__ import annotations

import math

import torch

from ltnode.errors import InputError
from ltnode.metrics._checks import check_positive, check_same_shape
from ltnode.typing import Float, Tensor

VARIANCE_FLOOR = 1e-12
"""The smallest variance that enters :func:`gaussian_entropy`."""


def rmse(mean: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"]) -> float:
    """Root of the mean squared difference, in the units of the target.

    Args:
        mean: predictions.
        target: observed values, same shape.

    Returns:
        The error, at least 0.
    """
    mean, target = check_same_shape(mean=mean, target=target)
    return (mean - target).square().mean().sqrt().item()


def gaussian_nll(mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"]) -> float:
    """Mean of ``0.5 ln(2 pi std^2) + (target - mean)^2 / (2 std^2)``, in nats (smaller is better).

    Args:
        mean: predicted means.
        std: predicted standard deviations, positive.
        target: observed values.

    Returns:
        The negative log-likelihood per point.
    """
    mean, std, target = check_same_shape(mean=mean, std=std, target=target)
    z = (target - mean) / check_positive("std", std)
    return (0.5 * z.square() + std.log() + 0.5 * math.log(2 * math.pi)).mean().item()


def crps_gaussian(mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"]) -> float:
    """Mean continuous ranked probability score of Gaussian predictions (Gneiting and Raftery, 2007).

    With ``z = (target - mean) / std``: ``std [z (2 Phi(z) - 1) + 2 phi(z) - 1 / sqrt(pi)]``, in the units of the target
    (smaller is better; the absolute error as std tends to 0).

    Args:
        mean: predicted means.
        std: predicted standard deviations, positive.
        target: observed values.

    Returns:
        The score, at least 0.
    """
    mean, std, target = check_same_shape(mean=mean, std=std, target=target)
    z = (target - mean) / check_positive("std", std)
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    score = std * (z * torch.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    return score.mean().item()


def interval_coverage(
    mean: Float[Tensor, "*shape"], std: Float[Tensor, "*shape"], target: Float[Tensor, "*shape"], level: float = 0.95
) -> float:
    """Share of targets inside the central Gaussian interval of probability ``level``, ends included.

    Args:
        mean: predicted means.
        std: predicted standard deviations, positive.
        target: observed values.
        level: nominal probability in (0, 1); a calibrated prediction covers this share.

    Returns:
        The share in [0, 1].
    """
    if not 0 < level < 1:
        raise InputError(f"level must lie in (0, 1), got {level}: 0.95 asks for the 95 % interval.")
    mean, std, target = check_same_shape(mean=mean, std=std, target=target)
    half_width = torch.special.ndtri(std.new_tensor(0.5 + 0.5 * level)) * check_positive("std", std)
    return ((target - mean).abs() <= half_width).double().mean().item()


def gaussian_entropy(variance: Float[Tensor, "*shape"]) -> float:
    """Mean over points of the differential entropy ``0.5 ln(2 pi e max(variance, 1e-12))``, in nats.

    Args:
        variance: predicted variances, for instance on the grid points of an interval without data.

    Returns:
        The mean entropy; negative below a standard deviation of about 0.242.
    """
    (variance,) = check_same_shape(variance=variance)
    if bool((variance < 0).any()):
        raise InputError(f"variance must not be negative, got a smallest value of {variance.min().item():.6g}.")
    return (0.5 * (2 * math.pi * math.e * variance.clamp_min(VARIANCE_FLOOR)).log()).mean().item()
