"""Exceptions, and messages that state the given value, the requirement and the remedy."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Iterable, Mapping


class LTNodeError(Exception):
    """Base class of all exceptions that ltnode raises on purpose."""


class InputError(LTNodeError, ValueError):
    """An argument has a wrong shape, dtype, range or name."""


class DataError(LTNodeError):
    """A data file is missing, truncated, damaged or in another format."""


class ConfigError(LTNodeError, ValueError):
    """A configuration has an unknown key or an invalid value."""


class CheckpointError(LTNodeError):
    """A run folder or checkpoint is damaged, was not written by ltnode, or already exists."""


class FolderInUseError(CheckpointError):
    """Another process is training in the run folder."""


class MissingExtraError(LTNodeError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


def unknown_name(kind: str, name: object, valid: Iterable[str], aliases: Mapping[str, str] | None = None) -> str:
    """Message for an unknown name: the name, the nearest valid one, and all valid ones.

    Args:
        kind: Kind of the name, for example "method".
        name: The unknown name.
        valid: All valid names.
        aliases: Valid names for common names of other libraries, for example ``{"learning_rate": "lr"}``.
    """
    names = sorted(valid)
    folded = {valid_name.lower(): valid_name for valid_name in names}
    near = difflib.get_close_matches(str(name).lower(), folded, n=1, cutoff=0.5)
    suggestion = (aliases or {}).get(str(name)) or (folded[near[0]] if near else None)
    hint = f" Did you mean {suggestion!r}?" if suggestion else ""
    return f"unknown {kind} {name!r}.{hint} Valid: {', '.join(names)}."


def is_installed(module: str) -> bool:
    """Whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:  # `sys.modules` marks the module as missing
        return False


def require(modules: Mapping[str, str], extra: str, purpose: str) -> None:
    """Require packages of an extra before work begins.

    Args:
        modules: Names of packages by the modules that are imported from them.
        extra: The extra.
        purpose: What needs them.

    Raises:
        MissingExtraError: One is not installed; the message names the extra.
    """
    for module, package in modules.items():
        if not is_installed(module):
            raise missing_extra(package, extra, purpose)


def missing_extra(package: str, extra: str, purpose: str) -> MissingExtraError:
    """Exception for an optional dependency that is not installed."""
    return MissingExtraError(f"{purpose} needs {package}, which is not installed: pip install 'ltnode[{extra}]'")
