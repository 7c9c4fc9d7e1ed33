"""The specification of a sweep: what is trained, on what, and over which values of the training configuration it searches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from ltnode.checks import is_finite_number
from ltnode.cluster.data_source import Source, is_built_in, own_table
from ltnode.data import Dataset
from ltnode.errors import ConfigError, unknown_name
from ltnode.training import TrainConfig, train_preset
from ltnode.training.config_values import RULES, merge, read_toml, to_plain
from ltnode.training.own_tables import OwnTable, provisional_config

Strategy = Literal["grid", "random", "bayesian"]
Pruner = Literal["none", "median", "halving", "hyperband"]
_KEYS = (
    "model",
    "data",
    "preset",
    "seeds",
    "strategy",
    "trials",
    "pruner",
    "search_seed",
    "table",
    "image_size",
    "train",
    "search",
)
_SEPARATE = {"seed": "seeds = [0, 1]", "data": 'data = ["synthetic"]'}
"""Keys of the training configuration that are at the top of the specification."""
_HELD_OUT = 0.1
SMALLEST_SIZE = 8
"""Least height and width of images, as in ``ltnode train``."""
MOST_RUNS = 100_000
"""Trainings of a sweep; the points of a grid are all in memory."""


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, whole ones if both ends are; ``log`` draws their logarithm uniformly."""

    low: int | float
    high: int | float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether the numbers are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Choices = tuple[Any, ...]
Space = Mapping[str, Range | Choices]
"""Ranges and lists by dotted key, such as ``lr`` or ``role_lr.variational``."""


