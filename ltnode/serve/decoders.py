"""Processes that decode image files: a hostile file can exhaust the CPU time, memory or life of its process, and nothing else.

The processes stay alive between requests. One that exceeds its limits ends, its request is answered with the reason, and another
process takes its place. A request is first tried in the quick lane, for a fraction of a second; one that takes longer moves to
the slow lane, which has processes of its own. Within a lane clients take turns, so that small images never wait for large ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch

from ltnode.errors import InputError
from ltnode.imagefiles import worker
from ltnode.serve.failures import ApiError, stopping
from ltnode.serve.fair_queue import FairQueue
from ltnode.serve.limits import Limits
from ltnode.typing import Tensor

_SPARE = -1
"""Slot of a process that waits to replace one that has ended."""
_STOP_SECONDS = 1.0
_START_SECONDS = 30.0
"""How long a new process may take to import its libraries on a busy machine."""


_LIMITS_CPU = hasattr(signal, "SIGPROF")
_QUICK_SECONDS = 0.25
"""Processor time of a request in the quick lane: a photo of ten megapixels usually fits."""
_QUICK_BYTES = 2 << 20
"""Larger requests go to the slow lane at once."""


class WorkerEnded(Exception):
    """A decoding process ended or was ended before it had answered."""


@dataclass(eq=False)
class _Job:
    files: Sequence[bytes]
    shape: tuple[int, ...]
    deadline: float
    client: Hashable
    slow: bool
    future: Future[tuple[Tensor, list[str]]] = field(default_factory=Future)


class DecodingProcess:
    """One process that runs ``ltnode/imagefiles/worker.py``."""

    def __init__(self) -> None:
        # -E and -s: neither environment nor user folders decide what the process imports. A session of its own: Ctrl-C is for
        # the server, which then ends its processes.
        self._process = subprocess.Popen(
            [sys.executable, "-E", "-s", str(Path(worker.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self._ready = False

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def close(self) -> None:
        """End the process, and release its pipes and its entry in the process table."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # unsent bytes for a process that has ended
                    continue

    @property
    def ended_by_cpu_limit(self) -> bool:
        """Whether the operating system ended the process because a job took too much CPU time."""
        return _LIMITS_CPU and self._process.wait() == -signal.SIGPROF

    def ask(self, job: dict[str, Any], files: Sequence[bytes], deadline: float) -> tuple[dict[str, Any], bytes]:
        """Send a job and wait for the answer.

        Raises:
            WorkerEnded: The process ended.
            TimeoutError: The deadline has passed; the caller closes the process.
        """
        if not self._ready:
            self._read_message(time.monotonic() + _START_SECONDS)
            self._ready = True
        try:
            worker.write_message(cast(BinaryIO, self._process.stdin), job, b"".join(files))
        except OSError as error:
            raise WorkerEnded from error
        head = self._read_message(deadline)
        return head, self._read(head.get("bytes", 0), deadline)

    def _read_message(self, deadline: float) -> dict[str, Any]:
        (length,) = worker.LENGTH.unpack(self._read(worker.LENGTH.size, deadline))
        message: dict[str, Any] = json.loads(self._read(length, deadline))
        return message

    def _read(self, size: int, deadline: float) -> bytes:
        assert self._process.stdout is not None
        if not hasattr(select, "poll"):
            return self._read_until_killed(self._process.stdout, size, deadline)
        descriptor = self._process.stdout.fileno()
        parts, left = [], size
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        while left:
            if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                raise TimeoutError
            part = os.read(descriptor, left)
            if not part:
                raise WorkerEnded
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

    def _read_until_killed(self, stream: IO[bytes], size: int, deadline: float) -> bytes:
        """Read where pipes cannot be waited for (Windows): a timer ends the process, which ends its answer."""
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), self.kill)
        timer.start()
        try:
            content = stream.read(size)
        finally:
            timer.cancel()
        if len(content) < size:
            raise TimeoutError if time.monotonic() >= deadline else WorkerEnded
        return content


