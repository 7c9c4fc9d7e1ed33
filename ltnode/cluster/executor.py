"""What an engine has to do: run tasks in other processes, report which have ended, and cancel.

A task is a function of one table of JSON values, given by its import path, so that a worker on another machine needs an
installation of ltnode and no pickled code. An engine runs a task again, on another worker, if its worker dies. Tasks therefore
continue what an earlier attempt has left, such as a checkpoint, and give the same result however often they are started.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ltnode.errors import ConfigError, InputError, LTNodeError, unknown_name

ENGINES = ("local", "ray")
MAX_ATTEMPTS = 20
"""How often a task is started if its worker dies each time."""


@dataclass(frozen=True)
class Task:
    """Work for one worker.

    Attributes:
        name: Different from the names of all other tasks of an executor.
        function: Import path, such as ``"ltnode.cluster.trial:train_trial"``; it takes and returns a table of JSON values.
        arguments: The table that the function gets.
    """

    name: str
    function: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a task has ended.

    Attributes:
        name: Name of the task.
        status: ``"failed"`` if the function raised an exception or no worker survived it.
        value: What the function returned.
        error: Why the task failed, in one line.
        kind: Name of the exception's class.
    """

    name: str
    status: Literal["done", "failed", "cancelled"]
    value: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    kind: str = ""

    @classmethod
    def of_answer(cls, name: str, answer: Mapping[str, Any]) -> Outcome:
        """The outcome of a task whose worker returned the answer of `call`."""
        if "value" in answer:
            return cls(name, "done", dict(answer["value"]))
        return cls(name, "failed", error=str(answer["error"]), kind=str(answer["kind"]))


class Executor(ABC):
    """Runs tasks in other processes. Use it as a context manager, so that no process is left behind."""

    @property
    @abstractmethod
    def capacity(self) -> int:
        """Number of tasks that can run at the same time now; a cluster may grow and shrink."""

    def prepare(self, tasks: int) -> None:  # noqa: B027 (an engine whose workers are already there has nothing to do)
        """Start the workers for this many tasks, which takes seconds, while the caller has other work."""

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Run a task as soon as there is room for it."""

    @abstractmethod
    def wait(self, seconds: float) -> list[Outcome]:
        """Return the tasks that have ended since the last call, as soon as there are some, or nothing after some seconds."""

    @abstractmethod
    def cancel(self, name: str) -> None:
        """End a task; a training writes a checkpoint first. `wait` reports it, unless it was already over."""

    @abstractmethod
    def close(self) -> None:
        """End all tasks and workers."""

    def __enter__(self) -> Executor:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def run_all(self, tasks: list[Task]) -> dict[str, Outcome]:
        """Run some tasks to their end; returns the outcomes by name."""
        ended: dict[str, Outcome] = {}
        for task in tasks:
            self.submit(task)
        while len(ended) < len(tasks):
            ended |= {outcome.name: outcome for outcome in self.wait(10.0)}
        return ended


def call(function: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Call the function of a task in a worker; an exception becomes a table with ``error`` and ``kind``."""
    module, _, name = function.partition(":")
    try:
        return {"value": getattr(importlib.import_module(module), name)(arguments)}
    except Exception as error:  # whatever it is, the worker goes on and the caller is told
        text = str(error) if isinstance(error, LTNodeError) else f"{type(error).__name__}: {error}"
        return {"error": " ".join(text.split())[:2000], "kind": type(error).__name__}


def check_engine(engine: str, address: str | None = None) -> None:
    """Require the name of an engine, and an address only where it means something."""
    if engine not in ENGINES:
        raise InputError(unknown_name("engine", engine, ENGINES))
    if address is not None and engine != "ray":
        raise ConfigError(f"--address is the address of a Ray cluster: use --engine ray, not --engine {engine}")
