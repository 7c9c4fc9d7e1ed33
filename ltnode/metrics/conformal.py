"""Split-conformal prediction sets: a guaranteed coverage from held-out data, whatever the model."""

from __future__ import annotations

import math
from fractions import Fraction

from ltnode.errors import InputError
from ltnode.metrics._checks import check_labels, check_probs
from ltnode.typing import Bool, Float, Int, Tensor


def conformal_threshold(probs: Float[Tensor, "B C"], labels: Int[Tensor, " B"], alpha: float = 0.1) -> float:
    """Threshold of the score ``1 - p_y`` for sets that hold the label with probability at least ``1 - alpha``.

    The ceil((B + 1)(1 - alpha))-th smallest score of the B held-out examples; infinite when B is too small for the
    level (every set is then the whole label space). The guarantee is marginal, for exchangeable examples.

    Args:
        probs: (B, C) probabilities on held-out data.
        labels: (B,) class indices.
        alpha: allowed share of sets without the label, in (0, 1).

    Returns:
        The threshold for :func:`prediction_sets`.
    """
    if not 0 < alpha < 1:
        raise InputError(f"alpha must lie in (0, 1), got {alpha}: 0.1 asks for a coverage of 90 %.")
    wide = check_probs("probs", probs)
    labels = check_labels(labels, wide)
    # alpha as the decimal it was written: in binary, 10 * (1 - 0.1) may round above 9 and cost one rank.
    rank = math.ceil((labels.numel() + 1) * (1 - Fraction(repr(float(alpha)))))
    if rank > labels.numel():
        return math.inf
    scores = 1 - wide.gather(1, labels[:, None]).squeeze(1)
    return scores.sort().values[rank - 1].item()


def prediction_sets(probs: Float[Tensor, "B C"], threshold: int | float) -> Bool[Tensor, "B C"]:
    """The classes with ``1 - p_c <= threshold`` of each example; a set may be empty.

    Args:
        probs: (B, C) probabilities.
        threshold: from :func:`conformal_threshold`.

    Returns:
        (B, C) membership.
    """
    if math.isnan(threshold):
        raise InputError("threshold is nan: pass the value of conformal_threshold.")
    return (1 - check_probs("probs", probs)) <= threshold
