"""A stored network evaluated once more with another way of predicting: a hypothesis can then be tested without any training.

The numbers are written to ``again-<cell>-<change>.json`` in the results, in the format of the image experiments, with the change
as the variant. They never enter a table or a claim.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ltnode.data import load as load_data
from ltnode.errors import ConfigError
from ltnode.models import LatentTimeODE
from ltnode.training import Run, RunStatus, load
from ltnode.training.run import RunFolder
from paper.reproduce.images.evaluation import Evaluation, record
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult, read_result
from paper.reproduce.images.run_folders import cell_of, run_config

PREFIX = "again-"


@dataclass(frozen=True)
class Change:
    """Another way of predicting with the same weights.

    Attributes:
        about: What is different, in words.
        truncate: Whether end-times are restricted to the training window.
        options: Options of `ltnode.evaluate`.
    """

    about: str
    truncate: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


CHANGES: Mapping[str, Change] = {
    "unchanged": Change("nothing: a check that the recorded numbers come out again"),
    "truncated": Change("end-times from the posterior truncated to the training window", truncate=True),
    "quantiles": Change("ten quantiles of the posterior in place of ten random end-times", options={"draw": "quantile"}),
    "many-draws": Change("100 random end-times in place of ten", options={"samples": 100}),
    "stored-grid": Change("the steps of the prediction grid in place of adaptive ones", options={"steps": "stored"}),
}


def evaluate_again(
    run: Path, change: str, protocols: Sequence[str], out: Path, grid: Sequence[Cell], device: str | None = None
) -> tuple[ImageResult, Path]:
    """Evaluate the network of a finished run with a change; protocols that are recorded are not evaluated again.

    Args:
        run: The run folder.
        change: A key of `CHANGES`.
        protocols: Names of protocols of `ltnode.evaluate`.
        out: Folder of the results.
        grid: Cells, among which the run is found by its settings.
        device: Device; None chooses the best one.

    Raises:
        ConfigError: No cell has the settings of the run, or the network has no posterior to change.
    """
    config, made = run_config(run), CHANGES[change]
    cell = cell_of(config, grid)
    if cell is None:
        raise ConfigError(f"no cell of the grid has the settings of {run}")
    model = load(run)
    if made.truncate:
        if not isinstance(model, LatentTimeODE) or not model.end_time.learnable:
            raise ConfigError(f"{run} holds a network without a learnt posterior, whose end-times cannot be truncated")
        model.end_time.truncate = True
    finished = Run(model, config, run, status=RunStatus.COMPLETE, results=RunFolder(run).read_results())
    path = out / f"{PREFIX}{cell.name}-{change}.json"
    evaluation = Evaluation(tuple(protocols), {"draws": 0, **made.options}, device)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "evaluation.json"
        return record(replace(cell, variant=f"{PREFIX}{change}"), finished, load_data(cell.data), path, file, evaluation), path


def read_again(folder: Path) -> list[ImageResult]:
    """All records of networks that were evaluated again."""
    return [read_result(path) for path in sorted(folder.glob(f"{PREFIX}*.json"))]
