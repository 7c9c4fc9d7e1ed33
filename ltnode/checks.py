"""Checks of the numbers that end-times are built from and called with."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

from ltnode.errors import InputError


def checked_number(name: str, value: object, allowed: str, low: float, high: float) -> float:
    """Return ``value`` as a float in [low, high], or raise an InputError that says what is allowed."""
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= float(value) <= high:
        raise InputError(f"{name} must be {allowed}, got {value!r}.")
    return float(value)


def checked_count(name: str, value: object) -> int:
    """Return ``value`` as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(f"{name} must be an integer of at least 1, got {value!r}.")
    return int(value)


def _checked_pair(name: str, value: object, allowed: str, low: float, high: float) -> tuple[float, float]:
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise InputError(f"{name} must be {allowed}, got {value!r}.")
    first, second = (checked_number(f"each number of {name}", v, allowed, low, high) for v in value)
    return first, second


def checked_window(window: object, name: str = "window") -> tuple[float, float]:
    """Return (low, high), two finite times with 0 <= low < high."""
    low, high = _checked_pair(name, window, "(low, high), two finite times with 0 <= low < high", 0.0, 1e30)
    if not low < high:
        raise InputError(f"{name} must be increasing, 0 <= low < high, got {window!r}.")
    return low, high


def checked_prior(prior: object) -> tuple[float, float]:
    """Return (alpha, beta) of a Gamma prior, in the range where all integrals are accurate."""
    return _checked_pair("prior", prior, "(alpha, beta), shape and rate of a Gamma, from 1e-3 to 1e4", 1e-3, 1e4)