@dataclass(frozen=True)
class SweepSpec:
    """A sweep. `read` makes it from a TOML file and `of` from a table; both check it.

    Attributes:
        model: Name of the model.
        data: Names, files or folders of data sets.
        preset: Preset of the values that nothing else sets.
        seeds: Every point of the search is trained from each of these, and judged by the mean.
        strategy: How points are chosen: all of a grid, at random, or by Optuna's tree-structured Parzen estimator.
        trials: Number of points of a random or Bayesian search.
        pruner: How Optuna ends hopeless trainings early.
        search_seed: Seed of the search.
        table: How the tables among the data are read; None for none, or for arrays.
        image_size: Height and width to which the images of folders are cropped and scaled; None keeps their size.
        train: Fixed keys of the training configuration.
        search: What is searched.
    """

    model: str
    data: tuple[str, ...]
    preset: str
    seeds: tuple[int, ...]
    strategy: Strategy
    trials: int | None
    pruner: Pruner
    search_seed: int
    table: OwnTable | None
    image_size: int | None
    train: Mapping[str, Any]
    search: Space

    @classmethod
    def read(cls, path: str | Path) -> SweepSpec:
        """Read a TOML file.

        Raises:
            ConfigError: The file cannot be read, or a key or value is not allowed.
        """
        return cls.of(read_toml(path))

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> SweepSpec:
        """Make a specification from a table of plain values.

        Raises:
            ConfigError: A key or value is not allowed.
        """
        for key in table:
            if key not in _KEYS:
                hint = f" Keys of the training configuration such as {key} belong to [train] or [search]." if key in RULES else ""
                raise ConfigError(unknown_name("key of a sweep", key, _KEYS) + hint)
        for key in ("model", "data"):
            if key not in table:
                raise ConfigError(f'a sweep needs {key}, such as {key} = "{"lt-node" if key == "model" else "synthetic"}"')
        search = dict(_space(table.get("search", {})))
        ranges = any(isinstance(values, Range) for values in search.values())
        spec = cls(
            model=_of_type("model", table["model"], str, "the name of a model"),
            data=_several("data", table["data"], str, "a name, a file or a folder, or a list of them"),
            preset=_of_type("preset", table.get("preset", "default"), str, "the name of a preset"),
            seeds=_several("seeds", table.get("seeds", [0]), int, "a list of different integers"),
            strategy=_named("strategy", table.get("strategy", "bayesian" if ranges else "grid"), get_args(Strategy)),
            trials=table.get("trials"),
            pruner=_named("pruner", table.get("pruner", "none"), get_args(Pruner)),
            search_seed=_of_type("search_seed", table.get("search_seed", 0), int, "an integer"),
            table=own_table(_of_type("[table]", table["table"], Mapping, "a table")) if "table" in table else None,
            image_size=_image_size(table.get("image_size")),
            train=to_plain(_of_type("[train]", table.get("train", {}), Mapping, "a table")),
            search=search,
        )
        spec._check()
        return spec

    def to_json(self) -> dict[str, Any]:
        """The specification as plain values, which `of` reads."""
        search = {
            key: {"low": v.low, "high": v.high, "log": v.log} if isinstance(v, Range) else list(v)
            for key, v in self.search.items()
        }
        optional = {
            "trials": self.trials,
            "table": None if self.table is None else asdict(self.table),
            "image_size": self.image_size,
        }
        given = {key: value for key, value in optional.items() if value is not None}
        values = {key: getattr(self, key) for key in _KEYS if key not in (*optional, "search")}
        return to_plain({**values, **given, "search": search})

    def source(self, data: str) -> Source:
        """What a worker needs to load one of the data sets."""
        return Source(data, self.table, self.image_size)

    @property
    def n_points(self) -> int:
        """Number of points of the search."""
        if self.strategy == "grid":
            return math.prod(len(values) for values in self.search.values() if not isinstance(values, Range))
        assert self.trials is not None
        return self.trials

    @property
    def n_runs(self) -> int:
        """Number of trainings."""
        return self.n_points * len(self.data) * len(self.seeds)

    def config(self, values: Mapping[str, Any], data: str, seed: int) -> TrainConfig:
        """The configuration of one training: that of ``ltnode train`` with these values, and always with held-out examples.

        Raises:
            ConfigError: A value is not allowed, or nothing would be held out.
        """
        chosen: dict[str, Any] = {}
        for key, value in values.items():
            for part in reversed(key.split(".")):
                value = {part: value}  # noqa: PLW2901 (from the innermost table outwards)
            chosen = merge(chosen, value)
        changes = merge(dict(self.train), chosen)
        model, preset = changes.pop("model", self.model), changes.pop("preset", self.preset)
        loaded = None if is_built_in(data) else self._own(data, model, preset, {**changes, "seed": seed})
        config = train_preset(model, loaded or data, preset)
        config = config.replace(**{**changes, "data": loaded.name if loaded else data, "seed": seed})
        return _with_held_out(config, changes)

    def _own(self, data: str, model: str, preset: str, changes: dict[str, Any]) -> Dataset:
        """Data of one's own, as a worker loads them for a configuration."""
        if self.table is None:
            return _loaded(self.source(data), ())
        config = _with_held_out(provisional_config(model, preset, changes), changes)
        loaded = _loaded(self.source(data), (config.validation_fraction, config.calibration_fraction, config.parts_seed))
        if loaded.parts is not None and not len(loaded.parts.validation):
            raise ConfigError(
                f"a sweep selects by held-out log-likelihood, but none of the rows of {data} are held out with seed "
                f"{config.parts_seed}: raise validation_fraction in [train], or use a group column with more groups"
            )
        return loaded

    def _check(self) -> None:
        """Check what depends on several keys, and every value that can be checked before the search."""
        ranges = [key for key, values in self.search.items() if isinstance(values, Range)]
        if self.strategy == "grid":
            if ranges:
                raise ConfigError(
                    f"a grid needs lists, but {ranges[0]} is a range: use a list, or strategy = 'random' or 'bayesian'"
                )
            if self.trials is not None:
                raise ConfigError("trials is for strategy = 'random' or 'bayesian'; a grid trains all its points: remove trials")
        elif not isinstance(self.trials, int) or isinstance(self.trials, bool) or self.trials < 1:
            raise ConfigError(
                f"a {self.strategy} search needs trials, the number of its points, as an integer >= 1, not {self.trials!r}"
            )
        if self.n_runs > MOST_RUNS:
            raise ConfigError(f"a sweep may have at most {MOST_RUNS:,} trainings, not {self.n_runs:,}: search at random, or less")
        for key in [*self.train, *self.search]:
            if key in _SEPARATE:
                raise ConfigError(
                    f"{key} is set at the top of the specification, as in {_SEPARATE[key]}, not in [train] or [search]"
                )
        for key in sorted(set(self.train) & set(self.search)):
            raise ConfigError(f"{key} is in [train] and in [search]; remove one of them")
        first = {key: _ends(values)[0] for key, values in self.search.items()}
        for data in self.data:
            self.source(data).check()
            self.config(first, data, self.seeds[0])
            for key, values in self.search.items():
                for value in _ends(values):
                    self.config({**first, key: value}, data, self.seeds[0])


