"""The configuration of a training run: checked when it is made, saved with the run, and compared when a run is resumed."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from ltnode.accelerate.plan import Accelerate
from ltnode.device import Precision
from ltnode.errors import ConfigError, unknown_name
from ltnode.models import InputSpec
from ltnode.training.config_values import RATE, RULES, check_serialisable, merge, parse_setting, read_toml, to_plain
from ltnode.training.presets import preset_values

FREE_ON_RESUME = ("device", "accelerate", "checkpoint_epochs", "checkpoint_minutes", "keep_checkpoints", "tensorboard")
"""Keys that do not change what is computed: a resumed run may change them, and they are not part of the hash."""
LATER_KEYS: Mapping[str, Any] = {
    "averaging": None,
    "calibration_fraction": 0.0,
    "split_seed": None,
    "distill_weight": 1.0,
    "class_weights": None,
    "init": None,
    "frozen": [],
    "clip_norm": None,
}
"""Keys that version 0.1 did not have, with the values that describe its trainings; with these, the hash is that of 0.1."""
_ALIASES = {"learning_rate": "lr", "max_iter": "epochs", "n_iter": "epochs", "random_state": "seed", "wd": "weight_decay"}
"""Names of other libraries, with the key that an error message suggests."""
_RENAMED = {"variational_lr": "role_lr", "variational_weight_decay": "role_weight_decay"}
"""Keys of earlier versions, and the tables whose entry "variational" replaces them."""
_Class = TypeVar("_Class", bound=type)


def _known_keys_only(cls: _Class) -> _Class:
    """Let the constructor raise a `ConfigError` for an unknown key, and accept the keys of earlier versions."""
    generated = cls.__init__  # type: ignore[misc]

    @functools.wraps(generated)
    def checked(self: Any, *args: Any, **values: Any) -> None:
        generated(self, *args, **_without_removed(_current_keys(values)))

    cls.__init__ = checked  # type: ignore[misc]
    return cls


@_known_keys_only
@dataclass(frozen=True)
class TrainConfig:
    """Configuration of a training run. Unknown keys and impossible values raise `ConfigError`.

    Attributes:
        model: Name of the model, for records.
        data: Name of the data set, for records.
        preset: Preset that the values come from, for records.
        seed: Seed of data order, augmentation, end-times and all other random numbers of the run.
        epochs: Number of passes over the training data.
        batch_size: Training examples per step, over all processes; None takes all of them.
        optimizer: ``"sgd"``, ``"adam"``, or ``"adamw"`` (Adam whose weight decay does not enter the gradient).
        lr: Learning rate of the weights.
        momentum: Momentum of SGD.
        nesterov: Use Nesterov momentum.
        weight_decay: L2 penalty of the weights.
        clip_norm: Largest norm of the gradient; longer gradients are scaled down to it. None keeps them.
        role_lr: Learning rates of other parameter roles, such as ``{"variational": 0.01}`` for the posterior or the inference
            network; roles that are not named have that of the weights. None removes an entry.
        role_weight_decay: L2 penalties of other roles; those that are not named have that of the weights, except
            ``"variational"``, which has none.
        schedule: ``"milestones"``: multiply by ``decay`` at each milestone; ``"cosine"``: from 1 to 0 over the epochs.
        milestones: Epochs at which every learning rate is multiplied by ``decay``.
        decay: Factor of the milestones.
        averaging: Decay per step of the averaged weights, such as 0.999, which replace the trained ones at the end; None trains
            without averaging.
        limit: Use only this many training examples, drawn with seed 0.
        validation_fraction: Share of the training examples that is held out, evaluated while training, and used to select.
        calibration_fraction: Share of the training examples that is held out and chooses nothing: the ranks of familiarity are
            computed on it. At least 19 examples where the training set is large enough.
        split_seed: Seed of the held-out parts; None takes ``seed``. Runs with different seeds and the same ``split_seed`` hold
            out the same examples.
        distill_weight: With a teacher, share of its probabilities in the targets; the labels have the rest.
        class_weights: ``"balanced"``: every class is drawn equally often, with replacement, however many examples it has; None
            takes each example once per epoch.
        init: Run folder whose weights the training started from, for records.
        frozen: Parts of the model that are not trained, such as ``("stem",)``.
        drop_last: Skip the last batch of an epoch if it is smaller than the others.
        precision: ``"fp32"``; ``"tf32"``: TensorFloat-32 products on CUDA; ``"bf16"``: layers in bfloat16, state in float32.
        device: ``"auto"`` (CUDA if there is a device), ``"cpu"``, ``"cuda"``, ``"cuda:1"``.
        accelerate: ``"auto"``: the fastest step that model and device support; ``"off"``: the reference; ``"graph"``: a step
            captured as a CUDA graph; ``"compiled"``: one whose layers are compiled before the first step, instead of once the
            training has lasted for a while; ``"fused"``: one with fused kernels.
        checkpoint_epochs: Number of epochs between checkpoints; None: only by time.
        checkpoint_minutes: Most minutes between checkpoints; None: only by epochs. Where writing one takes less than 1 % of the
            time, there is one every 25 seconds. The end always has a checkpoint.
        keep_checkpoints: Number of checkpoints to keep.
        log_every: Number of steps between two lines of metrics.jsonl.
        tensorboard: Write the same numbers for TensorBoard.
        model_options: Options of `ltnode.build`, for records and for code that builds the model from the configuration.
    """

    model: str | None = None
    data: str | None = None
    preset: str | None = None
    seed: int = 0
    epochs: int = 10
    batch_size: int | None = 256
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    lr: float = 3e-3
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    clip_norm: float | None = None
    role_lr: Mapping[str, float] = field(default_factory=dict)
    role_weight_decay: Mapping[str, float] = field(default_factory=dict)
    schedule: Literal["milestones", "cosine"] = "milestones"
    milestones: tuple[int, ...] = ()
    decay: float = 0.1
    averaging: float | None = None
    limit: int | None = None
    validation_fraction: float = 0.0
    calibration_fraction: float = 0.0
    split_seed: int | None = None
    distill_weight: float = 1.0
    class_weights: Literal["balanced"] | None = None
    init: str | None = None
    frozen: tuple[str, ...] = ()
    drop_last: bool = False
    precision: Precision = "fp32"
    device: str = "auto"
    accelerate: Accelerate = "auto"
    checkpoint_epochs: int | None = None
    checkpoint_minutes: float | None = 5.0
    keep_checkpoints: int = 2
    log_every: int = 50
    tensorboard: bool = False
    model_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            object.__setattr__(self, name, rule.apply(name, getattr(self, name)))
        for table in _RENAMED.values():
            roles = {role: RATE.apply(f"{table}.{role}", rate) for role, rate in getattr(self, table).items()}
            object.__setattr__(self, table, roles)
            if "weights" in roles:
                raise ConfigError(f"{table} is for other roles than 'weights'; set {table.removeprefix('role_')} instead")
        if self.validation_fraction + self.calibration_fraction >= 1:
            raise ConfigError(
                "validation_fraction and calibration_fraction must leave examples to train on: their sum must be < 1, not "
                f"{self.validation_fraction + self.calibration_fraction:g}"
            )
        if self.nesterov and not (self.optimizer == "sgd" and self.momentum > 0):
            raise ConfigError("nesterov must be false unless optimizer is 'sgd' and momentum is > 0")
        check_serialisable("model_options", self.model_options)

    @property
    def hash(self) -> str:
        """First 16 hex digits of the SHA-256 of everything that decides the result."""
        decisive = {
            key: value
            for key, value in self.to_json().items()
            if key not in FREE_ON_RESUME and (key not in LATER_KEYS or value != LATER_KEYS[key])
        }
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """Return all values as JSON types."""
        return {entry.name: to_plain(getattr(self, entry.name)) for entry in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Make a configuration from the content of a file, which an earlier version may have written."""
        return cls().replace(**_current_keys(values, warn=False))

    @classmethod
    def from_toml(cls, path: str | Path) -> TrainConfig:
        """Make a configuration from a TOML file.

        If the file names a model and a data set, the values that it leaves out are those of `train_preset` (with its ``preset``,
        by default ``"default"``); otherwise those of this class.
        """
        values = read_toml(path)
        named = "model" in values and "data" in values
        base = train_preset(values["model"], values["data"], values.get("preset", "default")) if named else cls()
        return base.replace(**values)

    def replace(self, **changes: Any) -> TrainConfig:
        """Return a copy with some values changed; tables are merged key by key."""
        merged = {key: merge(getattr(self, key), value) for key, value in _current_keys(changes).items()}
        return dataclasses.replace(self, **_without_removed(merged))

    def with_overrides(self, settings: Iterable[str]) -> TrainConfig:
        """Return a copy changed by settings such as ``lr=0.05``, ``milestones=[20,30]`` or ``role_lr.variational=0.01``.

        Values are read as TOML; what is not TOML is a string, and ``none`` is None.
        """
        changes: dict[str, Any] = {}
        for setting in settings:
            (key, *rest), value = parse_setting(setting)
            if rest and key in RULES and not isinstance(getattr(self, key), Mapping):
                raise ConfigError(f"{key} is a single value, not a table: use {key}=value, not {'.'.join([key, *rest])}=value")
            for part in reversed(rest):
                value = {part: value}
            changes = merge(changes, {key: value})
        # All changes are made at once, because some values are only possible together.
        return self.replace(**changes)

    def differences(self, other: TrainConfig) -> list[str]:
        """List what decides the result and differs, as ``key: this value -> other value``."""
        mine, theirs = self.to_json(), other.to_json()
        return [
            f"{key}: {mine[key]!r} -> {theirs[key]!r}" for key in mine if key not in FREE_ON_RESUME and mine[key] != theirs[key]
        ]

    @property
    def parts_seed(self) -> int:
        """Seed of the held-out parts."""
        return self.seed if self.split_seed is None else self.split_seed

    def role_options(self, role: str) -> tuple[float, float]:
        """Return learning rate and weight decay of a parameter role."""
        default_decay = 0.0 if role == "variational" else self.weight_decay
        return self.role_lr.get(role, self.lr), self.role_weight_decay.get(role, default_decay)

    def lr_factor(self, epoch: int) -> float:
        """Return the factor of every learning rate in an epoch (counted from 0), which is a function of the epoch alone."""
        if self.schedule == "cosine":
            return 0.5 * (1 + math.cos(math.pi * epoch / self.epochs))
        return float(self.decay ** sum(epoch >= milestone for milestone in self.milestones))


