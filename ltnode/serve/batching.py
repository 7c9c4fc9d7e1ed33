"""One thread that owns the models: requests wait in a bounded queue, and those for the same model share one pass.

A prediction depends on its input alone (stored grid, quantiles of the posterior), so sharing changes no answer. One thread
rather than one per model: the machine that this is made for has two cores, and the other one parses and answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ltnode.errors import LTNodeError

_log = logging.getLogger("ltnode.serve")

Work = Callable[[Sequence[Any]], Sequence[Any]]
"""The payloads of the jobs that share a pass -> one result each."""


class QueueFullError(LTNodeError):
    """As many requests wait as may wait."""


class StoppedError(LTNodeError):
    """The server is shutting down and takes no more work."""


class TooLateError(LTNodeError):
    """A request waited for longer than it may take."""


@dataclass(eq=False)
class _Job:
    key: Hashable
    work: Work
    payload: Any
    size: int
    deadline: float
    arrived: float
    future: Future[Any] = field(default_factory=Future)


class Batcher:
    """The queue and its thread.

    Args:
        max_batch: Most inputs of one pass; a single job may be larger.
        max_wait_s: How long the first job of a pass waits for others; nobody waits once the pass is full.
        max_queue: Most jobs that wait.
        observe: Called with (key, inputs of the pass, jobs of the pass) before every pass.
        ready: Runs in the thread before the first job, for settings that belong to a thread.
    """

    def __init__(
        self,
        max_batch: int,
        max_wait_s: int | float,
        max_queue: int,
        observe: Callable[[Hashable, int, int], None] = lambda key, inputs, jobs: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.max_batch, self.max_wait_s, self.max_queue = max_batch, max_wait_s, max_queue
        self._observe, self._ready = observe, ready
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to work; jobs may be submitted before."""
        with self._changed:
            if self._thread is not None or self._stopping:
                return
            self._thread = threading.Thread(target=self._run, name="ltnode-models", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: int | float | None = None) -> None:
        """Take no more jobs, finish those accepted, end the thread."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, key: Hashable | None, work: Work, payload: Any, size: int, seconds: int | float) -> Future[Any]:
        """Queue a job.

        Args:
            key: Jobs of equal keys may share a pass; None shares with nobody.
            work: Called with the payloads of the pass; of equal keys any one's ``work`` serves.
            payload: What it gets.
            size: Number of inputs in it.
            seconds: A job that has not begun by then gets a `TooLateError`.

        Raises:
            QueueFullError: The queue is full.
            StoppedError: The server is shutting down.
        """
        now = time.monotonic()
        job = _Job(key, work, payload, size, now + seconds, now)
        with self._changed:
            if self._stopping:
                raise StoppedError("the server is shutting down")
            if len(self._waiting) >= self.max_queue:
                raise QueueFullError(
                    f"{len(self._waiting)} requests are waiting, which is the most that may: try again in a second"
                )
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    # -- the thread ------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self._ready()
        while (jobs := self._next_pass()) is not None:
            running = [job for job in jobs if self._begin(job)]
            if running:
                self._observe(running[0].key, sum(job.size for job in running), len(running))
                self._work(running)

    def _next_pass(self) -> list[_Job] | None:
        """The oldest job and those that may share its pass; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._stopping:
                    return None
                self._changed.wait()
            first = self._waiting.popleft()
            jobs, room = [first], self.max_batch - first.size
            if first.key is None:
                return jobs
            # Counted from its arrival: whoever waited for the pass before has waited enough.
            until = first.arrived + self.max_wait_s
            while True:
                room = self._take_like(first, jobs, room)
                left = until - time.monotonic()
                if room <= 0 or left <= 0 or self._stopping:
                    return jobs
                self._changed.wait(left)

    def _take_like(self, first: _Job, jobs: list[_Job], room: int) -> int:
        """Move jobs with the key of the first from the queue into the pass, oldest first; the room that is left."""
        kept: deque[_Job] = deque()
        while self._waiting:
            job = self._waiting.popleft()
            if job.key == first.key and job.size <= room:
                jobs.append(job)
                room -= job.size
            else:
                kept.append(job)
        self._waiting = kept
        return room

    @staticmethod
    def _begin(job: _Job) -> bool:
        if not job.future.set_running_or_notify_cancel():
            return False  # its client has gone, or was answered that it takes too long
        if time.monotonic() > job.deadline:
            job.future.set_exception(TooLateError("the request waited for too long: the server is busy, try again later"))
            return False
        return True

    def _work(self, jobs: list[_Job]) -> None:
        try:
            results = list(zip(jobs, jobs[0].work([job.payload for job in jobs]), strict=True))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            # One bad input must not spoil the answers of the others.
            _log.warning("a pass over %d requests failed (%s): each runs on its own", len(jobs), type(error).__name__)
            for job in jobs:
                self._work([job])
            return
        for job, result in results:
            job.future.set_result(result)
