"""One session on a GPU: as many missing cells as fit into its time, several trainings concurrently, then their evaluations.

It may be stopped anywhere: trainings write checkpoints, results are written after every protocol, and what is unfinished is
packed for the next session. Cells of one data set are trained together. The protocol ``clean`` is then evaluated alone on the
device, since it also measures the time of a prediction; the others are evaluated by several processes, because a single one keeps
the device busy for a small part of the time only.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from ltnode.cluster.elsewhere import run_in_clone
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Task
from ltnode.errors import ConfigError, LTNodeError
from ltnode.training import TrainingError
from ltnode.training.provenance import source_state
from paper.reproduce.edition.expected import Expected, Seconds, total
from paper.reproduce.edition.packing import pack_results, pack_runs
from paper.reproduce.edition.parts import Background, Part, in_background
from paper.reproduce.elsewhere import image_arguments
from paper.reproduce.images import cells as experiment
from paper.reproduce.images.cells import Places, State
from paper.reproduce.images.evaluation import Evaluation
from paper.reproduce.images.grid import Cell

ALONE = "clean"
"""The protocol that is evaluated alone on the device."""
_RESERVE_S = 25.0
"""Time that is left for packing at the end of a session."""


@dataclass(frozen=True)
class Settings:
    """How a session works.

    Attributes:
        minutes: Time of the session; None for all that is missing.
        together: Largest number of concurrent trainings, and of concurrent evaluations.
        options: Options of `ltnode.evaluate`.
        device: Device; None chooses the best one.
        pack: Folder for the archives; None makes none.
    """

    minutes: float | None = None
    together: int = 6
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    pack: Path | None = None


class Session:
    """Trains and evaluates cells until all are done or the time is over.

    Args:
        places: Where run folders and results are.
        settings: How it works.
        expected: Estimates of the times.
        say: Receives lines for people.
    """

    def __init__(self, places: Places, settings: Settings, expected: Expected, say: Callable[[str], None]) -> None:
        self._places, self._settings, self._expected, self._say = places, settings, expected, say
        self._began = time.monotonic()
        self._used, self._foreseen = 0.0, 0.0
        self._failed: dict[str, str] = {}

    def run(self, cells: Sequence[Cell], parts: Sequence[Part] = ()) -> list[str]:
        """Work through cells, and through parts that need no GPU at the same time; returns one message for each that failed.

        Raises:
            ConfigError: The commit of the source is unknown, so results would have no provenance.
            KeyboardInterrupt: The session was stopped by a signal before its time was over.
        """
        require_commit()
        try:
            with stopped_after(self._seconds_left()), self._beside(parts) as background:
                while group := self._next_group(cells):
                    self._complete(group, cells)
                if background is not None:
                    self._say(f"waiting for {background.left} experiments on the CPU")
                    background.wait()
        except TimeOverError:
            self._say("the time is over; run the same command again to continue")
        finally:
            self._pack(cells, parts)
        return [f"{name}: {reason}" for name, reason in self._failed.items()]

    @contextmanager
    def _beside(self, parts: Sequence[Part]) -> Iterator[Background | None]:
        if not parts:
            yield None
            return
        with in_background(parts, self._places.out, self._places.runs) as background:
            try:
                yield background
            finally:
                self._failed |= background.failed

    def _next_group(self, cells: Sequence[Cell]) -> list[Cell]:
        """The next cells that fit into the time, of one data set and precision; trained ones, which are only evaluated, first."""
        left = [cell for cell in cells if self._state(cell) is not State.DONE and cell.title not in self._failed]
        trained = [cell for cell in left if self._state(cell) is State.TRAINED]
        if trained:
            return trained[: self._settings.together]
        for first in left:
            kind = (first.data, first.config.precision)
            group = [cell for cell in left if (cell.data, cell.config.precision) == kind][: self._settings.together]
            while group and self._needed(group) > self._seconds_left():
                group.pop()
            if group:
                return group
        # Even a part of the first training is worth its time, since the next session continues it.
        return left[: self._settings.together if self._used == 0 else 0]

    def _complete(self, group: Sequence[Cell], cells: Sequence[Cell]) -> None:
        """Train and evaluate a group, and say how long the rest takes."""
        time_of_group = total(self._expected.both(cell) for cell in group)
        done = sum(self._state(cell) is State.DONE for cell in cells)
        names = ", ".join(cell.title for cell in group)
        self._say(f"{done} of {len(cells)} cells done; next, {_text(time_of_group)}: {names}")
        began = time.monotonic()
        with suppress(TrainingError):  # reported for the cell that failed, which is tried once more alone
            experiment.train_together(group, self._places, self._settings.together, self._settings.device)
        ready = [cell for cell in group if self._alone(cell)]
        count = min(len(ready), self._settings.together)
        evaluation = replace(self._evaluation(experiment.paper_protocols()), concurrent_runs=max(count, 1))
        tasks = []
        for cell in ready:
            arguments = image_arguments(cell, self._places, evaluation, self._settings.device)
            tasks.append(Task(cell.title, "paper.reproduce.elsewhere:image_cell", arguments))
        if tasks:
            with make_executor("local", jobs=count, device=self._settings.device or "auto") as executor:
                self._failed |= run_in_clone(tasks, executor)
        for cell in group:
            if self._state(cell) is not State.DONE:
                self._failed.setdefault(cell.title, "it was not completed")
        self._used += time.monotonic() - began
        self._foreseen += 0.0 if time_of_group is None else time_of_group.value
        self._pack_results(cells)
        left = total(self._expected.both(cell) for cell in cells if self._state(cell) is not State.DONE)
        if left is not None:
            factor = self._used / self._foreseen if self._foreseen else 1.0
            rest = Seconds(factor * left.value, left.at_most).text
            self._say(f"{_minutes(time.monotonic() - self._began)} used; the rest is expected to take {rest}")

    def _alone(self, cell: Cell) -> bool:
        """Evaluate what needs the device alone; False if the cell failed."""
        try:
            experiment.reproduce(cell, self._places, self._evaluation([ALONE]), self._settings.device)
        except LTNodeError as error:
            self._failed[cell.title] = str(error)
            return False
        return True

    def _evaluation(self, protocols: Sequence[str]) -> Evaluation:
        return Evaluation(tuple(protocols), self._settings.options, self._settings.device)

    def _state(self, cell: Cell) -> State:
        return experiment.state(cell, self._places, experiment.paper_protocols())[0]

    def _needed(self, group: Sequence[Cell]) -> float:
        """Expected seconds; an upper bound comes from a run that may have been alone, so it is divided by the runs of a group."""
        times = [self._expected.both(cell) for cell in group]
        return sum(
            seconds.value / (self._settings.together if seconds.at_most else 1) for seconds in times if seconds is not None
        )

    def _seconds_left(self) -> float:
        if self._settings.minutes is None:
            return float("inf")
        return 60 * self._settings.minutes - _RESERVE_S - (time.monotonic() - self._began)

    def _pack_results(self, cells: Sequence[Cell], parts: Sequence[Part] = ()) -> None:
        if self._settings.pack is not None:
            results = [self._places.result(cell) for cell in cells] + [part.result(self._places.out) for part in parts]
            pack_results(self._settings.pack, results)

    def _pack(self, cells: Sequence[Cell], parts: Sequence[Part]) -> None:
        """Pack all results, and the runs whose results are not complete."""
        self._pack_results(cells, parts)
        if self._settings.pack is not None:
            unfinished = [self._places.run(cell) for cell in cells if self._state(cell) is not State.DONE]
            unfinished += [self._places.runs / part.name for part in parts if not part.result(self._places.out).exists()]
            pack_runs(self._settings.pack, [run for run in unfinished if (run / "config.json").exists()])


class TimeOverError(KeyboardInterrupt):
    """The time of a session is over."""


@contextmanager
def stopped_after(seconds: float) -> Iterator[None]:
    """End the block with a `TimeOverError` after some seconds; a training that runs then writes its checkpoint first.

    SIGTERM, which the alarm sends, also stops the block when it comes from elsewhere, as a KeyboardInterrupt.
    """
    is_over = False

    def alarm(number: int, frame: FrameType | None) -> None:
        nonlocal is_over
        is_over = True
        signal.raise_signal(signal.SIGTERM)  # a training has its own handler for this signal

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeOverError if is_over else KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop), signal.signal(signal.SIGALRM, alarm)
    if seconds < float("inf"):
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.1))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGALRM, before[1])


def require_commit() -> None:
    """Refuse to make records that cannot say from which source they come.

    Raises:
        ConfigError: There is no git here, and LTNODE_COMMIT is not set.
    """
    if source_state()["git_commit"] is None:
        raise ConfigError("results need the commit of the source: run in a git clone, or set LTNODE_COMMIT to the commit")


def _text(time_of_group: Seconds | None) -> str:
    return "expected time unknown" if time_of_group is None else f"expected {time_of_group.text}"


def _minutes(seconds: float) -> str:
    return Seconds(seconds).text