def _with_held_out(config: TrainConfig, changes: Mapping[str, Any]) -> TrainConfig:
    if config.validation_fraction > 0:
        return config
    if "validation_fraction" in changes:
        raise ConfigError("a sweep selects by held-out log-likelihood: validation_fraction must be > 0, not 0")
    return config.replace(validation_fraction=_HELD_OUT)


@lru_cache(maxsize=16)
def _loaded(source: Source, held_out: tuple[float, float, int] | tuple[()]) -> Dataset:
    keys = ("validation_fraction", "calibration_fraction", "split_seed")
    return source.load(TrainConfig().replace(**dict(zip(keys, held_out, strict=False))))


def _image_size(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < SMALLEST_SIZE):
        raise ConfigError(f"image_size must be an integer >= {SMALLEST_SIZE}, not {value!r}")
    return value


def _ends(values: Range | Choices) -> Choices:
    return (values.low, values.high) if isinstance(values, Range) else values


def _space(table: Any, prefix: str = "") -> Iterator[tuple[str, Range | Choices]]:
    """The searched keys; a table without ``low`` is a table of the configuration, such as role_lr."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"[search] must be a table of lists and ranges, not {table!r}")
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and not {"low", "high"} & value.keys():
            yield from _space(value, f"{name}.")
        elif isinstance(value, Mapping):
            yield name, _range(name, value)
        elif isinstance(value, list) and value and all(value.count(entry) == 1 for entry in value):
            yield name, tuple(value)
        else:
            raise ConfigError(
                f"search.{name} must be a list of different values, or a range such as {{ low = 0.001, high = 0.1 }}, "
                f"not {value!r}"
            )


def _range(name: str, table: Mapping[str, Any]) -> Range:
    if unknown := table.keys() - {"low", "high", "log"}:
        raise ConfigError(unknown_name(f"key of the range search.{name}", min(unknown), ("low", "high", "log")))
    low, high, log = (table.get(key, default) for key, default in (("low", None), ("high", None), ("log", False)))
    numbers = all(is_finite_number(end) for end in (low, high))
    if not numbers or not isinstance(log, bool) or not low < high or (log and low <= 0):
        raise ConfigError(
            f"the range search.{name} needs numbers low < high, and low > 0 if log is true, not low = {low!r}, high = {high!r}, "
            f"log = {log!r}"
        )
    return Range(low, high, log)


def _of_type(key: str, value: Any, kind: Any, wanted: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{key} must be {wanted}, not {value!r}")
    return value


def _several(key: str, value: Any, kind: type, wanted: str) -> tuple[Any, ...]:
    values = value if isinstance(value, list | tuple) else [value]
    right = all(isinstance(entry, kind) and not isinstance(entry, bool) for entry in values)
    if not values or not right or len(set(values)) < len(values):
        raise ConfigError(f"{key} must be {wanted}, not {value!r}")
    return tuple(values)


def _named(key: str, value: Any, names: tuple[str, ...]) -> Any:
    if value not in names:
        raise ConfigError(unknown_name(key, value, names))
    return value
