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
"""Models whose weights of seed 0 are kept."""
_FILES = ("config.json", "model.safetensors", "results.json", "metrics.jsonl")
_TWO_PRESETS = ("lt-node", "alt-node")


@dataclass(frozen=True, eq=False)
class Entry:
    """One model of the zoo.

    Attributes:
        folder: Its folder.
        cell: The cell of the grid that it belongs to.
        result: Its recorded result; None if it was not evaluated.
    """

    folder: Path
    cell: Cell
    result: ImageResult | None


def zoo_name(cell: Cell) -> str:
    """Name of the folder of a cell: model and data, and ``paper`` if the model has two presets and this is the paper's."""
    return f"{cell.model}-{cell.data}" + ("-paper" if cell.model in _TWO_PRESETS and cell.preset == "paper" else "")


def add_runs(zoo: Path, cells: Sequence[Cell], places: Places) -> list[Path]:
    """Copy finished runs with seed 0 into the zoo; models that it already has are not replaced.

    Args:
        zoo: Folder of the zoo.
        cells: Cells of the grid.
        places: Where the runs are.

    Returns:
        The new folders.
    """
    added = []
    for cell in cells:
        belongs = cell.model in MODELS and cell.seed == 0 and not cell.variant and not cell.trial
        source, target = places.run(cell), zoo / zoo_name(cell)
        if not belongs or target.exists() or not source.is_dir() or state(cell, places, ())[0] is State.INTERRUPTED:
            continue
        target.mkdir(parents=True)
        for name in _FILES:
            shutil.copyfile(source / name, target / name)
        added.append(target)
    return added


def read_zoo(zoo: Path, cells: Sequence[Cell], results: Path) -> list[Entry]:
    """Read the models of the zoo with their results, ordered by name.

    Raises:
        DataError: A folder holds a run that is not in the grid, or its name is not that of its cell.
    """
    recorded = {(r.data, r.model, r.preset, r.variant, r.seed): r for r in reversed(read_results(results))}
    entries = []
    for config in sorted(zoo.glob("*/config.json")):
        folder = config.parent
        cell = cell_of(run_config(folder), cells)
        if cell is None or zoo_name(cell) != folder.name:
            raise DataError(f"{folder} holds no run of the grid of that name; the models of the zoo must be cells of paper/grid")
        entries.append(Entry(folder, cell, recorded.get((cell.data, cell.model, cell.preset, cell.variant, cell.seed))))
    return entries
