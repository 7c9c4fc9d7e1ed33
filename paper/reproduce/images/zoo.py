"""The zoo: trained models that are part of the repository, one folder for each."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ltnode.errors import DataError
from paper.reproduce.images.cells import Places, State, state
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult, read_results
from paper.reproduce.images.run_folders import cell_of, run_config

MODELS = ("node", "uni-node", "lt-node", "alt-node")
"""Of which the weights of seed 0 are kept."""
_FILES = ("config.json", "model.safetensors", "results.json", "metrics.jsonl")
_TWO_PRESETS = ("lt-node", "alt-node")


@dataclass(frozen=True, eq=False)
class Entry:
    """One model of the zoo.

    Attributes:
        folder: Where it is.
        cell: What it is.
        result: What was measured; None where nothing was.
    """

    folder: Path
    cell: Cell
    result: ImageResult | None


def zoo_name(cell: Cell) -> str:
    """Name of a cell's folder: model and data, and the preset where a model has two and it is the paper's."""
    return f"{cell.model}-{cell.data}" + ("-paper" if cell.model in _TWO_PRESETS and cell.preset == "paper" else "")


def add_runs(zoo: Path, cells: Sequence[Cell], places: Places) -> list[Path]:
    """Copy finished runs of seed 0 into the zoo; those that are there already are left as they are.

    Args:
        zoo: Its folder.
        cells: Of the grid.
        places: Where the runs are.
    """
    added = []
    for cell in cells:
        wanted = cell.model in MODELS and cell.seed == 0 and not cell.variant and not cell.trial
        source, target = places.run(cell), zoo / zoo_name(cell)
        if not wanted or target.exists() or not source.is_dir() or state(cell, places, ())[0] is State.INTERRUPTED:
            continue
        target.mkdir(parents=True)
        for name in _FILES:
            shutil.copyfile(source / name, target / name)
        added.append(target)
    return added


def read_zoo(zoo: Path, cells: Sequence[Cell], results: Path) -> list[Entry]:
    """The models of the zoo with their results, by name.

    Raises:
        DataError: A folder holds a run that is no cell of the grid, or has another name than its cell.
    """
    measured = read_results(results)
    entries = []
    for config in sorted(zoo.glob("*/config.json")):
        folder = config.parent
        cell = cell_of(run_config(folder), cells)
        if cell is None or zoo_name(cell) != folder.name:
            raise DataError(f"{folder} holds no run of the grid of that name; the zoo's models are cells of paper/grid")
        found = [r for r in measured if (r.data, r.model, r.preset, r.variant, r.seed) == _key(cell)]
        entries.append(Entry(folder, cell, found[0] if found else None))
    return entries


def _key(cell: Cell) -> tuple[str, str, str, str, int]:
    return cell.data, cell.model, cell.preset, cell.variant, cell.seed
