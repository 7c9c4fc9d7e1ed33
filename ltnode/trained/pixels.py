"""The rules for pixel values: integers in 0..255 or floats in [0, 1], as the dtype of a tensor or an array says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data.augment import Normalisation
from ltnode.errors import InputError
from ltnode.typing import Num, Tensor

_ROUNDING = 1e-3
"""Distance by which a float pixel may leave [0, 1], for example after an interpolation."""


def check_pixels(raw: Num[Tensor, "B C H W"]) -> None:
    """Require uint8 pixels, or floats in [0, 1]; NaN and infinity are left to the caller.

    Raises:
        InputError: The dtype or the range is another one.
    """
    if raw.dtype == torch.uint8:
        return
    if not raw.is_floating_point():
        raise InputError(f"pixels must be uint8, or floats in [0, 1], not {raw.dtype}")
    low, high = float(raw.min()), float(raw.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise InputError(f"float pixels must lie in [0, 1], not in [{low:.6g}, {high:.6g}]; divide values in 0..255 by 255")


def pixel_tensor(array: NDArray[Any]) -> Num[Tensor, "*shape"]:
    """Convert an array of finite numbers to uint8 pixels (integer dtypes) or float32 pixels (floating-point dtypes).

    Raises:
        InputError: Integers outside 0..255, or floats outside [0, 1].
    """
    if array.dtype.kind == "f":
        raw = torch.from_numpy(array.astype(np.float32))
        check_pixels(raw)
        return raw
    if array.min() < 0 or array.max() > 255:
        raise InputError(f"integer pixels must lie in 0..255, not in {array.min()}..{array.max()}")
    return torch.from_numpy(array.astype(np.uint8))


def pixel_bounds(normalise: Normalisation | None) -> tuple[list[float], list[float]]:
    """Network inputs of a black and of a white pixel, per channel (one entry for all channels without a normalisation)."""
    if normalise is None:
        return [0.0], [1.0]
    constants = list(zip(normalise.mean, normalise.std, strict=True))
    return [(0.0 - mean) / std for mean, std in constants], [(1.0 - mean) / std for mean, std in constants]