def train_preset(model: str, data: str | InputSpec | Any, preset: str = "default") -> TrainConfig:
    """Return the training configuration of a model on a data set.

    Args:
        model: Name of a model, as in `ltnode.build`.
        data: Name of a data set, an `InputSpec`, or a `Dataset`.
        preset: ``"paper"``: the published tables; ``"default"``: held-out parts; SGD with averaged weights for images, Adam for
            vectors. SDE-Net and NODE-GP hold nothing out and have the published values for images in both.

    Raises:
        ConfigError: The model or preset is unknown; the message suggests the nearest name.
    """
    return TrainConfig(**preset_values(model, data, preset))


def _current_keys(values: Mapping[str, Any], warn: bool = True) -> dict[str, Any]:
    """Return the values with keys of earlier versions translated.

    Raises:
        ConfigError: A key is unknown; the message suggests the nearest.
    """
    current = {key: value for key, value in values.items() if key not in _RENAMED}
    for key, table in _RENAMED.items():
        if key not in values:
            continue
        if warn:
            warnings.warn(f"{key} is deprecated: use {table}={{'variational': ...}}", DeprecationWarning, stacklevel=3)
        # Earlier versions wrote these defaults into every file.
        value = None if values[key] in (None, 0.0) and table == "role_weight_decay" else values[key]
        current[table] = {"variational": value, **current.get(table, {})}
    for key in current:
        if key in _ALIASES:
            raise ConfigError(f"unknown configuration key {key!r}. Did you mean {_ALIASES[key]!r}?")
        if key not in RULES:
            raise ConfigError(unknown_name("configuration key", key, RULES))
    return current


def _without_removed(values: dict[str, Any]) -> dict[str, Any]:
    """Drop the roles whose value is None from the tables of roles."""
    for table in _RENAMED.values():
        if isinstance(values.get(table), Mapping):
            values[table] = {role: value for role, value in values[table].items() if value is not None}
    return values
