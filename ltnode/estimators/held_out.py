"""What a held-out part of the table decides: when to stop, and how sure to be.

A network that has begun to memorise still ranks well but is too sure. So an epoch is judged by its held-out log-likelihood at the
best *softening* s >= 1: logits divided by s, or noise standard deviation times s. The best epoch's softening is then built into
the model. It never makes a model surer than training left it: a small held-out part without a mistake would do that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn

from ltnode.models import LatentTimeODE, Prediction
from ltnode.objective import Gaussian
from ltnode.typing import Float, Tensor

_LARGEST = 10.0
_CANDIDATES = 24


@dataclass(frozen=True)
class Judgement:
    """Held-out log-likelihood per example, and the softening that attains it."""

    log_likelihood: float
    softening: float


def judge(prediction: Prediction, y: Tensor) -> Judgement:
    """The best softening among 24 between 1 and 10, equal steps in the logarithm, and its log-likelihood.

    Args:
        prediction: For the held-out inputs.
        y: (B,) labels or targets.
    """
    softenings = torch.logspace(0.0, math.log10(_LARGEST), _CANDIDATES, dtype=torch.float64, device=y.device)
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
    """Build the softening into the model's own parameters: its linear head, or its noise."""
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.log_std.add_(math.log(softening))
        return
    assert isinstance(model.head, nn.Linear) and model.head.bias is not None
    model.head.weight.div_(softening)
    model.head.bias.div_(softening)
