"""Ties: results must not depend on the order of examples with equal scores."""

from __future__ import annotations

import torch

from ltnode.typing import Tensor


def average_over_ties(ordered_keys: Tensor, values: Tensor) -> Tensor:
    """Replace each of the float64 values (N,) by the mean over all values with the same key; equal keys are adjacent.

    Prefix sums then equal their expectation under a random order of the tied examples.
    """
    _, group, count = torch.unique_consecutive(ordered_keys, return_inverse=True, return_counts=True)
    total = torch.zeros_like(count, dtype=values.dtype).index_add_(0, group, values)
    return (total / count)[group]


def last_of_ties(ordered_keys: Tensor) -> Tensor:
    """Positions (K,) of the last element of each run of equal keys, one per distinct threshold."""
    _, count = torch.unique_consecutive(ordered_keys, return_counts=True)
    return count.cumsum(0) - 1
