"""The grid of the image experiments: one TOML file per data set and model, which is checked when it is read.

A file has the keys ``data`` and ``model``, a table ``[train]`` with changes of the training preset for all its runs, and tables
``[[runs]]`` with ``preset``, ``seeds`` and, for runs with further changes, the name ``variant`` and the changes: ``train`` of the
configuration, ``images`` of the data (``augment = "none"``, ``normalise = "unit"`` for pixels from 0 to 1).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ltnode.data import Dataset, Normalisation
from ltnode.errors import ConfigError, InputError, unknown_name
from ltnode.models import MODELS, PRESETS, InputSpec, Model, build, input_spec
from ltnode.report.naming import Variant, data_title
from ltnode.training import TrainConfig, train_preset

DATA_SETS = ("cifar10", "svhn", "fashion-mnist", "mnist")
"""In the order in which missing cells are run."""
STANDARD = "standard"
"""Name of the variant without changes of the preset."""
_MODELS = ("node", "uni-node", "lt-node", "alt-node", "sde-net", "node-gp")
_LATER = {"sde-net": 1, "node-gp": 2}
_FILE_KEYS, _RUN_KEYS = ("data", "model", "train", "runs"), ("preset", "variant", "seeds", "train", "images")
_IMAGES = {"augment": "none", "normalise": "unit"}
"""Changes of the data that a run can have."""


@dataclass(frozen=True)
class Cell:
    """One run of the grid.

    Attributes:
        data: Name of the data set.
        model: Name of the model.
        preset: ``"paper"`` or ``"default"``.
        variant: Name of further changes; empty for the unchanged preset.
        seed: Seed of the weights, the order of the data and the end-times.
        train: Changes of the training preset.
        trial: Settings of a quick trial, whose results never count.
        images: Changes of the data, as in the grid.
    """

    data: str
    model: str
    preset: str
    variant: str
    seed: int
    train: Mapping[str, Any] = field(default_factory=dict, hash=False)
    trial: tuple[str, ...] = ()
    images: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        """Name of its run folder, and of its result file after ``images-``."""
        words = [self.data, self.model, self.preset, self.variant, f"seed{self.seed}", "trial" if self.trial else ""]
        return "-".join(word for word in words if word)

    @property
    def title(self) -> str:
        """Description for people."""
        shown = Variant(self.model, self.preset, self.variant).title
        return f"{data_title(self.data)}, {shown}, seed {self.seed}{' (trial)' if self.trial else ''}"

    @property
    def config(self) -> TrainConfig:
        """Training configuration."""
        # The preset is that of the model: all trainings of the reproduction have the paper's schedule.
        schedule = train_preset(self.model, self.data, "paper").replace(preset=self.preset)
        config = schedule.replace(seed=self.seed).replace(**self.train)
        return config.with_overrides(self.trial)

    def build(self, data: Any | None = None) -> Model:
        """Build the untrained model."""
        options = self.config.model_options
        spec: InputSpec = input_spec(self.data if data is None else data)
        return build(self.model, spec, self.preset, seed=self.seed, **options)  # type: ignore[arg-type]

    def changed(self, data: Dataset) -> Dataset:
        """The data set with the changes of the cell."""
        if "augment" in self.images:
            data = replace(data, augment=None)
        if "normalise" in self.images:
            channels = data.input_shape[0]
            data = replace(data, normalise=Normalisation((0.0,) * channels, (1.0,) * channels))
        return data

    @property
    def command(self) -> str:
        """The command that trains and evaluates it."""
        variant = self.variant or STANDARD
        words = f"--data {self.data} --models {self.model} --presets {self.preset} --variants {variant} --seeds {self.seed}"
        return f"ltnode reproduce images {words}"


def load_grid(folder: Path) -> list[Cell]:
    """Read all cells of a grid, the most important ones first.

    Args:
        folder: Folder of the TOML files.

    Raises:
        ConfigError: There are no files, or one is damaged, has an unknown key or an invalid value, or names a cell twice.
    """
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise ConfigError(
            f"{folder} holds no grid of the image experiments (TOML files). The reproduction runs from a clone of the "
            "repository, which has paper/grid: change to its folder, or pass its folder paper with --paper"
        )
    cells = [cell for file in files for cell in _read(file)]
    seen: set[str] = set()
    for cell in cells:
        if cell.name in seen:
            raise ConfigError(f"the grid in {folder} names {cell.title} twice; give one of them a variant or another seed")
        seen.add(cell.name)
    return sorted(cells, key=_importance)


def select(
    cells: Iterable[Cell],
    data: Sequence[str] = (),
    models: Sequence[str] = (),
    presets: Sequence[str] = (),
    variants: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    settings: Sequence[str] = (),
) -> list[Cell]:
    """Select cells of a grid; empty arguments select everything.

    Args:
        cells: Cells from `load_grid`.
        data: Names of data sets.
        models: Names of models.
        presets: Names of presets.
        variants: Names of variants; ``"standard"`` is the unchanged preset.
        seeds: Seeds that replace those of the grid.
        settings: ``key=value`` changes of the training configuration, for a quick trial.

    Raises:
        InputError: A name is not in the grid.
    """
    grid = list(cells)
    kinds: list[tuple[str, Sequence[str], list[str]]] = [
        ("data set of the grid", data, [cell.data for cell in grid]),
        ("model of the grid", models, [cell.model for cell in grid]),
        ("preset of the grid", presets, [cell.preset for cell in grid]),
        ("variant of the grid", variants, [cell.variant or STANDARD for cell in grid]),
    ]
    for kind, names, known in kinds:
        for name in names:
            if name not in known:
                raise InputError(unknown_name(kind, name, set(known)))
    chosen: dict[str, Cell] = {}
    for position, cell in enumerate(grid):
        if all(not names or known[position] in names for _, names, known in kinds):
            for seed in [cell.seed] if seeds is None else seeds:
                changed = replace(cell, seed=seed, trial=tuple(settings))
                chosen[changed.name] = changed
    return sorted(chosen.values(), key=_importance)


def _importance(cell: Cell) -> tuple[int, int, bool, int, int, bool, str]:
    return (
        _LATER.get(cell.model, 0),
        cell.seed,
        bool(cell.variant),
        DATA_SETS.index(cell.data),
        _MODELS.index(cell.model) if cell.model in _MODELS else len(_MODELS),
        cell.preset != "paper",
        cell.variant,
    )


def _read(file: Path) -> list[Cell]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the grid file {file}: {error}") from error
    _known(file, "key", content, _FILE_KEYS)
    data, model, runs = content.get("data", ""), content.get("model", ""), content.get("runs")
    _known(file, "data set", [data], DATA_SETS)
    _known(file, "model", [model], MODELS)
    if file.stem != f"{data}-{model}":
        raise ConfigError(f"{file} describes {model} on {data}: call it {data}-{model}.toml")
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise ConfigError(f"{file} has no runs: add a table [[runs]] with preset and seeds")
    return [cell for run in runs for cell in _cells(file, data, model, content.get("train", {}), run)]


def _cells(file: Path, data: str, model: str, common: Any, run: Mapping[str, Any]) -> list[Cell]:
    _known(file, "key of a run", run, _RUN_KEYS)
    preset, variant, seeds = run.get("preset", ""), run.get("variant", ""), run.get("seeds")
    _known(file, "preset", [preset], PRESETS)
    if not isinstance(variant, str) or not re.fullmatch(r"([a-z][a-z0-9.-]*)?", variant) or variant == STANDARD:
        rule = f"lower-case letters, digits, dots and hyphens, and not {STANDARD!r}"
        raise ConfigError(f"{file}: variant must consist of {rule}, not {variant!r}")
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int and seed >= 0 for seed in seeds):
        raise ConfigError(f"{file}: seeds must be a list of whole numbers >= 0, not {seeds!r}")
    changes, images = run.get("train", {}), run.get("images", {})
    if bool(variant) != bool(changes or images):
        raise ConfigError(f"{file}: a run with changes (train, images) needs a variant as its name, and a variant needs changes")
    if not isinstance(common, dict) or not isinstance(changes, dict):
        raise ConfigError(f"{file}: train must be a table of training settings")
    if not isinstance(images, dict) or not images.items() <= _IMAGES.items():
        raise ConfigError(f"{file}: images may hold {_IMAGES}, not {images!r}")
    cells = [Cell(data, model, preset, variant, seed, {**common, **changes}, images=images) for seed in seeds]
    try:
        for cell in cells:
            cell.config  # noqa: B018 - checks all its values
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return cells


def _known(file: Path, kind: str, names: Iterable[Any], valid: Iterable[str]) -> None:
    for name in names:
        if name not in valid:
            raise ConfigError(f"{file}: {unknown_name(kind, name, valid)}")
