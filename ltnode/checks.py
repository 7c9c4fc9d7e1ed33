"""Checks of numeric arguments, with error messages that state the requirement and the given value."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

from ltnode.errors import InputError


def is_finite_number(value: object) -> TypeGuard[float]:
    """Whether a value is a finite number that a float can hold, which not every integer is; booleans are no numbers."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    number: Any = value
    return bool(abs(number) <= sys.float_info.max)


def checked_number(name: str, value: object, allowed: str, low: float, high: float) -> float:
    """Return ``value`` as a float if it lies in [low, high]; otherwise raise an InputError that states what is allowed."""
    if (isinstance(value, float) or is_finite_number(value)) and low <= value <= high:
        return float(value)
    raise InputError(f"{name} must be {allowed}, not {value!r}")


def checked_count(name: str, value: object) -> int:
    """Return ``value`` as an int if it is at least 1; otherwise raise an InputError."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name} must be an integer of at least 1, not {value!r}")
    return int(value)


def _checked_pair(name: str, value: object, allowed: str, low: float, high: float) -> tuple[float, float]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"{name} must be {allowed}, not {value!r}")
    first, second = (checked_number(f"each number of {name}", v, allowed, low, high) for v in value)
    return first, second


def checked_window(window: object, name: str = "window") -> tuple[float, float]:
    """Return (low, high) as floats if 0 <= low < high and both are finite; otherwise raise an InputError."""
    low, high = _checked_pair(name, window, "(low, high), two finite times with 0 <= low < high", 0.0, 1e30)
    if not low < high:
        raise InputError(f"{name} must be increasing, 0 <= low < high, not {window!r}")
    return low, high


def checked_prior(prior: object) -> tuple[float, float]:
    """Return (alpha, beta) of a Gamma prior if both lie in the range in which all integrals are accurate."""
    return _checked_pair("prior", prior, "(alpha, beta), shape and rate of a Gamma, from 1e-3 to 1e4", 1e-3, 1e4)
