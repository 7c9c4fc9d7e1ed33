"""Random numbers for predictions: functions of a seed and a position only, the same on every device and in every batch."""

from __future__ import annotations

import math

import torch

from ltnode.counter_rng import hash_counters, hash_indices, to_unit
from ltnode.typing import Float, Tensor

_HALF_STEP = 2.0**-54


def seeded_uniform(shape: tuple[int, ...], seed: int, stream: int, device: torch.device) -> Float[Tensor, "..."]:
    """Return numbers in (0, 1), float64; element i in row-major order depends on (seed, stream, i) only.

    The first rows of a longer draw therefore equal those of a shorter one. ``stream`` distinguishes different uses of one seed.
    """
    positions = torch.arange(math.prod(shape), device=device).reshape(shape)
    u = to_unit(hash_indices(hash_counters(seed, stream), positions))
    return u.clamp(_HALF_STEP, 1.0 - 2 * _HALF_STEP)


def seeded_normal(shape: tuple[int, ...], seed: int, stream: int, like: Tensor) -> Float[Tensor, "..."]:
    """Return standard normal numbers by inversion of `seeded_uniform`, with the device and dtype of ``like``."""
    return torch.special.ndtri(seeded_uniform(shape, seed, stream, like.device)).to(like.dtype)
