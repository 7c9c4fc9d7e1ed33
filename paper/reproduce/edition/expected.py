"""How long the cells of the grid take on one GPU, estimated from recorded runs.

A training that shared the device with others counts as its share of the wall time. Where a record does not say how many runs
shared the device, the wall time is an upper bound, and so is every estimate that is made from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ltnode.errors import CheckpointError
from ltnode.training.run import RunFolder
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.results import ImageResult
from paper.reproduce.images.run_folders import run_config


@dataclass(frozen=True)
class Seconds:
    """A time of the device.

    Attributes:
        value: Seconds.
        at_most: Whether it is only an upper bound.
    """

    value: float
    at_most: bool = False

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(self.value + other.value, self.at_most or other.at_most)

    @property
    def text(self) -> str:
        """Seconds or minutes, such as ``at most 12 min``."""
        rounded = f"{self.value:.0f} s" if self.value < 120 else f"{self.value / 60:.0f} min"
        return f"at most {rounded}" if self.at_most else rounded


@dataclass(frozen=True)
class Training:
    """How long a recorded training took.

    Attributes:
        data: Name of the data set.
        model: Name of the model.
        steps: Training steps.
        wall_time_s: Wall time.
        concurrent_runs: Number of runs that shared the device; None if it is not recorded.
        device: Name of the device.
    """

    data: str
    model: str
    steps: int
    wall_time_s: float
    concurrent_runs: int | None
    device: str

    @property
    def per_step(self) -> Seconds:
        """Share of the device's time per step."""
        return Seconds(self.wall_time_s / (self.concurrent_runs or 1) / self.steps, self.concurrent_runs is None)


def recorded_trainings(results: Iterable[ImageResult], zoo: Path | None = None) -> list[Training]:
    """The trainings of the paper's preset that results record, and those of the networks in the zoo."""
    trainings = []
    for result in results:
        made = result.content["training"]
        if result.preset == "paper":
            known = (made["steps"], made["wall_time_s"], made.get("concurrent_runs"), made["device"])
            trainings.append(Training(result.data, result.model, *known))
    for folder in sorted(zoo.iterdir()) if zoo is not None and zoo.is_dir() else ():
        try:
            config, done = run_config(folder), RunFolder(folder).read_results()
        except CheckpointError:  # not a finished run
            continue
        if config.model is not None and config.data is not None and config.model != "ensemble":
            made = done["provenance"]
            shared = done.get("concurrent_runs")
            trainings.append(Training(config.data, config.model, done["steps"], made["wall_time_s"], shared, made["device"]))
    return trainings


class Expected:
    """Estimates for cells, on the GPU that made most of the records.

    Args:
        results: Recorded results.
        trainings: Recorded trainings; those on a CPU are ignored.
    """

    def __init__(self, results: Sequence[ImageResult], trainings: Iterable[Training]) -> None:
        self._trainings = [training for training in trainings if not training.device.startswith("cpu")]
        devices = Counter(training.device for training in self._trainings)
        self.device = devices.most_common(1)[0][0] if devices else None
        self._trainings = [training for training in self._trainings if training.device == self.device]
        self._steps = {r.data: r.content["training"]["steps"] / r.content["epochs"] for r in results}
        self._evaluations: dict[tuple[str, str], list[Seconds]] = {}
        for result in results:
            found = _evaluation(result, self.device)
            if found is not None and result.preset == "paper":
                self._evaluations.setdefault((result.data, result.model), []).append(found)

    def training(self, cell: Cell) -> Seconds | None:
        """Time to train a cell; None without any record of a GPU."""
        alike = [t for t in self._trainings if t.model == cell.model] or self._trainings
        alike = [t for t in alike if t.data == cell.data] or alike
        known = [t.per_step for t in alike if t.concurrent_runs is not None] or [t.per_step for t in alike]
        if not known or cell.data not in self._steps:
            return None
        steps = self._steps[cell.data] * cell.config.epochs
        if known[0].at_most:  # of upper bounds, the smallest
            return Seconds(min(seconds.value for seconds in known) * steps, at_most=True)
        return Seconds(median(seconds.value for seconds in known) * steps)

    def evaluation(self, cell: Cell) -> Seconds | None:
        """Time to evaluate a cell by the paper's protocols; None without a record."""
        found = self._evaluations.get((cell.data, cell.model))
        return None if found is None else Seconds(median(seconds.value for seconds in found))

    def both(self, cell: Cell) -> Seconds | None:
        """Time to train and evaluate a cell; None if one of them is unknown."""
        training, evaluation = self.training(cell), self.evaluation(cell)
        return None if training is None or evaluation is None else training + evaluation


def total(times: Iterable[Seconds | None]) -> Seconds | None:
    """The sum of known times; None if there is none."""
    known = [time for time in times if time is not None]
    return sum(known[1:], known[0]) if known else None


def _evaluation(result: ImageResult, device: str | None) -> Seconds | None:
    made = [part["provenance"] for part in result.protocols.values()]
    if not made or any(entry.get("device") != device for entry in made):
        return None
    return Seconds(sum(entry["wall_time_s"] / entry.get("concurrent_runs", 1) for entry in made))
