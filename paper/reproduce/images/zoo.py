"""The zoo: trained models that are part of the repository, one folder for each, with the records of their measurements."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltnode.errors import DataError
from ltnode.training import TrainConfig
from paper.reproduce.images.cells import Places, State, state
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult, read_results
from paper.reproduce.images.run_folders import cell_of, run_config

MODELS = ("node", "uni-node", "lt-node", "alt-node")
"""Models whose weights of seed 0 may be kept."""
_FILES = ("config.json", "model.safetensors", "results.json", "metrics.jsonl")


@dataclass(frozen=True, eq=False)
class PaperEntry:
    """A model with the paper's posterior and schedule.

    Attributes:
        folder: Its folder.
        cell: The cell of the grid that it belongs to.
        result: Its recorded result; None if it was not evaluated.
    """

    folder: Path
    cell: Cell
    result: ImageResult | None


@dataclass(frozen=True, eq=False)
class DefaultEntry:
    """A model of the default recipe, or an ensemble of such models.

    Attributes:
        folder: Its folder.
        config: How it was trained.
        row: Its measurements on the test set, by `benchmarks/promises.py`.
        small_part: Numbers of the first test images, which anyone can check in seconds.
    """

    folder: Path
    config: TrainConfig
    row: dict[str, Any]
    small_part: dict[str, Any]


Entry = PaperEntry | DefaultEntry


@dataclass(frozen=True)
class Records:
    """Where the measurements of the zoo are recorded.

    Attributes:
        paper: Folder of the results of the image experiments.
        default: Record of the models of the default recipe.
    """

    paper: Path
    default: Path


def zoo_name(cell: Cell) -> str:
    """Name of the folder of a cell; the names without ``paper`` belong to the default recipe."""
    return f"{cell.model}-{cell.data}-paper"


def add_runs(zoo: Path, cells: Sequence[Cell], places: Places) -> list[Path]:
    """Copy finished runs of the paper's preset with seed 0 into the zoo; models that it already has are not replaced.

    Args:
        zoo: Folder of the zoo.
        cells: Cells of the grid.
        places: Where the runs are.

    Returns:
        The new folders.
    """
    added = []
    for cell in cells:
        belongs = cell.model in MODELS and cell.preset == "paper" and cell.seed == 0 and not cell.variant and not cell.trial
        source, target = places.run(cell), zoo / zoo_name(cell)
        if not belongs or target.exists() or not source.is_dir() or state(cell, places, ())[0] is State.INTERRUPTED:
            continue
        target.mkdir(parents=True)
        for name in _FILES:
            shutil.copyfile(source / name, target / name)
        added.append(target)
    return added


def read_zoo(zoo: Path, cells: Sequence[Cell], records: Records) -> list[Entry]:
    """Read the models of the zoo with their measurements, ordered by name.

    Raises:
        DataError: A folder's name is not that of its run, its run is in no record, or the record is that of other weights.
    """
    recorded = {(r.data, r.model, r.preset, r.variant, r.seed): r for r in reversed(read_results(records.paper))}
    entries: list[Entry] = []
    for file in sorted(zoo.glob("*/config.json")):
        folder, config = file.parent, run_config(file.parent)
        if config.preset != "paper":
            entries.append(_default_entry(folder, config, records))
            continue
        cell = cell_of(config, cells)
        if cell is None or zoo_name(cell) != folder.name:
            raise DataError(f"{folder} holds no run of the grid of that name; paper's runs must be cells of paper/grid")
        entries.append(PaperEntry(folder, cell, recorded.get((cell.data, cell.model, cell.preset, cell.variant, cell.seed))))
    return entries


def _default_entry(folder: Path, config: TrainConfig, records: Records) -> DefaultEntry:
    is_ensemble = config.model == "ensemble"
    network = config.model_options["of"] if is_ensemble else config.model
    name = f"{config.data}-{network}-" + ("ensemble" if is_ensemble else f"seed{config.seed}")
    small = dict(read_record(records.default)["models"].get(folder.name, {}))
    row = small.pop("test_set", {})
    if row.get("name") != name or folder.name != f"{config.model}-{config.data}":
        raise DataError(f"{folder} must hold the run {name} of {records.default} and be called {config.model}-{config.data}")
    weights = read_record(folder / "operating_point.json")["weights"]
    # The row of an ensemble is measured on the averaged predictions of its networks, so it has no weights of its own.
    measured = [small] if is_ensemble else [small, row["provenance"]]
    if any(found.get("weights_sha256") != weights for found in measured):
        raise DataError(f"the records have no numbers of the weights of {folder}; measure them with benchmarks/promises.py")
    return DefaultEntry(folder, config, row, small)


def read_record(path: Path) -> dict[str, Any]:
    """Read a JSON file of the repository."""
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is missing or damaged ({error}); restore it from the repository") from error
    return content
