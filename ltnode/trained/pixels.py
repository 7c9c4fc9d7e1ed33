"""The rules for pixel values, shared by arrays in memory, input files and requests to the server.

A pixel is an integer in 0..255 or a float in [0, 1]. The dtype of a tensor or an array says which of the two applies. Plain
numbers, such as those of a JSON request, have no dtype, so their values decide.
"""

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


def unit_pixels(numbers: NDArray[np.floating[Any]]) -> tuple[NDArray[np.floating[Any]], bool]:
    """Scale pixels without a dtype to [0, 1]: numbers in [0, 1] are unchanged, whole numbers up to 255 are divided by 255.

    Args:
        numbers: The finite values of one image.

    Returns:
        The scaled values, and whether they were read as 0..255.

    Raises:
        InputError: The values are neither.
    """
    low, high = float(numbers.min()), float(numbers.max())
    if low >= 0 and high <= 1:
        return numbers, False
    if low < 0 or high > 255 or not (numbers == np.floor(numbers)).all():
        fractions = "" if low < 0 or high > 255 else ", some of which are not whole"
        raise InputError(
            f"pixels must be whole numbers in 0..255 or numbers in [0, 1], not numbers from {low:.6g} to {high:.6g}{fractions}"
        )
    return numbers.astype(np.float32) / np.float32(255), True


def pixel_bounds(normalise: Normalisation | None) -> tuple[list[float], list[float]]:
    """Network inputs of a black and of a white pixel, per channel (one entry for all channels without a normalisation)."""
    if normalise is None:
        return [0.0], [1.0]
    constants = list(zip(normalise.mean, normalise.std, strict=True))
    return [(0.0 - mean) / std for mean, std in constants], [(1.0 - mean) / std for mean, std in constants]
