"""How held-out rows determine when training stops, and how confident its predictions are.

A network that has begun to memorise still ranks well but is overconfident. An epoch is therefore judged by its held-out
log-likelihood at the best *softening* s: logits are divided by s, or the noise standard deviation is multiplied by s. Logits are
never sharpened (s >= 1), since a small held-out part without an error would ask for certainty. The noise may shrink (s >= 0.1),
because it starts at the spread of the targets and follows the decreasing residuals only slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from ltnode.estimators.networks import TableModel, networks_of
from ltnode.models import Prediction
from ltnode.objective import Gaussian
from ltnode.typing import Float, Tensor

_PER_DECADE = 24
_DECADES = {"classification": (0, 1), "regression": (-1, 1)}


@dataclass(frozen=True)
class Judgement:
    """Best log-likelihood per example, and the softening that attains it: 0-dim, or one for each of several targets (K,)."""

    log_likelihood: float
    softening: Tensor


def judge(prediction: Prediction, y: Tensor, weights: Float[Tensor, " B"] | None = None) -> Judgement:
    """Find the best softening from 1 (regression: 0.1) to 10, in steps of 10 %, and its log-likelihood.

    Args:
        prediction: Prediction of some inputs.
        y: (B,) labels or targets, or (B, K) targets, of these inputs.
        weights: How many examples each input counts for; None counts each once.
    """
    low, high = _DECADES[prediction.task]
    count = _PER_DECADE * (high - low) + 1
    softenings = torch.logspace(low, high, count, dtype=torch.float64, device=y.device)
    values = torch.stack([_average(log_likelihoods(prediction, y, s), weights) for s in softenings])
    best, places = values.max(dim=0)
    return Judgement(float(best.sum()), softenings[places])


def log_likelihoods(prediction: Prediction, y: Tensor, softening: Tensor | float = 1.0) -> Float[Tensor, "B *targets"]:
    """Log-likelihood of every example, and of each of several targets, at some softening."""
    if prediction.task == "classification":
        softer = Prediction("classification", prediction.outputs / softening, prediction.times)
        return softer.log_probs.gather(1, y[:, None]).squeeze(1)
    variance = prediction.std.square() + (softening * prediction.noise_std).square()
    return -0.5 * ((y - prediction.mean).square() / variance + variance.log() + math.log(2 * math.pi))


def clearly_better(values: Tensor, reference: Tensor, weights: Float[Tensor, " B"] | None = None) -> bool:
    """Whether log-likelihoods are higher than those of a reference by more than the standard error of the mean difference."""
    mean, difference, share = _compared(values, reference, weights)
    return mean > float((share * (difference - mean)).square().sum().sqrt())


def mean_difference(values: Tensor, reference: Tensor, weights: Float[Tensor, " B"] | None = None) -> float:
    """By how much the mean of log-likelihoods is higher than that of a reference."""
    return _compared(values, reference, weights)[0]


def _compared(values: Tensor, reference: Tensor, weights: Float[Tensor, " B"] | None) -> tuple[float, Tensor, Tensor]:
    """The mean difference, the difference of every row summed over its targets, and the share of every row in the mean."""
    difference = (values - reference).reshape(len(values), -1).sum(dim=1)
    share = torch.ones_like(difference) if weights is None else weights
    share = share / share.sum()
    return float((share * difference).sum()), difference, share


def _average(values: Float[Tensor, "B *targets"], weights: Float[Tensor, " B"] | None) -> Float[Tensor, "*targets"]:
    if weights is None:
        return values.mean(dim=0)
    return torch.tensordot(weights / weights.sum(), values, dims=1)


@torch.no_grad()
def soften_(model: TableModel, softening: Tensor) -> None:
    """Apply the softening to the parameters of every network: its linear head, or its noise."""
    for network in networks_of(model):
        if isinstance(network.likelihood, Gaussian):
            network.likelihood.log_std.add_(softening.log())
            continue
        assert isinstance(network.head, nn.Linear) and network.head.bias is not None
        network.head.weight.div_(softening)
        network.head.bias.div_(softening)
