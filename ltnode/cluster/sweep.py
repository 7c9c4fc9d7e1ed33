"""A sweep: points of a search, trained as tasks of an engine, judged by the log-likelihood of held-out examples.

DIR/trial-0003-seed1/    the run folder of one training (with the name of the data set if there are several)
DIR/sweep.json           the specification, and after the end all trainings and the best
DIR/search.journal       the state of the search, from which an interrupted sweep continues
DIR/trials.csv           one line per training
DIR/report.html          curves, importance and the best run
"""

from __future__ import annotations

import csv
import io
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ltnode import files
from ltnode.cluster.executor import Executor, Outcome, Task
from ltnode.cluster.observed import Observed
from ltnode.cluster.search import Point, Search
from ltnode.cluster.spec import SweepSpec
from ltnode.cluster.storage import RunStorage
from ltnode.cluster.trial import FUNCTION
from ltnode.errors import CheckpointError, ConfigError
from ltnode.training.run import RunFolder

RECORD = "sweep.json"
_OBSERVE_SECONDS = 1.0
"""How often the logs of the running trainings are read."""


@dataclass
class Trial:
    """One training of a sweep.

    Attributes:
        name: Name of its run folder.
        point: Number of its point of the search.
        data: Its data set.
        seed: Its seed.
        values: The searched values.
        status: ``"waiting"``, ``"running"``, ``"complete"``, ``"pruned"``, ``"failed"``, or how its training ended.
        log_likelihood: Mean log-likelihood of the held-out examples, so far or at the end.
        steps: Number of steps so far.
        seconds: Wall time of the training.
        message: Why it failed.
    """

    name: str
    point: int
    data: str
    seed: int
    values: Mapping[str, Any]
    status: str = "waiting"
    log_likelihood: float | None = None
    steps: int = 0
    seconds: float = 0.0
    message: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status not in ("waiting", "running")


@dataclass
class SweepResult:
    """What a sweep has found so far.

    Attributes:
        trials: All trainings that were begun, in order.
        n_runs: Number of trainings of the whole sweep.
        importance: Share of the differences that each searched key explains, after the end.
    """

    trials: list[Trial] = field(default_factory=list)
    n_runs: int = 0
    importance: dict[str, float] = field(default_factory=dict)

    def best(self, data: str) -> Trial | None:
        """The best training on a data set: of the point with the best mean over seeds, the best seed."""
        scores = {point: score for point, score in self.scores(data).items() if score is not None}
        if not scores:
            return None
        winner = max(scores, key=lambda point: (scores[point], -point))
        runs = [trial for trial in self.trials if trial.point == winner and trial.data == data]
        return max(runs, key=lambda trial: trial.log_likelihood or -math.inf)

    def scores(self, data: str) -> dict[int, float | None]:
        """Mean held-out log-likelihood over the seeds of each point; None unless all of them are complete."""
        of_point: dict[int, list[float | None]] = {}
        for trial in self.trials:
            if trial.data == data:
                of_point.setdefault(trial.point, []).append(trial.log_likelihood if trial.status == "complete" else None)
        return {point: mean_or_none(values) for point, values in of_point.items()}


def mean_or_none(values: list[float | None]) -> float | None:
    """The mean; None if one of the values is missing."""
    present = [value for value in values if value is not None]
    return statistics.fmean(present) if present and len(present) == len(values) else None


