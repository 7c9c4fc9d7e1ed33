"""Prediction intervals with conformal coverage, from rows that neither training nor any choice has seen.

The score of a calibration row is ``|y - mean| / std``. The interval of a new row is ``mean +- q std``, where q is the k-th
smallest of the n scores, k = ceil((n + 1) (1 - alpha)). If the new row and the calibration rows are exchangeable, the rank of its
score is uniform, and the interval holds its target with a probability of at least 1 - alpha, and of at most
1 - alpha + 1 / (n + 1) where scores do not tie, however wrong the model is (Papadopoulos et al. 2002; Lei et al. 2018).
"""

from __future__ import annotations

import math

import numpy as np

from ltnode.errors import InputError
from ltnode.estimators.uncertainty import FloatArray


def conformal_scores(y: FloatArray, mean: FloatArray, std: FloatArray) -> FloatArray:
    """Scores of calibration rows, sorted: (n,) for one target, (n, K) sorted by column for K targets."""
    return np.sort(np.abs(y - mean) / std, axis=0)


def conformal_factor(scores: FloatArray, alpha: float) -> float | FloatArray:
    """How many standard deviations an interval reaches to either side; (K,) for the K > 1 targets of the scores.

    Raises:
        InputError: ``alpha`` is not between 0 and 1, or too small for the number of scores.
    """
    n = len(scores)
    if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number) or not 0 < alpha < 1:
        raise InputError(f"alpha must be a number between 0 and 1, the share of targets outside of their interval, not {alpha!r}")
    # Without the tolerance, rounding makes 20 * (1 - 0.05) larger than 19.
    place = math.ceil((n + 1) * (1 - alpha) - 1e-9)
    if place > n:
        raise InputError(
            f"alpha must be at least 1 / (n + 1) = {1 / (n + 1):.4g} with n = {n} calibration rows, not {alpha:g}; "
            "fit with a larger calibration_fraction for smaller values"
        )
    return float(scores[place - 1]) if scores.ndim == 1 else scores[place - 1]
