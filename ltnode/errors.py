"""Errors that say what was given, what is allowed and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LTNodeError(Exception):
    """Base of every error that ltnode raises on purpose."""


class InputError(LTNodeError, ValueError):
    """An argument has a wrong shape, dtype, range or name."""


class DataError(LTNodeError):
    """A data file is missing, truncated, altered or of a foreign format."""


class ConfigError(LTNodeError, ValueError):
    """A configuration has an unknown key or an impossible value."""


class CheckpointError(LTNodeError):
    """A run folder or checkpoint is damaged, foreign, or already exists."""


class MissingExtraError(LTNodeError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


def unknown_name(kind: str, given: object, valid: Iterable[str]) -> str:
    """Message for an unknown name: what was given, the nearest valid name, all valid names."""
    names = sorted(valid)
    near = difflib.get_close_matches(str(given), names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind} {given!r}.{hint} Valid: {', '.join(names)}."


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """The error for an optional dependency that is not installed."""
    return MissingExtraError(f"{purpose} needs {package}, which is not installed: pip install 'ltnode[{extra}]'")
