"""Work of other commands as tasks of an engine: the networks of an ensemble, and the parts of the reproduction."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ltnode.cluster.data_source import Source
from ltnode.cluster.executor import Executor, Task
from ltnode.cluster.trial import FUNCTION
from ltnode.errors import ConfigError
from ltnode.training import Run, RunStatus, TrainingError
from ltnode.training.engine import Job, fit_together

_ROOT = Path(__file__).resolve().parents[2]
"""The folder that holds the package, which in a clone also holds the reproduction."""


def train_jobs(jobs: Sequence[Job], *, executor: Executor, threads: int = 1, source: Source | None = None) -> list[Run]:
    """Train jobs as tasks, or continue them; `fit_together` then only loads the finished runs.

    Args:
        jobs: Trainings of models that `ltnode.build` makes, in folders that all workers see.
        executor: The engine.
        threads: Threads of a training.
        source: The data of all jobs; None for data sets that the configurations name.

    Raises:
        ConfigError: A job has no folder.
        TrainingError: A training failed; the others were completed first, and the message names the failed one.
    """
    tasks = []
    for job in jobs:
        if job.out is None or job.config is None:
            raise ConfigError("trainings of other processes need a run folder: set --out")
        data = source or Source(str(job.config.data))
        arguments: dict[str, Any] = {"config": job.config.to_json(), "source": data.to_json(), "threads": threads}
        arguments |= {"folder": str(Path(job.out).absolute()), "storage": None}
        tasks.append(Task(str(job.out), FUNCTION, arguments))
    for name, outcome in executor.run_all(tasks).items():
        if outcome.status != "done" or outcome.value["status"] != RunStatus.COMPLETE:
            reason = outcome.error or outcome.value.get("message") or outcome.status
            status = RunStatus(outcome.value.get("status", RunStatus.INTERRUPTED))
            raise TrainingError(status, f"{name}: {reason}")
    return fit_together(jobs, resume=True)


def in_clone(task: Task) -> Task:
    """A task that calls a function of the folder ``paper``."""
    arguments = {"function": task.function, "arguments": dict(task.arguments)}
    return Task(task.name, "ltnode.cluster.elsewhere:call_in_clone", arguments)


def run_in_clone(tasks: Iterable[Task], executor: Executor) -> dict[str, str]:
    """Run functions of the folder ``paper`` as tasks; returns the reasons of those that failed, by name."""
    outcomes = executor.run_all([in_clone(task) for task in tasks])
    return {name: outcome.error or outcome.status for name, outcome in outcomes.items() if outcome.status != "done"}


def call_in_clone(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call a function of the clone in a worker; it returns nothing that the caller needs, since it writes files."""
    if str(_ROOT) not in sys.path:
        sys.path.append(str(_ROOT))
    module, _, name = arguments["function"].partition(":")
    getattr(importlib.import_module(module), name)(**arguments["arguments"])
    return {}
