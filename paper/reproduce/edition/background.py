"""Tasks that run in other processes while the session does something else, each as soon as what it needs is there."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ltnode.cluster.elsewhere import in_clone
from ltnode.cluster.executor import Executor, Task

_POLL_S = 0.5


@dataclass(frozen=True)
class Waiting:
    """A task, and when it may start.

    Attributes:
        task: A function of the clone and its arguments.
        is_ready: Whether everything that it needs is there.
    """

    task: Task
    is_ready: Callable[[], bool] = lambda: True


class Background:
    """Submits tasks once they are ready, and collects how they end, in a thread of its own.

    Attributes:
        failed: Reasons of the tasks that failed, by name.

    Args:
        executor: Runs the tasks; only this object uses it from now on.
        waiting: The tasks; of those that are ready, earlier ones start first.
        ended: Called after every task, in the thread.
    """

    def __init__(self, executor: Executor, waiting: Sequence[Waiting], ended: Callable[[], None] = lambda: None) -> None:
        self._executor, self._ended = executor, ended
        self._waiting = list(waiting)
        self._running: set[str] = set()
        self._no_more, self._over = threading.Event(), threading.Event()
        self.failed: dict[str, str] = {}
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def left(self) -> int:
        """Number of tasks that have not ended."""
        return len(self._waiting) + len(self._running)

    def finish(self) -> None:
        """Wait until all tasks have ended that are ready or running now; the others never start."""
        self._no_more.set()
        while self._thread.is_alive():  # in short waits, which signals interrupt
            self._thread.join(_POLL_S)

    def stop(self) -> None:
        """End the tasks that run; trainings write checkpoints."""
        self._over.set()
        self.finish()
        self._executor.close()

    def _work(self) -> None:
        while not self._over.is_set():
            asked_to_finish = self._no_more.is_set()  # asked before, so that what became ready until then is seen
            self._submit_ready()
            if not self._running and (asked_to_finish or not self._waiting):
                return
            if not self._running:
                self._over.wait(_POLL_S)
                continue
            for outcome in self._executor.wait(_POLL_S):
                self._running.discard(outcome.name)
                if outcome.status != "done":
                    self.failed[outcome.name] = outcome.error or outcome.status
                self._ended()

    def _submit_ready(self) -> None:
        for entry in [entry for entry in self._waiting if entry.is_ready()]:
            self._running.add(entry.task.name)
            self._waiting.remove(entry)
            self._executor.submit(in_clone(entry.task))
