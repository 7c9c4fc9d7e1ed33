"""The image experiments: train what is missing, continue what was interrupted, evaluate, and record one small file per cell.

The run folder of a cell is ``<runs>/<name of the cell>``. It may come from another machine: `run_folders.import_run` copies a
finished run to the place of its cell, so training and evaluation need not happen on the same machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from ltnode.data import Dataset
from ltnode.data import load as load_data
from ltnode.device import choose_device
from ltnode.errors import ConfigError
from ltnode.evaluation.protocols import PROTOCOLS
from ltnode.report.runs import EVALUATION
from ltnode.training import Run, RunStatus, TrainConfig, fit, load
from ltnode.training.engine import Job, fit_together
from ltnode.training.run import RunFolder
from paper.reproduce.images.evaluation import Evaluation, is_recorded, record
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import PREFIX, ImageResult, read_result
from paper.reproduce.images.run_folders import differences, is_finished, run_config


class State(StrEnum):
    """Progress of a cell."""

    MISSING = "missing"
    INTERRUPTED = "interrupted"
    TRAINED = "trained"
    """Training is finished, but some protocols are not evaluated."""
    DONE = "done"


@dataclass(frozen=True)
class Places:
    """Where files are.

    Attributes:
        runs: Folder of the run folders.
        out: Folder of the result files.
    """

    runs: Path
    out: Path

    def run(self, cell: Cell) -> Path:
        """Run folder of a cell."""
        return self.runs / cell.name

    def result(self, cell: Cell) -> Path:
        """Result file of a cell."""
        return self.out / f"{PREFIX}{cell.name}.json"

    def recorded(self, cell: Cell) -> ImageResult | None:
        """The recorded result of a cell; None if there is none."""
        path = self.result(cell)
        return read_result(path) if path.exists() else None


def state(cell: Cell, places: Places, protocols: Sequence[str]) -> tuple[State, list[str]]:
    """Return the progress of a cell, and which of some protocols are recorded."""
    recorded = places.recorded(cell)
    have = [] if recorded is None else [key.partition(":")[0] for key in recorded.protocols]
    done = [name for name in protocols if name in have]
    if recorded is not None and len(done) == len(protocols):
        return State.DONE, done
    folder = places.run(cell)
    if not (folder / "config.json").exists():
        return (State.MISSING if recorded is None else State.TRAINED), done
    return (State.TRAINED if is_finished(folder) else State.INTERRUPTED), done


def has_cost(cell: Cell, places: Places) -> bool:
    """Whether the result of any seed of the same model on the same data says how long a prediction takes."""
    for path in places.out.glob(f"{PREFIX}{cell.name.rpartition('-seed')[0]}-seed*.json"):
        if (read_result(path).protocols.get("clean") or {}).get("cost"):
            return True
    return False


def failure(cell: Cell, places: Places) -> str:
    """Why a cell cannot be completed, from its run folder; empty if that says nothing."""
    folder = RunFolder(places.run(cell))
    if not folder.path.exists() and places.result(cell).exists():
        return f"its result is not complete, and its run folder {folder.path} is missing: restore it, or delete the result"
    if folder.status() in (RunStatus.COMPLETE, RunStatus.INTERRUPTED) or not folder.results.exists():
        return ""
    return str(folder.read_results().get("message") or "")


def paper_protocols() -> list[str]:
    """The paper's protocols for images."""
    return [name for name, protocol in PROTOCOLS.items() if protocol.in_paper and protocol.task == "classification"]


def reproduce(cell: Cell, places: Places, evaluation: Evaluation | None = None, device: str | None = None) -> ImageResult | None:
    """Complete one cell: train it or continue its training, evaluate what is missing, and write the result file.

    Args:
        cell: The cell.
        places: Where its files are.
        evaluation: What to evaluate; None only trains.
        device: Device for training; None chooses the best one.

    Returns:
        The recorded result; None if nothing was evaluated.

    Raises:
        ConfigError: The run folder or the result file belongs to other settings or other weights.
        TrainingError: Training failed.
        DataError: The data set is not available.
    """
    if evaluation is not None and not evaluation.overwrite:
        old = places.recorded(cell)
        if old is not None and all(
            is_recorded(old, name, cell, evaluation) for name in evaluation.protocols or paper_protocols()
        ):
            return old
    data = cell.changed(load_data(cell.data))
    run = trained(cell, places, data, device)
    return None if evaluation is None else record(cell, run, data, places.result(cell), places.run(cell) / EVALUATION, evaluation)


def trained(cell: Cell, places: Places, data: Dataset, device: str | None = None) -> Run:
    """Return the finished run of a cell; it is trained, or its training is continued, if necessary."""
    folder = places.run(cell)
    if is_finished(folder):
        return _opened(cell, folder)
    config = _config(cell, device)
    return fit(cell.build(data), data, config, folder, resume=True)


def train_together(cells: Sequence[Cell], places: Places, count: int, device: str | None = None) -> None:
    """Train unfinished cells concurrently, those with the same precision together; when one ends, the next one begins.

    Args:
        cells: Cells of any kind and on any data; those with a finished run or a result are skipped.
        places: Where their run folders are.
        count: Largest number of concurrent runs.
        device: Device for training; None chooses the best one.

    Raises:
        TrainingError: A run failed; the other runs of its precision were completed.
    """
    left = [cell for cell in cells if state(cell, places, ())[0] in (State.MISSING, State.INTERRUPTED)]
    sets = {name: _on_device(load_data(name), device) for name in dict.fromkeys(cell.data for cell in left)}
    for precision in dict.fromkeys(cell.config.precision for cell in left):
        jobs = []
        for cell in left:
            config = _config(cell, device)
            if config.precision == precision:
                data = cell.changed(sets[cell.data])
                jobs.append(Job(cell.build(data), data, config, places.run(cell)))
        fit_together(jobs, resume=True, at_once=count)


def _config(cell: Cell, device: str | None) -> TrainConfig:
    """The configuration of a training, which writes checkpoints by the clock only."""
    # One after each of 300 epochs of a tenth of a second would stall all concurrent runs for as long as they compute.
    config = cell.config.replace(checkpoint_epochs=None)
    return config if device is None else config.replace(device=device)


def _on_device(data: Dataset, device: str | None) -> Dataset:
    """A data set whose training examples are on the device, where all runs share them."""
    return replace(data, train=data.train.to(choose_device(device or "auto")))


def _opened(cell: Cell, folder: Path) -> Run:
    config = run_config(folder)
    found = differences(cell, config)
    if found:
        raise ConfigError(
            f"{folder} is not the run of {cell.title}: {'; '.join(found)}. Move it away, or choose another folder with --runs"
        )
    return Run(load(folder), config, folder, status=RunStatus.COMPLETE, results=RunFolder(folder).read_results())
