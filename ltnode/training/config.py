"""One frozen configuration of a training run: checked when it is made, saved with the run, compared when it is resumed."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import tomllib
import types
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ltnode.errors import ConfigError, unknown_name

FREE_ON_RESUME = ("device", "accelerate", "checkpoint_epochs", "checkpoint_minutes", "keep_checkpoints", "tensorboard")
"""Keys that do not change what is computed: a resumed run may have others, and they are not part of the hash."""


@dataclass(frozen=True)
class TrainConfig:
    """How a model is trained. Impossible values raise `ConfigError`.

    Attributes:
        model: Name of the model, for records.
        data: Name of the data set, for records.
        preset: Preset that the values come from, for records.
        seed: Decides data order, augmentation, end-times and every other random number of the run.
        epochs: Passes over the training data.
        batch_size: Training examples per step, over all processes; None takes all of them.
        optimizer: ``"sgd"`` or ``"adam"``.
        lr: Learning rate of the weights.
        momentum: Of SGD.
        nesterov: Nesterov's form of the momentum.
        weight_decay: L2 penalty of the weights.
        variational_lr: Learning rate of the posterior or the inference network; None: that of the weights.
        variational_weight_decay: Their L2 penalty.
        role_lr: Learning rates of a model's further parameter roles, such as ``{"diffusion": 0.01}``.
        role_weight_decay: Their L2 penalties; where a role is not named, that of the weights.
        schedule: ``"milestones"``: times ``decay`` at each milestone; ``"cosine"``: from 1 to 0 over the epochs.
        milestones: Epochs at which every learning rate is multiplied by ``decay``.
        decay: The factor.
        limit: Use only this many training examples, drawn with seed 0.
        validation_fraction: Share of the training examples that is held out and evaluated while training.
        drop_last: Leave out the last batch of an epoch when it is smaller than the others.
        precision: ``"fp32"``; ``"tf32"``: TensorFloat-32 products on CUDA; ``"bf16"``: layers in bfloat16, state in float32.
        device: ``"auto"`` (CUDA when there is one), ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
        accelerate: How a step is computed: ``"off"`` is the reference, ``"auto"`` the fastest tested way of the device.
        checkpoint_epochs: Checkpoint every so many epochs; None: only by time.
        checkpoint_minutes: Checkpoint when so many minutes have passed; None: only by epochs. The end always has one.
        keep_checkpoints: How many checkpoints to keep.
        log_every: Steps between two lines of metrics.jsonl.
        tensorboard: Write the same numbers for TensorBoard too.
        model_options: Options of `ltnode.build`, for records and for whoever builds the model from the configuration.
    """

    model: str | None = None
    data: str | None = None
    preset: str | None = None
    seed: int = 0
    epochs: int = 10
    batch_size: int | None = 256
    optimizer: Literal["sgd", "adam"] = "adam"
    lr: float = 3e-3
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    variational_lr: float | None = None
    variational_weight_decay: float = 0.0
    role_lr: Mapping[str, float] = field(default_factory=dict)
    role_weight_decay: Mapping[str, float] = field(default_factory=dict)
    schedule: Literal["milestones", "cosine"] = "milestones"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    limit: int | None = None
    validation_fraction: float = 0.0
    drop_last: bool = False
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    device: str = "auto"
    accelerate: Literal["auto", "off", "graph", "fused"] = "auto"
    checkpoint_epochs: int | None = None
    checkpoint_minutes: float | None = 5.0
    keep_checkpoints: int = 2
    log_every: int = 50
    tensorboard: bool = False
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for entry in fields(self):
            object.__setattr__(self, entry.name, _coerce(entry.name, getattr(self, entry.name), hints[entry.name]))
        _check_values(self)

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of everything that decides the result."""
        decisive = {key: value for key, value in self.to_json().items() if key not in FREE_ON_RESUME}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """All values as JSON types."""
        return {entry.name: _plain(getattr(self, entry.name)) for entry in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainConfig:
        """The configuration of a mapping; an unknown key is an error that names the nearest."""
        return cls().replace(**values)

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainConfig:
        """The configuration of a TOML file.

        Where the file names a model and a data set, the values that it leaves out are those of `train_preset` (with its
        ``preset``, by default ``"default"``); otherwise those of this class.
        """
        from ltnode.training.presets import train_preset  # which itself makes configurations

        try:
            values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"cannot read the configuration {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not a TOML file: {error}") from error
        if "model" in values and "data" in values:
            base = train_preset(values["model"], values["data"], values.get("preset", "default"))
        else:
            base = cls()
        return base.replace(**values)

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some values changed; tables are merged key by key."""
        hints = get_type_hints(type(self))
        merged: dict[str, Any] = {}
        for key, value in changes.items():
            if key not in hints:
                raise ConfigError(unknown_name("configuration key", key, hints))
            old = getattr(self, key)
            both = isinstance(old, Mapping) and isinstance(value, Mapping)
            merged[key] = _coerce(key, _merge(old, value) if both else value, hints[key])
        return dataclasses.replace(self, **merged)

    def with_overrides(self, settings: Iterable[str]) -> TrainConfig:
        """A copy changed by settings such as ``lr=0.05``, ``milestones=[20,30]`` or ``model_options.objective.kl_weight=0.2``.

        Values are read as TOML; what is not TOML is a string, and ``none`` is None.
        """
        changes: dict[str, Any] = {}
        for setting in settings:
            key, equals, text = setting.partition("=")
            if not equals or not key.strip():
                raise ConfigError(f"a setting must look like key=value, not {setting!r}")
            head, *rest = [part.strip() for part in key.split(".")]
            if rest and head in get_type_hints(type(self)) and not isinstance(getattr(self, head), Mapping):
                raise ConfigError(f"{head} is a single value, not a table: set it by {head}=value, not by {key.strip()}")
            value = _parse(text.strip())
            for part in reversed(rest):
                value = {part: value}
            changes = _merge(changes, {head: value})
        # All at once: settings that are only possible together may come in any order.
        return self.replace(**changes)

    def differences(self, other: TrainConfig) -> list[str]:
        """What decides the result and differs, as ``key: this value -> other value``."""
        mine, theirs = self.to_json(), other.to_json()
        return [
            f"{key}: {mine[key]!r} -> {theirs[key]!r}" for key in mine if key not in FREE_ON_RESUME and mine[key] != theirs[key]
        ]

    def role_options(self, role: str) -> tuple[float, float]:
        """Learning rate and weight decay of a parameter role."""
        if role == "variational":
            return (self.lr if self.variational_lr is None else self.variational_lr), self.variational_weight_decay
        return self.role_lr.get(role, self.lr), self.role_weight_decay.get(role, self.weight_decay)

    def lr_factor(self, epoch: int) -> float:
        """What every learning rate is multiplied by in an epoch (counted from 0): a function of the epoch alone."""
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
        return float(self.decay ** sum(epoch >= milestone for milestone in self.milestones))


def _check_values(c: TrainConfig) -> None:
    counts = ("epochs", "batch_size", "limit", "checkpoint_epochs", "keep_checkpoints", "log_every")
    rates = {f"role_lr.{role}": rate for role, rate in c.role_lr.items()}
    rates |= {f"role_weight_decay.{role}": rate for role, rate in c.role_weight_decay.items()}
    rates |= {name: getattr(c, name) for name in ("lr", "weight_decay", "variational_lr", "variational_weight_decay")}
    values = {**c.to_json(), **rates}
    rules = {
        **{name: (values[name] is None or values[name] >= 1, "at least 1") for name in counts},
        **{name: (v is None or (math.isfinite(v) and v >= 0), "a finite number of at least 0") for name, v in rates.items()},
        "momentum": (0 <= c.momentum < 1, "at least 0 and below 1"),
        "nesterov": (not c.nesterov or (c.optimizer == "sgd" and c.momentum > 0), "it needs sgd with a momentum above 0"),
        "decay": (0 < c.decay <= 1, "above 0 and at most 1"),
        "validation_fraction": (0 <= c.validation_fraction < 1, "at least 0 and below 1"),
        "milestones": (
            list(c.milestones) == sorted({m for m in c.milestones if m >= 1}),
            "epochs from 1 on, in increasing order",
        ),
        "checkpoint_minutes": (c.checkpoint_minutes is None or c.checkpoint_minutes > 0, "above 0, or none"),
        "device": (re.fullmatch(r"auto|cpu|cuda(:\d+)?", c.device), "'auto', 'cpu', 'cuda' or 'cuda:N'"),
    }
    for name, (possible, allowed) in rules.items():
        if not possible:
            raise ConfigError(f"{name} = {values[name]!r} is impossible: {allowed}")
    for role, instead in (("weights", "lr and weight_decay"), ("variational", "variational_lr and variational_weight_decay")):
        if role in c.role_lr or role in c.role_weight_decay:
            raise ConfigError(f"role_lr and role_weight_decay are for further roles; for {role!r} set {instead}")
    try:
        json.dumps(c.model_options)
    except TypeError as error:
        raise ConfigError(f"model_options must be plain values (numbers, texts, lists, tables): {error}") from error


def _coerce(name: str, value: Any, hint: Any) -> Any:
    """The value in the type of its field, or an error that says what is allowed."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for option in options:
        fits, converted = _fit(value, option)
        if fits:
            return converted
    allowed = " or ".join(_words(option) for option in options)
    raise ConfigError(f"{name} = {value!r} is impossible: {allowed}")


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
        return True, _plain(value)
    if hint is int:
        return _is_int(value), value
    if hint is float:
        return _is_number(value), float(value) if _is_number(value) else None
    return isinstance(value, hint), value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    if hint is type(None):
        return "none"
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in get_args(hint))
    if origin is tuple:
        return "a list of whole numbers"
    if origin is not None:
        return "a table of numbers by role" if get_args(hint)[1] is float else "a table"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]


def _parse(text: str) -> Any:
    if text.lower() == "none":
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(old)
    for key, value in new.items():
        both = isinstance(merged.get(key), Mapping) and isinstance(value, Mapping)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _plain(value: Any) -> Any:
    """Tuples as lists, mappings as dicts, option dataclasses as dicts: what JSON gives back."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {entry.name: _plain(getattr(value, entry.name)) for entry in fields(value)}
    return value
