"""Accuracy, proper scores and uncertainty of class probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ltnode.metrics._checks import check_labels, check_probs
from ltnode.typing import Float, Int, Tensor

PROBABILITY_FLOOR = 1e-40
"""The smallest probability that enters a logarithm of the log-likelihood."""


class UncertaintySplit(NamedTuple):
    """Predictive uncertainty per example in nats; ``total = aleatoric + epistemic``.

    Attributes:
        total: (B,) entropy of the averaged probabilities.
        aleatoric: (B,) average of the members' entropies.
        epistemic: (B,) mutual information of label and member, at least 0.
    """

    total: Float[Tensor, " B"]
    aleatoric: Float[Tensor, " B"]
    epistemic: Float[Tensor, " B"]


def error(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Share of examples whose most probable class is not the label.

    Among equally probable classes the lowest index is the prediction.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.

    Returns:
        The error in [0, 1].
    """
    wide = check_probs("probs", probs)
    labels = check_labels(labels, wide)
    return (~is_correct(wide, labels)).double().mean().item()


def log_likelihood(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Mean of ``ln max(p_y, 1e-40)`` over the examples, in nats (larger is better).

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.

    Returns:
        The mean log-likelihood in [-92.1, 0].
    """
    wide = check_probs("probs", probs)
    labels = check_labels(labels, wide)
    chosen = wide.gather(1, labels[:, None]).squeeze(1)
    return chosen.clamp(PROBABILITY_FLOOR, 1.0).log().mean().item()


def brier(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Brier score: mean over examples of ``sum_c (p_c - [c = y])^2`` (smaller is better).

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.

    Returns:
        The score in [0, 2].
    """
    wide = check_probs("probs", probs)
    labels = check_labels(labels, wide)
    residual = wide - torch.nn.functional.one_hot(labels, wide.shape[1])
    return residual.square().sum(1).mean().item()


def brier_mean_over_classes(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Brier score averaged over the classes too: :func:`brier` divided by C.

    Args:
        probs: (B, C) probabilities.
        labels: (B,) class indices.

    Returns:
        The score in [0, 2 / C].
    """
    return brier(probs, labels) / probs.shape[1]


def entropy(probs: Float[Tensor, "*batch C"]) -> Float[Tensor, "*batch"]:
    """Entropy ``-sum_c p_c ln p_c`` per example in nats, with ``0 ln 0 = 0``; differentiable.

    Args:
        probs: (..., C) probabilities.

    Returns:
        (...,) float64 entropies in [0, ln C].
    """
    return _entropy(check_probs("probs", probs, ndim=None))


def uncertainty_split(member_probs: Float[Tensor, "S B C"]) -> UncertaintySplit:
    """Split the entropy of an averaged prediction into its aleatoric and its epistemic part.

    With members ``p_s`` and their mean ``p``: total ``H(p)``, aleatoric ``(1/S) sum_s H(p_s)``, epistemic
    ``H(p) - (1/S) sum_s H(p_s)``, the mutual information between the label and the member.

    Args:
        member_probs: (S, B, C) probabilities of S members (for instance at S end-times).

    Returns:
        Three float64 tensors of shape (B,), in nats.
    """
    wide = check_probs("member_probs", member_probs, ndim=3)
    total = _entropy(wide.mean(0))
    aleatoric = _entropy(wide).mean(0)
    # Jensen's inequality makes the difference non-negative; only rounding can push it below zero.
    return UncertaintySplit(total, aleatoric, (total - aleatoric).clamp_min(0))


def is_correct(probs: Tensor, labels: Tensor) -> Tensor:
    """(B,) whether the most probable class (the lowest index among equals) is the label."""
    best = probs.amax(1, keepdim=True)
    classes = torch.arange(probs.shape[1], device=probs.device)
    # argmax does not promise which of several maxima it returns, and devices differ.
    first = torch.where(probs == best, classes, probs.shape[1]).amin(1)
    return first == labels


def _entropy(wide: Tensor) -> Tensor:
    return torch.special.entr(wide).sum(-1)
