"""Which cell of the grid a run folder belongs to, and how a finished run is imported as the run of its cell."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ltnode.errors import CheckpointError, ConfigError
from ltnode.report.runs import EVALUATION
from ltnode.training import RunStatus, TrainConfig
from ltnode.training.run import RunFolder
from ltnode.training.run_config import read_run_config
from paper.reproduce.images.grid import Cell

_RUN_FILES = ("config.json", "model.safetensors", "results.json", "metrics.jsonl", EVALUATION)
_NOT_DECISIVE = ("log_every",)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a finished run."""
    return RunFolder(folder).status() is RunStatus.COMPLETE and (folder / "model.safetensors").exists()


def run_config(folder: Path) -> TrainConfig:
    """The training configuration of a run folder."""
    content = read_run_config(folder, "a run folder")
    if content["kind"] != "run":
        raise CheckpointError(f"{folder} holds a saved model, not a run: it does not say how the model was trained")
    return TrainConfig.from_json(content["train"])


def import_run(source: Path, cells: Sequence[Cell], runs: Path) -> Cell:
    """Copy a finished run to the place of the cell that has its settings.

    Args:
        source: Run folder, such as one of the zoo.
        cells: Cells of the grid; their seeds are ignored, since the run has its own.
        runs: Folder of the run folders.

    Returns:
        The cell.

    Raises:
        CheckpointError: The folder holds no finished run, or there is another run in the place of the cell.
        ConfigError: No cell has these settings.
    """
    config = run_config(source)
    if not is_finished(source):
        raise CheckpointError(f"{source} holds no finished run; continue it with `ltnode train --resume` first")
    cell = cell_of(config, cells)
    if cell is None:
        nearest = min((differences(replace(cell, seed=config.seed), config) for cell in cells), key=len, default=[])
        raise ConfigError(
            f"no cell of the grid has the settings of {source} ({config.model} on {config.data}, preset {config.preset}, "
            f"seed {config.seed}): the nearest differs in {'; '.join(nearest)}"
        )
    target = runs / cell.name
    if target.resolve() == source.resolve():
        return cell
    old, new = target / "model.safetensors", source / "model.safetensors"
    if target.exists() and not (old.exists() and old.read_bytes() == new.read_bytes()):
        raise CheckpointError(f"{target} already holds another run; move it away, or choose another folder with --runs")
    target.mkdir(parents=True, exist_ok=True)
    for name in _RUN_FILES:
        if (source / name).exists() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)
    return cell


def cell_of(config: TrainConfig, cells: Sequence[Cell]) -> Cell | None:
    """The cell that has the settings of a configuration, with its seed; None if there is none."""
    for cell in cells:
        same_seed = replace(cell, seed=config.seed)
        names = (cell.data, cell.model, cell.preset)
        if names == (config.data, config.model, config.preset) and not differences(same_seed, config):
            return same_seed
    return None


def differences(cell: Cell, config: TrainConfig) -> list[str]:
    """Settings of a configuration that differ from those of the cell, as text."""
    return [text for text in cell.config.differences(config) if text.partition(":")[0] not in _NOT_DECISIVE]