class Sweep:
    """Runs a sweep, or continues the one in its folder.

    Args:
        spec: What to train.
        out: Folder of the sweep.
        executor: Where to train; the caller closes it.
        storage: Path or URL of shared storage for checkpoints; None if all workers see ``out``.
        threads: Number of threads of a training.
        function: What trains, by its import path; see `ltnode.cluster.trial.train_trial`.
        on_change: Called with the state about once a second, and after every training.
    """

    def __init__(
        self,
        spec: SweepSpec,
        out: Path,
        executor: Executor,
        *,
        storage: str | None = None,
        threads: int = 1,
        function: str = FUNCTION,
        on_change: Callable[[SweepResult], None] = lambda result: None,
    ) -> None:
        self._spec, self._out, self._executor, self._storage = spec, out.absolute(), executor, storage
        self._threads, self._function, self._on_change = threads, function, on_change
        self._observed_at = 0.0
        self._running: dict[str, Trial] = {}
        self._observed: dict[str, Observed] = {}
        self._waiting: list[Trial] = []
        self.result = SweepResult(n_runs=spec.n_runs)

    def run(self) -> SweepResult:
        """Train everything that is not yet trained.

        Raises:
            ConfigError: The folder holds a sweep with another specification.
            CheckpointError: The folder holds something else.
            FolderInUseError: Another process runs this sweep.
        """
        with RunFolder(self._out).locked():
            try:
                self._run()
            except OSError as error:  # from the journal, or from a run folder that comes from the storage
                raise CheckpointError(
                    f"could not write {self._out}: {error.strerror or error}. Free some disk space; nothing is lost, and the "
                    "same command continues the sweep"
                ) from error
        return self.result

    def _run(self) -> None:
        check_folder(self._spec, self._out)
        self._search = Search(self._spec, self._out / "search.journal")
        for point in self._search.points():
            self._begin(point)
        while self._fill() or self._running:
            for outcome in self._executor.wait(_OBSERVE_SECONDS):
                self._end(outcome)
            self._observe()
            self._on_change(self.result)
        self.result.importance = self._search.importance()
        self._record()

    def _begin(self, point: Point) -> None:
        """Add the trainings of a point; those that an earlier process has finished are only remembered."""
        known = self._search.remembered(point.number)
        for data in self._spec.data:
            for seed in self._spec.seeds:
                trial = Trial(self._name(point.number, data, seed), point.number, data, seed, point.values)
                self.result.trials.append(trial)
                for key, value in known.get(trial.name, {}).items():
                    setattr(trial, key, value)
                if not trial.is_over:
                    self._waiting.append(trial)
        self._tell(point.number)

    def _fill(self) -> bool:
        """Submit trainings until every worker has one and some wait; whether any was submitted."""
        room = self._executor.capacity + 1  # one waits, so that no worker is idle while this process writes
        submitted = False
        while len(self._running) < room:
            if not self._waiting:
                point = self._search.ask()
                if point is None:
                    break
                self._begin(point)
                continue
            trial = self._waiting.pop(0)
            trial.status = "running"
            self._running[trial.name] = trial
            self._observed[trial.name] = Observed(self._out / trial.name, self._place(trial))
            self._executor.submit(Task(trial.name, self._function, self._arguments(trial)))
            submitted = True
        return submitted

    def _arguments(self, trial: Trial) -> dict[str, Any]:
        config = self._spec.config(trial.values, trial.data, trial.seed).to_json()
        folder, source = str(self._out / trial.name), self._spec.source(trial.data).to_json()
        return {"config": config, "source": source, "folder": folder, "storage": self._place(trial), "threads": self._threads}

    def _end(self, outcome: Outcome) -> None:
        trial = self._running.pop(outcome.name)
        del self._observed[outcome.name]
        if outcome.status == "done":
            for key, value in outcome.value.items():
                setattr(trial, key, value)
            if trial.status == "complete" and trial.log_likelihood is None:
                trial.status, trial.message = "failed", "its log has no held-out log-likelihood"
        else:
            trial.status, trial.message = ("pruned" if outcome.status == "cancelled" else "failed"), outcome.error
        self._fetch(trial)
        kept = {key: getattr(trial, key) for key in ("status", "log_likelihood", "steps", "seconds", "message")}
        self._search.remember(trial.point, trial.name, kept)
        self._tell(trial.point)

    def _tell(self, point: int) -> None:
        """Tell the search the value of a point once all its trainings are over."""
        runs = self._of_point(point)
        if all(trial.is_over for trial in runs) and not self._search.is_finished(point):
            value = mean_or_none([trial.log_likelihood if trial.status == "complete" else None for trial in runs])
            self._search.tell(point, value, pruned=any(trial.status == "pruned" for trial in runs))

    def _observe(self) -> None:
        """Read how far the running trainings are, and end those of hopeless points."""
        if time.monotonic() - self._observed_at < _OBSERVE_SECONDS:
            return
        self._observed_at = time.monotonic()
        for name, observed in self._observed.items():
            observed.read()
            trial = self._running[name]
            trial.steps = observed.steps
            trial.log_likelihood = observed.newest
        if self._spec.pruner != "none":
            for point in sorted({trial.point for trial in self._running.values()}):
                self._prune(point)

    def _prune(self, point: int) -> None:
        runs = self._of_point(point)
        curves = [self._observed[trial.name].curve for trial in runs if trial.name in self._observed]
        if len(curves) < len(runs) or not all(curves):
            return  # pruning needs the whole point on its way
        step = min(max(curve) for curve in curves)
        values = [curve.get(step) for curve in curves]
        mean = mean_or_none(values)
        if mean is not None and self._search.hopeless(point, step, mean):
            for trial in runs:
                self._executor.cancel(trial.name)

    def _of_point(self, point: int) -> list[Trial]:
        size = len(self._spec.data) * len(self._spec.seeds)
        return self.result.trials[point * size : (point + 1) * size]

    def _name(self, point: int, data: str, seed: int) -> str:
        several = f"-{self._spec.data.index(data)}-{Path(data).stem}" if len(self._spec.data) > 1 else ""
        return f"trial-{point:04d}{several}-seed{seed}"

    def _place(self, trial: Trial) -> str | None:
        return None if self._storage is None else f"{self._storage.rstrip('/')}/{trial.name}"

    def _fetch(self, trial: Trial) -> None:
        """Bring the run folder from the storage."""
        place = self._place(trial)
        if place is not None and trial.status != "failed":
            files.remove_folder(self._out / trial.name)
            RunStorage(place).restore(self._out / trial.name)

    def _record(self) -> None:
        best = {data: trial.name for data in self._spec.data if (trial := self.result.best(data))}
        trials = [asdict(trial) for trial in self.result.trials]
        content = {**_opening(self._spec), "best": best, "importance": self.result.importance, "trials": trials}
        files.write_json(self._out / RECORD, content)
        files.write_bytes(self._out / "trials.csv", _csv(self.result.trials).encode())


