"""Split-conformal prediction sets: guaranteed coverage from held-out data, for any model."""

from __future__ import annotations

import math
from fractions import Fraction

from ltnode.errors import InputError
from ltnode.metrics._checks import accepts_numpy, check_labelled, check_probs
from ltnode.typing import Bool, Float, Int, Tensor


@accepts_numpy
def conformal_threshold(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], alpha: float = 0.1) -> float:
    """Threshold of the score ``1 - p_y`` for sets that contain the label with probability at least ``1 - alpha``.

    This is the ceil((B + 1)(1 - alpha))-th smallest score of the B held-out examples, or infinity if B is too small for the
    level (every set is then the whole label space). The guarantee is marginal and assumes exchangeable examples.

    >>> import torch
    >>> conformal_threshold(torch.tensor([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]]), torch.tensor([0, 0, 0]), alpha=0.5)
    0.5
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie in (0, 1), for example 0.1 for a coverage of 90 %, not {alpha}")
    wide, labels = check_labelled(probs, labels)
    # Exact decimal arithmetic: in binary, 10 * (1 - 0.1) may round above 9 and cost one rank.
    rank = math.ceil((labels.numel() + 1) * (1 - Fraction(repr(float(alpha)))))
    if rank > labels.numel():
        return math.inf
    scores = 1 - wide.gather(1, labels[:, None]).squeeze(1)
    return scores.sort().values[rank - 1].item()


@accepts_numpy
def prediction_sets(probs: Float[Tensor, "B C"], threshold: int | float) -> Bool[Tensor, "B C"]:
    """Membership (B, C) in the sets of classes with ``1 - p_c <= threshold``; a set may be empty.

    >>> import torch
    >>> prediction_sets(torch.tensor([[0.75, 0.25], [0.5, 0.5]]), 0.5)
    tensor([[ True, False],
            [ True,  True]])
    """
    if math.isnan(threshold):
        raise InputError("threshold must not be nan; pass the value of conformal_threshold")
    return (1 - check_probs("probs", probs)) <= threshold
