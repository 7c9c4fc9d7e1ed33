"""The experiments of an edition that need no GPU, and their execution on spare cores while a session uses the GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ltnode.cluster.engines import make_executor
from ltnode.cluster.executor import Task
from paper.reproduce.edition.background import Background, Waiting
from paper.reproduce.edition.cells import SEEDS
from paper.reproduce.motivating import tasks
from paper.reproduce.one_dimensional import selection
from paper.reproduce.one_dimensional.experiment import ITERATIONS, OTHERS, VARIANTS, result_name
from paper.reproduce.records import read_results


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


@contextmanager
def in_background(parts: Sequence[Part], out: Path, runs: Path, spared: int) -> Iterator[Background]:
    """Run the parts that are not recorded on all cores but some; at the end of the block they are stopped."""
    missing = [Waiting(part.task(out, runs)) for part in parts if not part.result(out).exists()]
    running = Background(make_executor("local", jobs=max(1, cores() - spared), device="cpu"), missing)
    try:
        yield running
    finally:
        running.stop()


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
