"""The disjoint parts of a training set: fit (what is trained on), select (validation) and calibrate (chooses nothing)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch

from ltnode.errors import InputError
from ltnode.typing import Int, Tensor

SMALLEST_CALIBRATION = 19
"""A p-value among n examples is at least 1 / (n + 1), so that fewer than 19 can never raise an alarm at a rate of 5 %."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Positions of the parts in the training set, each ascending for sequential reads of memory maps."""

    fit: Int[Tensor, " f"]
    validation: Int[Tensor, " v"]
    calibration: Int[Tensor, " c"]

    def checksums(self) -> dict[str, str | None]:
        """Return the md5 of the positions of both held-out parts; None for a part that is empty."""
        held_out = {"validation_indices": self.validation, "calibration_indices": self.calibration}
        return {name: positions_md5(positions) if len(positions) else None for name, positions in held_out.items()}


def split_parts(n: int, validation_fraction: float, calibration_fraction: float, seed: int) -> Parts:
    """Draw the parts of n training examples.

    The validation part is the same whatever the calibration part is. The calibration part has at least 19 examples. Where fewer
    than that many would remain to be trained on, it has a third of what the validation part leaves.

    Args:
        n: Number of training examples.
        validation_fraction: Share of the validation part; 0 for none.
        calibration_fraction: Share of the calibration part; 0 for none.
        seed: Seed of the draw.

    Raises:
        InputError: A fraction is not in [0, 1), or there are too few examples.
    """
    for fraction in (validation_fraction, calibration_fraction):
        if not 0 <= fraction < 1:
            raise InputError(f"a held-out fraction must be >= 0 and < 1, not {fraction}")
    if n < 2 and validation_fraction:
        raise InputError(f"holding out examples needs at least 2 examples, not {n}")
    n_validation = min(n - 1, max(1, round(n * validation_fraction))) if validation_fraction else 0
    n_calibration = _calibration_size(n, n - n_validation, calibration_fraction)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    validation, calibration, fit = order.split([n_validation, n_calibration, n - n_validation - n_calibration])
    return Parts(fit.sort().values, validation.sort().values, calibration.sort().values)


def positions_md5(positions: Int[Tensor, " n"]) -> str:
    """Return the md5 of positions, as ``md5:...``."""
    return f"md5:{hashlib.md5(positions.numpy().tobytes(), usedforsecurity=False).hexdigest()}"


def _calibration_size(n: int, left: int, fraction: float) -> int:
    if not fraction:
        return 0
    wanted = max(SMALLEST_CALIBRATION, round(fraction * n))
    return wanted if 2 * wanted <= left else left // 3
