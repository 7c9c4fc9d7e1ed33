"""The experiments of an edition that need no GPU, and their execution on spare cores while a session uses the GPU."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltnode.cluster.elsewhere import in_clone
from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Executor, Task
from paper.reproduce.edition.cells import SEEDS
from paper.reproduce.motivating import tasks
from paper.reproduce.one_dimensional import selection
from paper.reproduce.one_dimensional.experiment import ITERATIONS, OTHERS, VARIANTS, result_name
from paper.reproduce.records import read_results

_SPARED_CORES = 3
"""Cores that are left to a training on the GPU and to the evaluations after it."""
_POLL_S = 0.5


@dataclass(frozen=True)
class Part:
    """One training of a small experiment.

    Attributes:
        name: Name of its run folder, and of its result file.
        function: Name of a function of `paper.reproduce.elsewhere`.
        arguments: What identifies the training, for that function.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]

    def result(self, out: Path) -> Path:
        """Its result file."""
        return out / f"{self.name}.json"

    def task(self, out: Path, runs: Path) -> Task:
        """The training as a task of an engine."""
        arguments = {**self.arguments, "out": str(out.absolute()), "runs": str(runs.absolute())}
        return Task(self.name, f"paper.reproduce.elsewhere:{self.function}", arguments)


def edition_parts(records: Path, seeds: Sequence[int] = SEEDS) -> list[Part]:
    """The 1-D experiment, its model selection and the motivating tasks, those that are recorded as the longest first.

    The rows that test why the 1-D experiment differs have the first seed only, and come last.
    """
    parts = []
    for seed in seeds:
        every = {"seed": seed, "iterations": ITERATIONS}
        parts += [Part(result_name(v, seed, ITERATIONS), "synthetic_variant", {"variant": v, **every}) for v in VARIANTS]
        for time in selection.TIMES:
            parts.append(Part(selection.selection_name(time, seed, ITERATIONS), "synthetic_time", {"time": time, **every}))
        for task in tasks.TASKS:
            for model in tasks.MODELS:
                named = {"task": task, "model": model, "seed": seed, "steps": tasks.STEPS}
                parts.append(Part(f"motivating-{task}-{model}-seed{seed}", "motivating_task", named))
    others = {"seed": seeds[0], "iterations": ITERATIONS}
    parts += [Part(result_name(v, seeds[0], ITERATIONS), "synthetic_variant", {"variant": v, **others}) for v in OTHERS]
    return sorted(parts, key=lambda part: -_recorded_seconds(part, records))


def _recorded_seconds(part: Part, records: Path) -> float:
    """Wall time of the same training with the first seed."""
    found, _ = read_results(records, [f"{part.name.rpartition('-seed')[0]}-seed{SEEDS[0]}"])
    return float(found[0]["provenance"]["wall_time_s"]) if found else 0.0


class Background:
    """Parts that run on spare cores.

    Attributes:
        failed: Reasons of parts that failed, by name.
    """

    def __init__(self, executor: Executor, waiting: Sequence[Task]) -> None:
        self._executor = executor
        self._left = {task.name for task in waiting}
        self._over = threading.Event()
        self.failed: dict[str, str] = {}
        for task in waiting:
            executor.submit(task)
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    @property
    def left(self) -> int:
        """Number of parts that have not ended."""
        return len(self._left)

    def wait(self) -> None:
        """Wait until all parts have ended."""
        while self._thread.is_alive():  # in short waits, which signals interrupt
            self._thread.join(_POLL_S)

    def stop(self) -> None:
        """End the parts that run; they write checkpoints."""
        self._over.set()
        self.wait()
        self._executor.close()

    def _collect(self) -> None:
        while self._left and not self._over.is_set():
            for outcome in self._executor.wait(_POLL_S):
                self._left.discard(outcome.name)
                if outcome.status != "done":
                    self.failed[outcome.name] = outcome.error or outcome.status


@contextmanager
def in_background(parts: Sequence[Part], out: Path, runs: Path) -> Iterator[Background]:
    """Run the parts that are not recorded on the cores that a session can spare; at the end of the block they are stopped."""
    missing = [in_clone(part.task(out, runs)) for part in parts if not part.result(out).exists()]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    running = Background(make_executor("local", jobs=max(1, cores - _SPARED_CORES), device="cpu"), missing)
    try:
        yield running
    finally:
        running.stop()