class DecoderPool:
    """The processes, each with a thread that hands it one job after the other, and the queue in front of them."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._lanes: dict[bool, FairQueue[_Job]] = {slow: FairQueue(limits.max_queue) for slow in (False, True)}
        self._changed = threading.Condition()
        self._processes: dict[int, DecodingProcess] = {}
        self._threads: list[threading.Thread] = []
        self._stopping = False

    def start(self, warm: bool = False) -> None:
        """Start the threads; ``warm`` starts the processes as well, which otherwise happens with the first job."""
        with self._changed:
            if self._threads or self._stopping:
                return
            for slot in range(self._limits.decoders):
                thread = threading.Thread(target=self._run, args=(slot, warm), name=f"ltnode-decode-{slot}", daemon=True)
                self._threads.append(thread)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the processes at once, whatever they decode, and then the threads."""
        with self._changed:
            self._stopping = True
            for process in self._processes.values():
                process.kill()
            self._changed.notify_all()
        until = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def pids(self) -> list[int]:
        """Numbers of the processes."""
        with self._changed:
            return [process.pid for process in self._processes.values()]

    def submit(
        self, files: Sequence[bytes], shape: tuple[int, ...], client: Hashable, seconds: int | float
    ) -> Future[tuple[Tensor, list[str]]]:
        """Decode the files of one request: uint8 pixels (B, C, H, W), and notes on their conversions.

        The future fails with an InputError for a file that cannot be used, and with an ApiError if the server has no room.
        """
        slow = sum(map(len, files)) > _QUICK_BYTES
        job = _Job(files, shape, time.monotonic() + seconds, client, slow)
        with self._changed:
            if self._stopping:
                raise stopping()
            dropped = self._lanes[slow].put(client, job)
            self._changed.notify_all()
        _refuse(dropped)
        return job.future

    def _next(self, slot: int) -> _Job | None:
        """The next job for a process: odd ones have the slow lane, and a single process has both."""
        lanes = (False, True) if self._limits.decoders == 1 else (slot % 2 == 1,)
        with self._changed:
            while not self._stopping:
                for slow in lanes:
                    if (found := self._lanes[slow].pop()) is not None:
                        return found[1]
                self._changed.wait()
            return None

    def _run(self, slot: int, warm: bool) -> None:
        with contextlib.suppress(ApiError):  # the server is shutting down already
            if warm:
                self._process(slot)
        while (job := self._next(slot)) is not None:
            if job.future.running() or job.future.set_running_or_notify_cancel():
                self._answer(slot, job)
        with self._changed:
            ended = [self._processes.pop(name) for name in (slot, _SPARE) if name in self._processes]
        for process in ended:
            process.close()
        with self._changed:
            waiting = [job for lane in self._lanes.values() for job in lane]
            self._lanes = {slow: FairQueue(self._limits.max_queue) for slow in (False, True)}
        for job in waiting:
            if job.future.running() or job.future.set_running_or_notify_cancel():
                job.future.set_exception(stopping())

    def _answer(self, slot: int, job: _Job) -> None:
        try:
            result = self._decode(slot, job)
        except Exception as error:
            job.future.set_exception(error)
            return
        if result is not None:
            job.future.set_result(result)
            return
        job.slow = True
        with self._changed:
            dropped = self._lanes[True].put(job.client, job)
            self._changed.notify_all()
        _refuse(dropped)

    def _process(self, slot: int) -> DecodingProcess:
        """The process of a thread; where it has ended, the spare one, which has imported its libraries already."""
        process = self._processes.get(slot)
        if process is not None and process.alive:
            return process
        if process is not None:
            process.close()
        with self._changed:
            if self._stopping:
                raise stopping()
            process = self._processes.pop(_SPARE) if _SPARE in self._processes else DecodingProcess()
            self._processes[slot] = process
            self._processes[_SPARE] = DecodingProcess()
        return process

    def _decode(self, slot: int, job: _Job) -> tuple[Tensor, list[str]] | None:
        """Pixels and notes; None if the time of the quick lane was not enough."""
        limits = self._limits
        seconds = limits.decode_seconds if job.slow else min(_QUICK_SECONDS, limits.decode_seconds)
        request = {
            "shape": job.shape,
            "max_pixels": limits.pixels,
            "total_pixels": limits.request_pixels,
            "cpu_seconds": seconds,
            "patient": job.slow and limits.decoders > 1,
            "sizes": [len(content) for content in job.files],
        }
        for last_attempt in (False, False, True):
            process = self._process(slot)
            # Windows limits no processor time, but the time of waiting can be limited.
            deadline = job.deadline if _LIMITS_CPU else min(job.deadline, time.monotonic() + seconds)
            try:
                head, content = process.ask(request, job.files, deadline)
                return _result(head, content, job, limits)
            except (WorkerEnded, TimeoutError) as error:
                slow = isinstance(error, TimeoutError) or process.ended_by_cpu_limit
                process.close()
            if self._stopping:
                raise stopping()
            if slow and seconds < limits.decode_seconds and time.monotonic() < job.deadline:
                return None
            if slow:
                raise InputError(
                    f"decoding took more than {limits.decode_seconds:g} s of processor time: send smaller images, or save anew"
                )
            if last_attempt:  # before, the process may have been ended for another reason than this job
                break
        raise InputError("decoding failed: the image is damaged, or needs too much memory; save it anew")


def _refuse(dropped: _Job | None) -> None:
    """Answer a job that has no place in the queue."""
    if dropped is not None and (dropped.future.running() or dropped.future.set_running_or_notify_cancel()):
        full = ApiError(503, "queue_full", "too many images wait to be decoded; try again in a second", {"Retry-After": "1"})
        dropped.future.set_exception(full)


def _result(head: dict[str, Any], content: bytes, job: _Job, limits: Limits) -> tuple[Tensor, list[str]]:
    several = len(job.files) > 1
    if "too_many_pixels" in head:
        raise InputError(
            f"the images have more than {limits.request_pixels:,} pixels together, which is the limit for one request: "
            "scale them down, or send fewer"
        )
    if "reason" in head:
        raise InputError(f"image {head['file']}: {head['reason']}" if several else head["reason"])
    pixels = torch.from_numpy(np.frombuffer(content, np.uint8).copy()).reshape(-1, *job.shape)
    notes = [f"image {n}: {note}" if several else note for n, of_file in enumerate(head["notes"]) for note in of_file]
    return pixels, notes
