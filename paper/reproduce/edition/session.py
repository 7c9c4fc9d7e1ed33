"""One session: as many missing cells as fit into its time, several trainings concurrently, and evaluations at the same time.

This process trains. Other processes evaluate a cell as soon as its training is finished, because a single process that predicts
leaves a GPU idle most of the time. Only where the time of a prediction is to be measured, the protocol ``clean`` is evaluated
with nothing else on the device: for the first seed of a row of the tables. Without processes for evaluation, as on a CPU, cells
are trained and evaluated in turn. Both ways make the same results.

A session may be stopped anywhere: trainings write checkpoints, results are written after every protocol, and what is unfinished
is packed for the next session.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Task
from ltnode.device import choose_device
from ltnode.errors import ConfigError, LTNodeError
from ltnode.training import TrainingError
from ltnode.training.provenance import source_state
from paper.reproduce.edition.background import Background, Waiting
from paper.reproduce.edition.expected import Expected
from paper.reproduce.edition.packing import pack_results, pack_runs
from paper.reproduce.edition.parts import Part, in_background
from paper.reproduce.edition.record import Made, write_record
from paper.reproduce.edition.remaining import Remaining
from paper.reproduce.edition.stopping import TimeOverError, stopped_after
from paper.reproduce.elsewhere import image_arguments
from paper.reproduce.images import cells as experiment
from paper.reproduce.images.cells import Places, State
from paper.reproduce.images.evaluation import Evaluation
from paper.reproduce.images.grid import Cell
from paper.reproduce.images.run_folders import is_finished

ALONE = "clean"
"""The protocol that also measures the time of a prediction."""
_RESERVE_S = 25.0
"""Time that is left for packing at the end of a session."""
_CUDA, _CPU = (6, 4), (1, 0)
"""Concurrent trainings, of which more gain little on an H200, and processes for evaluation."""


@dataclass(frozen=True)
class Settings:
    """How a session works.

    Attributes:
        minutes: Time of the session; None for all that is missing.
        together: Largest number of concurrent trainings; None chooses it for the device.
        evaluators: Number of processes that evaluate while this one trains; 0 evaluates between trainings, None chooses.
        options: Options of `ltnode.evaluate`.
        device: Device; None chooses the best one.
        pack: Folder for the archives; None makes none.
    """

    minutes: float | None = None
    together: int | None = None
    evaluators: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    pack: Path | None = None

    @property
    def numbers(self) -> tuple[int, int]:
        """Concurrent trainings, and processes for evaluation."""
        together, evaluators = _CUDA if choose_device(self.device or "auto").type == "cuda" else _CPU
        chosen = together if self.together is None else self.together
        return chosen, evaluators if self.evaluators is None else self.evaluators


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
        self._together, self._evaluators = settings.numbers
        self._began = time.monotonic()
        self._failed: dict[str, str] = {}

    def run(self, cells: Sequence[Cell], parts: Sequence[Part] = ()) -> list[str]:
        """Work through cells, and through parts that need no GPU at the same time; returns one message for each that failed.

        Raises:
            ConfigError: The commit of the source is unknown, so results would have no provenance.
            KeyboardInterrupt: The session was stopped by a signal before its time was over.
        """
        require_commit()
        made = Made.before([cell for cell in cells if self._state(cell) is State.DONE])
        self._remaining = Remaining(cells, self._state, self._expected, self._evaluators)
        try:
            with stopped_after(self._seconds_left()), self._beside(parts) as background:
                self._say(self._remaining.text(0.0))
                self._complete([cell for cell in cells if self._state(cell) is not State.DONE])
                if background is not None:
                    self._say(f"waiting for {background.left} experiments on the CPU")
                    background.finish()
        except TimeOverError:
            self._say("the time is over; run the same command again to continue")
        finally:
            self._pack(cells, parts, self._record(cells, made))
        return [f"{name}: {reason}" for name, reason in self._failed.items()]

    @contextmanager
    def _beside(self, parts: Sequence[Part]) -> Iterator[Background | None]:
        if not parts:
            yield None
            return
        spared = 2 + self._evaluators  # for the training, and for whatever else the machine does
        with in_background(parts, self._places.out, self._places.runs, spared) as background:
            try:
                yield background
            finally:
                self._failed |= background.failed

    def _complete(self, cells: Sequence[Cell]) -> None:
        """Train and evaluate cells."""
        if self._evaluators:
            self._at_the_same_time(cells)
        else:
            self._in_turn(cells)
        for cell in cells:
            if self._state(cell) is not State.DONE:
                reason = experiment.failure(cell, self._places) or "it was not completed"
                self._failed.setdefault(cell.title, reason)

    def _at_the_same_time(self, cells: Sequence[Cell]) -> None:
        alone = self._first_of_rows(cells)
        self._evaluate([cell for cell in alone if is_finished(self._places.run(cell))], [ALONE])
        waiting = [self._waiting(cell, cell in alone) for cell in cells]
        executor = make_executor("local", jobs=self._evaluators, device=self._settings.device or "auto")
        executor.prepare(len(waiting))
        evaluations = Background(executor, waiting, self._report)
        try:
            self._train(cells)
            evaluations.finish()
        finally:
            evaluations.stop()
            self._failed |= evaluations.failed
        self._evaluate([cell for cell in alone if is_finished(self._places.run(cell))], [ALONE])

    def _first_of_rows(self, cells: Sequence[Cell]) -> list[Cell]:
        """The first cell of every row of the tables for which no record says how long a prediction takes."""
        first: dict[tuple[str, str, str], Cell] = {}
        for cell in cells:
            if not cell.variant:
                first.setdefault((cell.data, cell.model, cell.preset), cell)
        return [cell for cell in first.values() if not experiment.has_cost(cell, self._places)]

    def _waiting(self, cell: Cell, without_clean: bool) -> Waiting:
        """The evaluation of a cell in another process, for when its training is finished."""
        protocols = [name for name in experiment.paper_protocols() if name != ALONE or not without_clean]
        evaluation = self._evaluation(protocols, self._evaluators + 1)  # and the process that trains
        arguments = image_arguments(cell, self._places, evaluation, self._settings.device)
        task = Task(cell.title, "paper.reproduce.elsewhere:image_cell", arguments)
        return Waiting(task, lambda: is_finished(self._places.run(cell)))

    def _in_turn(self, cells: Sequence[Cell]) -> None:
        left = list(cells)
        while left:
            same = [cell for cell in left if cell.config.precision == left[0].config.precision][: self._together]
            left = [cell for cell in left if cell not in same]
            self._train(same)
            ready = [cell for cell in same if is_finished(self._places.run(cell))]
            self._evaluate(ready, experiment.paper_protocols())

    def _train(self, cells: Sequence[Cell]) -> None:
        with suppress(TrainingError):  # reported for the cell that failed, which is not completed
            experiment.train_together(cells, self._places, self._together, self._settings.device)

    def _evaluate(self, cells: Sequence[Cell], protocols: Sequence[str]) -> None:
        """Evaluate cells in this process, one after the other, with nothing else on the device."""
        for cell in cells:
            try:
                experiment.reproduce(cell, self._places, self._evaluation(protocols, 1), self._settings.device)
            except LTNodeError as error:
                self._failed[cell.title] = str(error)
            self._report()

    def _evaluation(self, protocols: Sequence[str], concurrent_runs: int) -> Evaluation:
        chosen = self._settings
        return Evaluation(tuple(protocols), chosen.options, chosen.device, concurrent_runs=concurrent_runs)

    def _report(self) -> None:
        self._say(self._remaining.text(time.monotonic() - self._began))

    def _state(self, cell: Cell) -> State:
        return experiment.state(cell, self._places, experiment.paper_protocols())[0]

    def _seconds_left(self) -> float:
        if self._settings.minutes is None:
            return float("inf")
        return 60 * self._settings.minutes - _RESERVE_S - (time.monotonic() - self._began)

    def _record(self, cells: Sequence[Cell], made: Made) -> Path | None:
        done = [cell for cell in cells if self._state(cell) is State.DONE]
        how = {"together": self._together, "evaluators": self._evaluators}
        return write_record(self._places.out, made, done, time.monotonic() - self._began, self._settings.device, **how)

    def _pack(self, cells: Sequence[Cell], parts: Sequence[Part], record: Path | None) -> None:
        """Pack all results, and the runs whose results are not complete."""
        folder = self._settings.pack
        if folder is None:
            return
        results = [self._places.result(cell) for cell in cells] + [part.result(self._places.out) for part in parts]
        pack_results(folder, results if record is None else [*results, record])
        unfinished = [self._places.run(cell) for cell in cells if self._state(cell) is not State.DONE]
        unfinished += [self._places.runs / part.name for part in parts if not part.result(self._places.out).exists()]
        pack_runs(folder, [run for run in unfinished if (run / "config.json").exists()])


def require_commit() -> None:
    """Refuse to make records that cannot say from which source they come.

    Raises:
        ConfigError: There is no git here, and LTNODE_COMMIT is not set.
    """
    if source_state()["git_commit"] is None:
        raise ConfigError("results need the commit of the source: run in a git clone, or set LTNODE_COMMIT to the commit")
