"""Which cell of the grid a run folder is of, and how a finished run gets into its place."""

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


def run_config(folder: Path) -> TrainConfig:
    """The training configuration of a run folder."""
    content = read_run_config(folder, "a run folder")
    if content["kind"] != "run":
        raise CheckpointError(f"{folder} holds a saved model, not a run: nothing says how it was trained")
    return TrainConfig.from_json(content["train"])


def import_run(source: Path, cells: Sequence[Cell], runs: Path) -> Cell:
    """Put a finished run in the place of the cell whose settings it has.

    Args:
        source: Run folder, such as one of the zoo.
        cells: Of the grid; the run's own seed counts, whatever theirs.
        runs: Folder of the run folders.

    Returns:
        The cell.

    Raises:
        CheckpointError: The folder holds no finished run, or the place holds another.
        ConfigError: No cell has these settings.
    """
    config = run_config(source)
    if RunFolder(source).status() is not RunStatus.COMPLETE or not (source / "model.safetensors").exists():
        raise CheckpointError(f"{source} holds no finished run; continue it with `ltnode train --resume` first")
    cell = cell_of(config, cells)
    if cell is None:
        raise ConfigError(
            f"no cell of the grid has the settings of {source} ({config.model} on {config.data}, preset {config.preset}, "
            f"seed {config.seed}): {_nearest(config, cells)}"
        )
    target = runs / cell.name
    if target.resolve() == source.resolve():
        return cell
    weights = (source / "model.safetensors").read_bytes()
    if target.exists() and not (
        (target / "model.safetensors").exists() and (target / "model.safetensors").read_bytes() == weights
    ):
        raise CheckpointError(f"{target} already holds another run; move it away, or choose another folder with --runs")
    target.mkdir(parents=True, exist_ok=True)
    for name in _RUN_FILES:
        if (source / name).exists() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)
    return cell


def cell_of(config: TrainConfig, cells: Sequence[Cell]) -> Cell | None:
    """The cell that a configuration is of; None where there is none."""
    for cell in cells:
        same_seed = replace(cell, seed=config.seed)
        if _names(cell) == (config.data, config.model, config.preset) and not differences(same_seed, config):
            return same_seed
    return None


def _names(cell: Cell) -> tuple[str, str, str]:
    return cell.data, cell.model, cell.preset


def _nearest(config: TrainConfig, cells: Sequence[Cell]) -> str:
    found = [differences(replace(cell, seed=config.seed), config) for cell in cells]
    best = min(found, key=len, default=[])
    return f"the nearest differs in {'; '.join(best)}"


def differences(cell: Cell, config: TrainConfig) -> list[str]:
    """Settings of a run that are not those of the cell, as texts."""
    found = cell.config.differences(config)
    return [text for text in found if text.partition(":")[0] not in _NOT_DECISIVE]
