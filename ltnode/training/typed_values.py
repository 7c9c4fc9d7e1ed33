"""Values of a configuration in the types of its fields: conversion, merging of tables, and reading of settings."""

from __future__ import annotations

import dataclasses
import tomllib
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ltnode.errors import ConfigError


def coerce(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to the type of its field.

    Raises:
        ConfigError: The value does not fit; the message says what is allowed.
    """
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        fits, converted = _fit(value, option)
        if fits:
            return converted
    allowed = " or ".join(_describe_type(option) for option in options)
    raise ConfigError(f"{name} must be {allowed}, not {value!r}")


def _fit(value: Any, hint: Any) -> tuple[bool, Any]:
    origin = get_origin(hint)
    if hint is type(None):
        return value is None, None
    if origin is Literal:
        return value in get_args(hint), value
    if origin is tuple:
        fits = isinstance(value, Sequence) and not isinstance(value, str) and all(_is_int(v) for v in value)
        return fits, tuple(value) if fits else None
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            return False, None
        if get_args(hint)[1] is float:
            fits = all(_is_number(v) for v in value.values())
            return fits, {k: float(v) for k, v in value.items()} if fits else None
        return True, to_plain(value)
    if hint is int:
        return _is_int(value), value
    if hint is float:
        return _is_number(value), float(value) if _is_number(value) else None
    return isinstance(value, hint), value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _describe_type(hint: Any) -> str:
    origin = get_origin(hint)
    if hint is type(None):
        return "none"
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if origin is tuple:
        return "a list of integers"
    if origin is not None:
        return "a table of numbers by role" if get_args(hint)[1] is float else "a table"
    return {int: "an integer", float: "a number", bool: "true or false", str: "a string"}[hint]


def parse_setting(setting: str) -> tuple[list[str], Any]:
    """Split ``a.b=value`` into its path and its value: TOML, else a string; ``none`` is None."""
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"a setting must look like key=value, not {setting!r}")
    path, text = [part.strip() for part in key.split(".")], text.strip()
    if text.lower() == "none":
        return path, None
    try:
        return path, tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return path, text


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read the values of a TOML file.

    Raises:
        ConfigError: The file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error


def merge(old: Any, new: Any) -> Any:
    """Merge two tables key by key; anything else is replaced by the new value."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}


def to_plain(value: Any) -> Any:
    """Convert tuples to lists, and mappings and dataclasses to dicts, as JSON would give them back."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: to_plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    return value
