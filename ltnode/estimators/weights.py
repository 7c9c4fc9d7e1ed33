"""``sample_weight``: how many rows each row counts for."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import check_array

from ltnode.errors import InputError
from ltnode.estimators.uncertainty import FloatArray


def checked_weights(sample_weight: Any, rows: int) -> FloatArray | None:
    """Return the weights (N,) of N rows; None if all rows have the same, because their scale does not matter.

    Raises:
        InputError: There is not one finite number >= 0 per row, or all of them are zero.
    """
    if sample_weight is None:
        return None
    weights: FloatArray = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weights.shape != (rows,):
        raise InputError(f"sample_weight must have shape ({rows},), one weight per row, not {weights.shape}")
    if (weights < 0).any():
        raise InputError(f"sample_weight must be at least 0, but row {int((weights < 0).argmax())} has {weights.min():g}")
    if not weights.any():
        raise InputError("sample_weight must be positive for at least one row, but all weights are zero")
    return None if (weights == weights[0]).all() else weights