def check_folder(spec: SweepSpec, out: Path) -> None:
    """Begin a sweep in a folder, or require that it holds the same sweep."""
    record = out / RECORD
    if record.exists():
        existing = files.read_json(
            record, lambda value: isinstance(value, dict) and isinstance(value.get("spec"), dict), "a sweep"
        )
        if existing["spec"] != spec.to_json():
            different = sorted(key for key, value in spec.to_json().items() if existing["spec"].get(key) != value)
            raise ConfigError(
                f"{out} holds a sweep with another specification (different: {', '.join(different) or 'trials'}): "
                "continue it with its own specification, or choose another folder"
            )
        return
    if any(not entry.name.startswith(files.TEMPORARY) for entry in out.iterdir()):
        raise CheckpointError(f"{out} is not empty and holds no sweep; choose another folder")
    files.write_json(record, _opening(spec))


def _opening(spec: SweepSpec) -> dict[str, Any]:
    return {"format": 1, "spec": spec.to_json()}


def _csv(trials: list[Trial]) -> str:
    text = io.StringIO()
    keys = list(dict.fromkeys(key for trial in trials for key in trial.values))
    fixed = ("name", "point", "data", "seed", "status", "log_likelihood", "steps", "seconds", "message")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*fixed, *keys])
    for trial in trials:
        writer.writerow([*(getattr(trial, key) for key in fixed), *(trial.values.get(key) for key in keys)])
    return text.getvalue()
