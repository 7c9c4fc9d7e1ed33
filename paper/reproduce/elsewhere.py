"""Parts of the reproduction as tasks of an engine (``--engine local`` or ``ray``): each trains, measures, and writes its files.

The functions take plain values, since they are called in other processes, and all workers must see the folders. The command then
goes through the same parts itself, and finds them done.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.cluster.elsewhere import run_in_clone
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Task
from paper.reproduce.images import cells as image_cells
from paper.reproduce.images.evaluation import Evaluation
from paper.reproduce.images.grid import Cell
from paper.reproduce.motivating import tasks as motivating
from paper.reproduce.one_dimensional import selection
from paper.reproduce.one_dimensional.experiment import EVERY, reproduce


def synthetic_variant(variant: str, seed: int, out: str, runs: str, iterations: int) -> None:
    """Train and measure one model on the one-dimensional data."""
    reproduce(EVERY[variant], seed, Path(out), Path(runs), iterations)


def synthetic_time(time: float, seed: int, out: str, runs: str, iterations: int) -> None:
    """Train and measure a NODE at one end-time."""
    selection.reproduce_time(time, seed, Path(out), Path(runs), iterations)


def motivating_task(task: Any, model: str, seed: int, out: str, runs: str, steps: int) -> None:
    """Train and measure one model on one of the motivating tasks."""
    motivating.reproduce(task, model, seed, Path(out), Path(runs), steps)


def image_cell(cell: Mapping[str, Any], runs: str, out: str, evaluation: Mapping[str, Any] | None, device: str | None) -> None:
    """Train, and unless ``evaluation`` is None evaluate, one cell of the grid."""
    restored = Cell(**{**cell, "trial": tuple(cell["trial"])})
    protocols = None if evaluation is None or evaluation["protocols"] is None else tuple(evaluation["protocols"])
    chosen = None if evaluation is None else Evaluation(**{**evaluation, "protocols": protocols})
    image_cells.reproduce(restored, image_cells.Places(Path(runs), Path(out)), chosen, device)


def image_arguments(cell: Cell, places: image_cells.Places, evaluation: Evaluation | None, device: str | None) -> dict[str, Any]:
    """The arguments of `image_cell`."""
    return {
        "cell": dataclasses.asdict(cell),
        "runs": str(places.runs.absolute()),
        "out": str(places.out.absolute()),
        "evaluation": None if evaluation is None else dataclasses.asdict(evaluation),
        "device": device,
    }


def run_parts(
    engine: str, address: str | None, function: str, parts: Sequence[Mapping[str, Any]], device: str | None = "cpu"
) -> list[str]:
    """Run parts on an engine; returns one message for each that failed, and the command itself will meet the reason again.

    Args:
        engine: ``"local"`` or ``"ray"``.
        address: Address of the Ray cluster.
        function: Name of a function of this module.
        parts: The arguments of each call.
        device: Device of the trainings; only the CPU needs no share of a GPU.
    """
    tasks = [Task(f"part {number}", f"{__name__}:{function}", arguments) for number, arguments in enumerate(parts)]
    with make_executor(engine, address=address, device=device or "auto") as executor:
        return [f"{name}: {reason}" for name, reason in run_in_clone(tasks, executor).items()]
