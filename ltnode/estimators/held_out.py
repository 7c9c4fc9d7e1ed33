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

from ltnode.models import LatentTimeODE, Prediction
from ltnode.objective import Gaussian
from ltnode.typing import Float, Tensor

_PER_DECADE = 24
_DECADES = {"classification": (0, 1), "regression": (-1, 1)}


@dataclass(frozen=True)
class Judgement:
    """Best log-likelihood per example, and the softening that attains it."""

    log_likelihood: float
    softening: float


def judge(prediction: Prediction, y: Tensor) -> Judgement:
    """Find the best softening from 1 (regression: 0.1) to 10, in steps of 10 %, and its log-likelihood.

    Args:
        prediction: Prediction of some inputs.
        y: (B,) labels or targets of these inputs.
    """
    low, high = _DECADES[prediction.task]
    count = _PER_DECADE * (high - low) + 1
    softenings = torch.logspace(low, high, count, dtype=torch.float64, device=y.device)
    log_likelihood = _classification if prediction.task == "classification" else _regression
    values = torch.stack([log_likelihood(prediction, y, s) for s in softenings])
    best = int(values.argmax())
    return Judgement(float(values[best]), float(softenings[best]))


def _classification(prediction: Prediction, y: Tensor, softening: Tensor) -> Float[Tensor, ""]:
    softer = Prediction("classification", prediction.outputs / softening, prediction.times)
    return softer.log_probs.gather(1, y[:, None]).mean()


def _regression(prediction: Prediction, y: Tensor, softening: Tensor) -> Float[Tensor, ""]:
    variance = prediction.std.square() + (softening * prediction.noise_std).square()
    return -0.5 * ((y - prediction.mean).square() / variance + variance.log() + math.log(2 * math.pi)).mean()


@torch.no_grad()
def soften_(model: LatentTimeODE, softening: float) -> None:
    """Apply the softening to the parameters of the model: its linear head, or its noise."""
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.log_std.add_(math.log(softening))
        return
    assert isinstance(model.head, nn.Linear) and model.head.bias is not None
    model.head.weight.div_(softening)
    model.head.bias.div_(softening)
