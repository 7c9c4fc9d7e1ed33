"""Values of a training configuration: what is allowed for each key, and how files and settings are read."""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from ltnode.accelerate.plan import Accelerate
from ltnode.checks import is_finite_number
from ltnode.device import Precision
from ltnode.errors import ConfigError


@dataclass(frozen=True)
class Rule:
    """What is allowed for a key.

    Attributes:
        allowed: Description of the allowed values, as in "lr must be ...".
        fits: Whether a value is allowed.
        convert: Turns an allowed value into the type of the key.
    """

    allowed: str
    fits: Callable[[Any], bool]
    convert: Callable[[Any], Any] = lambda value: value

    def apply(self, name: str, value: Any) -> Any:
        """Return the converted value, or raise a `ConfigError` that says what is allowed."""
        if not self.fits(value):
            raise ConfigError(f"{name} must be {self.allowed}, not {value!r}")
        return self.convert(value)

    def or_none(self) -> Rule:
        """Return the rule that allows None as well."""
        return Rule(
            f"{self.allowed}, or none", lambda v: v is None or self.fits(v), lambda v: None if v is None else self.convert(v)
        )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(allowed: str, fits: Callable[[float], bool]) -> Rule:
    return Rule(allowed, lambda v: isinstance(v, int | float) and not isinstance(v, bool) and fits(v), float)


def _choice(*names: str) -> Rule:
    return Rule(f"one of {', '.join(map(repr, names))}", lambda v: v in names)


def _are_epochs(value: Any) -> bool:
    if not isinstance(value, Sequence) or isinstance(value, str) or not all(map(_is_integer, value)):
        return False
    return list(value) == sorted({epoch for epoch in value if epoch >= 1})


def _are_names(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and all(isinstance(name, str) for name in value)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def to_plain(value: Any) -> Any:
    """Convert tuples to lists, and mappings and dataclasses to dicts, as JSON would give them back."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: to_plain(getattr(value, entry.name)) for entry in dataclasses.fields(value)}
    return value


_DEVICE = re.compile(r"auto|cpu|cuda(:\d+)?")
_STRING = Rule("a string", lambda v: isinstance(v, str))
_INTEGER = Rule("an integer", _is_integer)
_COUNT = Rule("an integer >= 1", lambda v: _is_integer(v) and v >= 1)
_FLAG = Rule("true or false", lambda v: isinstance(v, bool))
_FRACTION = _number("a number >= 0 and < 1", lambda v: 0 <= v < 1)
RATE = _number("a finite number >= 0", lambda v: is_finite_number(v) and v >= 0)
_ROLES = Rule("a table of numbers by role", _is_table, dict)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("model", "data", "preset", "init"), _STRING.or_none()),
    "seed": _INTEGER,
    "split_seed": _INTEGER.or_none(),
    **dict.fromkeys(("epochs", "keep_checkpoints", "log_every"), _COUNT),
    **dict.fromkeys(("batch_size", "limit", "checkpoint_epochs"), _COUNT.or_none()),
    "optimizer": _choice("sgd", "adam", "adamw"),
    "clip_norm": _number("a finite number > 0", lambda v: is_finite_number(v) and v > 0).or_none(),
    "class_weights": _choice("balanced").or_none(),
    "frozen": Rule("a list of names of parts", _are_names, tuple),
    **dict.fromkeys(("lr", "weight_decay"), RATE),
    **dict.fromkeys(("momentum", "validation_fraction", "calibration_fraction"), _FRACTION),
    "averaging": _number("a number > 0 and < 1", lambda v: 0 < v < 1).or_none(),
    "distill_weight": _number("a number > 0 and <= 1", lambda v: 0 < v <= 1),
    **dict.fromkeys(("nesterov", "drop_last", "tensorboard"), _FLAG),
    **dict.fromkeys(("role_lr", "role_weight_decay"), _ROLES),
    "schedule": _choice("milestones", "cosine"),
    "milestones": Rule("a list of increasing epochs >= 1", _are_epochs, tuple),
    "decay": _number("a number > 0 and <= 1", lambda v: 0 < v <= 1),
    "precision": _choice(*get_args(Precision)),
    "device": Rule("'auto', 'cpu', 'cuda' or 'cuda:N'", lambda v: isinstance(v, str) and _DEVICE.fullmatch(v) is not None),
    "accelerate": _choice(*get_args(Accelerate)),
    "checkpoint_minutes": _number("a number > 0", lambda v: v > 0).or_none(),
    "model_options": Rule("a table", _is_table, to_plain),
}
"""The rules of all keys of `TrainConfig`."""


def check_serialisable(name: str, value: Any) -> None:
    """Check that a table holds only values that JSON can represent."""
    try:
        json.dumps(value)
    except TypeError as error:
        raise ConfigError(f"{name} must be plain values (numbers, strings, lists, tables): {error}") from error


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
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
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
    except RecursionError:
        raise ConfigError(f"{path} is not a configuration: it is nested too deeply") from None


def merge(old: Any, new: Any) -> Any:
    """Merge two tables key by key; anything else is replaced by the new value."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}
