"""One thread runs the models: requests wait in a bounded queue, and those for the same model share one batch.

By default, predictions do not depend on the rest of the batch: sharing changes an answer only by the rounding of float32 sums
(up to about 1e-6 relative). Clients take turns. There is one thread for all models because the server is designed for two cores,
and the other core parses requests and sends answers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ltnode.serve.failures import ApiError, stopping
from ltnode.serve.fair_queue import FairQueue

_log = logging.getLogger("ltnode.serve")

Work = Callable[[Sequence[Any]], Sequence[Any]]
"""Takes the payloads of the jobs in a batch and returns one result for each."""


@dataclass(eq=False)
class _Job:
    key: Hashable
    work: Work
    payload: Any
    size: int
    deadline: float
    arrived: float
    client: Hashable
    most: int
    future: Future[Any] = field(default_factory=Future)


class Batcher:
    """The queue and its threads.

    Args:
        max_batch: Most inputs in one batch; a single job may be larger.
        max_wait_s: How long the first job of a batch waits for others that were announced by `expecting`; a full batch starts at
            once.
        max_queue: Most jobs that may wait.
        on_batch: Called with (key, number of inputs) before every batch.
        on_start: Called in every thread before its first job, for settings that apply to one thread.
        threads: Number of threads, each of which works on one batch at a time.
    """

    def __init__(
        self,
        max_batch: int,
        max_wait_s: int | float,
        max_queue: int,
        on_batch: Callable[[Hashable, int], None] = lambda key, inputs: None,
        on_start: Callable[[], None] = lambda: None,
        threads: int = 1,
    ) -> None:
        self.max_batch, self.max_wait_s, self.max_queue = max_batch, max_wait_s, max_queue
        self._on_batch, self._on_start = on_batch, on_start
        self._waiting: FairQueue[_Job] = FairQueue(max_queue)
        self._changed = threading.Condition()
        self._expected = 0
        self._stopping = False
        self._n_threads = threads
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start the threads; jobs may be submitted earlier."""
        with self._changed:
            if self._threads or self._stopping:
                return
            name = "ltnode-models"
            self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(self._n_threads)]
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: int | float | None = None) -> None:
        """Accept no more jobs, finish the accepted ones, and end the threads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(None if deadline is None else max(0.0, deadline - time.monotonic()))

    @property
    def ended(self) -> bool:
        """Whether all threads have ended, or were never started."""
        return not any(thread.is_alive() for thread in self._threads)

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def expecting(self) -> Iterator[None]:
        """Announce a job that will be submitted within the block, for which the batch of another one may wait."""
        with self._changed:
            self._expected += 1
        try:
            yield
        finally:
            with self._changed:
                self._expected -= 1
                self._changed.notify_all()

    def submit(
        self,
        key: Hashable | None,
        work: Work,
        payload: Any,
        size: int,
        seconds: int | float,
        client: Hashable = None,
        most: int | None = None,
    ) -> Future[Any]:
        """Add a job to the queue; an ApiError of status 503 if it is full or the server is shutting down.

        Args:
            key: Jobs with equal keys may share a batch; a job with key None runs alone.
            work: Called with the payloads of the batch; jobs with equal keys must have equivalent functions.
            payload: Argument for ``work``.
            size: Number of inputs in the payload.
            seconds: A job that has not started after this time fails with an `ApiError` of status 504.
            client: Who asks; clients take turns.
            most: Most inputs of a batch with this job; None: the most of any batch.
        """
        now = time.monotonic()
        most = self.max_batch if most is None else min(most, self.max_batch)
        job = _Job(key, work, payload, size, now + seconds, now, client, most)
        with self._changed:
            if self._stopping:
                raise stopping()
            dropped = self._waiting.put(client, job)
            self._changed.notify()
        if dropped is not None:
            reason = f"the queue is full: {self.max_queue} requests are waiting; try again in a second"
            full = ApiError(503, "queue_full", reason, {"Retry-After": "1"})
            if dropped is job:
                raise full
            if dropped.future.set_running_or_notify_cancel():
                dropped.future.set_exception(full)
        return job.future

    def _run(self) -> None:
        self._on_start()
        while (jobs := self._next_batch()) is not None:
            running = [job for job in jobs if self._begin(job)]
            if running:
                self._on_batch(running[0].key, sum(job.size for job in running))
                self._work(running)

    def _next_batch(self) -> list[_Job] | None:
        """Wait for the job whose turn it is and the jobs that may share its batch; None when the thread should end."""
        with self._changed:
            while (found := self._waiting.pop()) is None:
                if self._stopping:
                    return None
                self._changed.wait()
            first = found[1]
            jobs, room = [first], first.most - first.size
            if first.key is None:
                return jobs
            # We count from its arrival, so that time spent behind the previous batch counts as well.
            until = first.arrived + self.max_wait_s
            while True:
                room = self._take_similar(first, jobs, room)
                left = until - time.monotonic()
                if room <= 0 or left <= 0 or self._stopping or not self._expected:
                    return jobs
                self._changed.wait(left)

    def _take_similar(self, first: _Job, jobs: list[_Job], room: int) -> int:
        """Move jobs with the key of the first from the queue to the batch, oldest first; returns the remaining room."""
        for job in sorted(self._waiting, key=lambda waiting: waiting.arrived):
            if job.key == first.key and job.size <= room:
                self._waiting.remove(job.client, job)
                jobs.append(job)
                room -= job.size
        return room

    @staticmethod
    def _begin(job: _Job) -> bool:
        if not job.future.set_running_or_notify_cancel():
            return False  # The client has disconnected, or has been told that its request timed out.
        if time.monotonic() > job.deadline:
            reason = "the request waited too long: the server is busy, try again later"
            job.future.set_exception(ApiError(504, "timeout", reason))
            return False
        return True

    def _work(self, jobs: list[_Job]) -> None:
        try:
            results = list(zip(jobs, jobs[0].work([job.payload for job in jobs]), strict=True))
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            # One bad input must not make the other requests fail.
            _log.warning("a batch of %d requests failed (%s): running them one by one", len(jobs), type(error).__name__)
            for job in jobs:
                self._work([job])
            return
        for job, result in results:
            job.future.set_result(result)
