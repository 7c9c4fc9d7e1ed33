"""A bounded queue in which clients take turns, so that one client with many requests delays the others by one request each."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from contextvars import ContextVar
from typing import Generic, TypeVar

Job = TypeVar("Job")

current_client: ContextVar[Hashable] = ContextVar("current_client", default=None)
"""The client of the request that the current task answers: an address, or None outside of the server."""


class FairQueue(Generic[Job]):
    """Jobs by client, of which at most ``most`` may wait; the caller holds a lock.

    If the queue is full, the client with the most jobs loses its last one to a client with fewer: nobody can fill it alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._of_client: OrderedDict[Hashable, deque[Job]] = OrderedDict()
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Job]:
        for jobs in self._of_client.values():
            yield from jobs

    def put(self, client: Hashable, job: Job) -> Job | None:
        """Add a job; returns the job that has no place: None, the last one of another client, or ``job`` itself."""
        dropped = None
        if self._length >= self._most:
            largest = max(self._of_client, key=lambda name: len(self._of_client[name]))
            if len(self._of_client[largest]) <= len(self._of_client.get(client, ())) + 1:
                return job
            dropped = self._of_client[largest][-1]
            self.remove(largest, dropped)
        self._of_client.setdefault(client, deque()).append(job)
        self._length += 1
        return dropped

    def pop(self, allowed: Callable[[Hashable], bool] = lambda client: True) -> tuple[Hashable, Job] | None:
        """Take the oldest job of the client whose turn it is, among the allowed clients; None if there is none."""
        for client, jobs in self._of_client.items():
            if allowed(client):
                job = jobs[0]
                self.remove(client, job)
                if client in self._of_client:
                    self._of_client.move_to_end(client)
                return client, job
        return None

    def remove(self, client: Hashable, job: Job) -> None:
        """Remove one job."""
        jobs = self._of_client[client]
        jobs.remove(job)
        self._length -= 1
        if not jobs:
            del self._of_client[client]
