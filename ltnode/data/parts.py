"""The disjoint parts of a data set: fit (what is trained on), select (validation), calibrate (chooses nothing) and test."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

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

    def within(self, indices: Int[Tensor, " n"]) -> Parts:
        """Return the parts of the examples at some positions, numbered in the order of these positions."""
        parts = (self.fit, self.validation, self.calibration)
        return Parts(*(torch.isin(indices, positions).nonzero().flatten() for positions in parts))

    def merged(self, validation: bool, calibration: bool) -> Parts:
        """Return the parts where the validation part, the calibration part or both are trained on if they are not wanted."""
        none = self.fit[:0]
        kept = (self.validation if validation else none, self.calibration if calibration else none)
        freed = [part for part, wanted in ((self.validation, validation), (self.calibration, calibration)) if not wanted]
        return Parts(torch.cat([self.fit, *freed]).sort().values, *kept)


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


def draw_parts(
    n: int,
    *,
    test_fraction: float,
    validation_fraction: float,
    calibration_fraction: float,
    seed: int,
    groups: NDArray[np.int64] | None = None,
    classes: NDArray[np.int64] | None = None,
) -> tuple[Int[Tensor, " t"], Parts]:
    """Draw the test part of n examples, and the parts of the others; every class has examples that are trained on.

    Args:
        n: Number of examples.
        test_fraction: Share of the test part; 0 for none.
        validation_fraction: Share of the validation part among the examples that are not in the test part; 0 for none.
        calibration_fraction: The same for the calibration part, which has at least 19 examples as in `split_parts`.
        seed: Seed of the draw.
        groups: Number of the group of each example; a group is never divided, so that the shares hold roughly.
        classes: Label of each example.

    Returns:
        Positions of the test part, and the parts of the others, as positions among them.

    Raises:
        InputError: A fraction is not in [0, 1), or there are too few groups.
    """
    for fraction in (test_fraction, validation_fraction, calibration_fraction):
        if not 0 <= fraction < 1:
            raise InputError(f"a held-out fraction must be >= 0 and < 1, not {fraction}")
    unit_of = np.arange(n) if groups is None else np.unique(groups, return_inverse=True)[1]
    n_units = int(unit_of.max()) + 1
    if n_units < 4:
        raise InputError(f"there must be at least 4 groups to hold out whole groups, not {n_units}; leave out --group (group=)")
    place = np.argsort(np.random.default_rng(seed).permutation(n_units))
    # The first group with an example of a class is drawn last, and is therefore trained on.
    labels = np.zeros(n, dtype=np.int64) if classes is None else classes
    by_place = np.argsort(place[unit_of], kind="stable")
    reserved = unit_of[by_place[np.unique(labels[by_place], return_index=True)[1]]]
    place[reserved] += n_units
    order = np.argsort(place)
    sizes = np.bincount(unit_of, minlength=n_units)[order]
    n_test = max(1, round(n * test_fraction)) if test_fraction else 0
    n_validation = max(1, round((n - n_test) * validation_fraction)) if validation_fraction else 0
    n_calibration = _calibration_size(n - n_test, n - n_test - n_validation, calibration_fraction)
    bounds = np.cumsum([n_test, n_validation, n_calibration])
    part_of_unit = np.empty(n_units, dtype=np.int64)
    part_of_unit[order] = np.searchsorted(bounds, np.cumsum(sizes) - sizes, side="right")
    part_of_unit[reserved] = len(bounds)
    part = part_of_unit[unit_of]
    rest = part[part > 0]
    validation, calibration, fit = (torch.from_numpy(np.flatnonzero(rest == number)) for number in (1, 2, 3))
    return torch.from_numpy(np.flatnonzero(part == 0)), Parts(fit, validation, calibration)


def positions_md5(positions: Int[Tensor, " n"]) -> str:
    """Return the md5 of positions, as ``md5:...``."""
    return f"md5:{hashlib.md5(positions.numpy().tobytes(), usedforsecurity=False).hexdigest()}"


def _calibration_size(n: int, left: int, fraction: float) -> int:
    if not fraction:
        return 0
    wanted = max(SMALLEST_CALIBRATION, round(fraction * n))
    return wanted if 2 * wanted <= left else left // 3
