"""Exchangeable examples: equal scores must give the same number in whatever order the examples come."""

from __future__ import annotations

import torch

from ltnode.typing import Tensor


def average_over_ties(ordered_keys: Tensor, values: Tensor) -> Tensor:
    """Replace each value by the mean over all values of equal key.

    Sums over a prefix then equal their expectation under a random order of the tied examples.

    Args:
        ordered_keys: (N,) keys, equal ones adjacent.
        values: (N,) float64 values.

    Returns:
        (N,) float64.
    """
    _, group, count = torch.unique_consecutive(ordered_keys, return_inverse=True, return_counts=True)
    total = torch.zeros_like(count, dtype=values.dtype).index_add_(0, group, values)
    return (total / count)[group]


def last_of_ties(ordered_keys: Tensor) -> Tensor:
    """(K,) positions of the last element of each run of equal keys: the distinct thresholds."""
    _, count = torch.unique_consecutive(ordered_keys, return_counts=True)
    return count.cumsum(0) - 1
