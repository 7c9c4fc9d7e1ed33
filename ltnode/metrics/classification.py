"""Error, proper scores and uncertainty of class probabilities."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ltnode.metrics._checks import accepts_numpy, check_labelled, check_probs
from ltnode.typing import Float, Int, Tensor

PROBABILITY_FLOOR = 1e-40
"""The smallest probability in the logarithm of the log-likelihood."""


class UncertaintySplit(NamedTuple):
    """Predictive uncertainty per example in nats; ``total = aleatoric + epistemic``.

    Attributes:
        total: Entropy of the averaged probabilities, (B,).
        aleatoric: Average entropy of the members, (B,).
        epistemic: Mutual information of label and member, (B,), at least 0.
    """

    total: Float[Tensor, " B"]
    aleatoric: Float[Tensor, " B"]
    epistemic: Float[Tensor, " B"]


@accepts_numpy
def error(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Share of examples whose most probable class (the lowest index in a tie) is not the label.

    >>> error(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1]))
    0.5
    """
    wide, labels = check_labelled(probs, labels)
    return (~is_correct(wide, labels)).double().mean().item()


@accepts_numpy
def log_likelihood(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Mean of ``ln max(p_y, 1e-40)`` over the examples, in nats (larger is better).

    >>> round(log_likelihood(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])), 4)
    -0.5108
    """
    wide, labels = check_labelled(probs, labels)
    chosen = wide.gather(1, labels[:, None]).squeeze(1)
    return chosen.clamp(PROBABILITY_FLOOR, 1.0).log().mean().item()


@accepts_numpy
def brier(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Brier score in [0, 2]: mean over the examples of ``sum_c (p_c - [c = y])^2`` (smaller is better).

    >>> round(brier(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])), 4)
    0.37
    """
    wide, labels = check_labelled(probs, labels)
    residual = wide - torch.nn.functional.one_hot(labels, wide.shape[1])
    return residual.square().sum(1).mean().item()


@accepts_numpy
def brier_mean_over_classes(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"]) -> float:
    """Brier score averaged over the C classes: :func:`brier` divided by C.

    >>> round(brier_mean_over_classes(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])), 4)
    0.185
    """
    return brier(probs, labels) / probs.shape[1]


@accepts_numpy
def entropy(probs: Float[Tensor, "*batch C"]) -> Float[Tensor, "*batch"]:
    """Entropy ``-sum_c p_c ln p_c`` of each example in nats, in float64, with ``0 ln 0 = 0``; differentiable.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]]))
    tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    return _entropy(check_probs("probs", probs, ndim=None))


@accepts_numpy
def uncertainty_split(member_probs: Float[Tensor, "S B C"]) -> UncertaintySplit:
    """Split the entropy of an averaged prediction into an aleatoric and an epistemic part.

    With members ``p_s`` and their mean ``p``, the total is ``H(p)``, the aleatoric part ``(1/S) sum_s H(p_s)``, and the
    epistemic part their difference, the mutual information between the label and the member. Use this function for
    probabilities from any source; a `Prediction` of ltnode has the same values as ``entropy``, ``aleatoric`` and ``epistemic``.

    >>> uncertainty_split(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])).epistemic  # two members that disagree with certainty
    tensor([0.6931], dtype=torch.float64)
    """
    wide = check_probs("member_probs", member_probs, ndim=3)
    total = _entropy(wide.mean(0))
    aleatoric = _entropy(wide).mean(0)
    # By Jensen's inequality the difference is negative only due to rounding.
    return UncertaintySplit(total, aleatoric, (total - aleatoric).clamp_min(0))


def is_correct(probs: Tensor, labels: Tensor) -> Tensor:
    """(B,) whether the most probable class (the lowest index in a tie) is the label."""
    best = probs.amax(1, keepdim=True)
    classes = torch.arange(probs.shape[1], device=probs.device)
    # argmax does not specify which of several maxima it returns, and devices differ.
    first = torch.where(probs == best, classes, probs.shape[1]).amin(1)
    return first == labels


def _entropy(wide: Tensor) -> Tensor:
    return torch.special.entr(wide).sum(-1)
