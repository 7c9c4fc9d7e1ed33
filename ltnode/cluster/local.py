"""The engine ``local``: concurrent worker processes on this machine, and for short tasks also a thread of this process."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, deque
from typing import Any, TypeAlias

import torch

from ltnode.cluster.executor import MAX_ATTEMPTS, Executor, Outcome, Task, call

_RUNS_PER_GPU = 4
"""Concurrent trainings per GPU: a network of this package leaves most multiprocessors idle, and the gain of more is small."""
_GRACE_SECONDS = 20.0
"""How long workers may take to write a checkpoint when they are told to stop."""
_Answers: TypeAlias = "queue.Queue[tuple[_Worker, bytes]]"
"""What the workers write; nothing when one has died."""


class _Worker(ABC):
    """Whatever works on one task at a time, and puts its answers into a queue."""

    def __init__(self) -> None:
        self.task: Task | None = None
        self.cancelled = False

    def start(self, task: Task) -> None:
        """Begin a task; OSError if the worker has died."""
        self.task, self.cancelled = task, False
        self._send(json.dumps({"function": task.function, "arguments": dict(task.arguments)}).encode() + b"\n")

    @abstractmethod
    def _send(self, line: bytes) -> None:
        """Pass on a task."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the worker to end."""

    @abstractmethod
    def join(self, seconds: float) -> int:
        """Wait until the worker has ended, and end it after some seconds; returns its exit status."""


class _Process(_Worker):
    """A process, whose answers a thread reads, because pipes cannot be waited for on Windows."""

    def __init__(self, answers: _Answers, environment: dict[str, str]) -> None:
        super().__init__()
        self._answers = answers
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-m", "ltnode.cluster.worker"]
        # In a session of its own, so that Ctrl-C reaches the caller only, which then ends the workers in order.
        self._process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
        assert self._process.stdin is not None
        self._input = self._process.stdin
        threading.Thread(target=self._read, daemon=True).start()

    def _send(self, line: bytes) -> None:
        self._input.write(line)
        self._input.flush()

    def _read(self) -> None:
        """Pass on what the process writes until it ends."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):  # otherwise it died while it wrote
                    self._answers.put((self, line))
        self._answers.put((self, b""))

    def stop(self) -> None:
        if self.task is None:
            self._process.kill()
        else:
            self._process.terminate()

    def join(self, seconds: float) -> int:
        try:
            status = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        with contextlib.suppress(OSError):  # what was not yet written is lost with the process
            self._input.close()
        return status


class _Stopped(BaseException):
    """Raised in the thread of a worker to end its task; no task catches it."""


class _Here(_Worker):
    """A thread of this process, which need not import torch again."""

    def __init__(self, answers: _Answers) -> None:
        super().__init__()
        self._answers = answers
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _send(self, line: bytes) -> None:
        self._lines.put(line)

    def _work(self) -> None:
        with contextlib.suppress(_Stopped):
            while line := self._lines.get():
                task = json.loads(line)
                self._answers.put((self, json.dumps(call(task["function"], task["arguments"])).encode()))
        self._answers.put((self, b""))

    def stop(self) -> None:
        if self.task is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident or 0), ctypes.py_object(_Stopped))
        self._lines.put(b"")

    def join(self, seconds: float) -> int:
        self._thread.join(seconds)
        return 0


class LocalExecutor(Executor):
    """Runs tasks in worker processes of this machine.

    Args:
        jobs: Number of concurrent tasks; None chooses one per core (of ``threads`` cores each), or 4 per GPU.
        threads: Number of threads of a task.
        device: Where the tasks compute: ``"cpu"`` keeps them off the GPUs; with several GPUs, workers are spread over them.
        here: Whether one of the workers is a thread of this process, so that N workers import torch N times only.
    """

    def __init__(self, jobs: int | None = None, threads: int = 1, device: str = "auto", here: bool = False) -> None:
        self._gpus = torch.cuda.device_count() if device != "cpu" else 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        usual = _RUNS_PER_GPU * self._gpus if self._gpus else max(1, cores // threads)
        self._jobs, self._threads, self._here, self._started = jobs or usual, threads, here, 0
        self._workers: list[_Worker] = []
        self._waiting: deque[Task] = deque()
        self._attempts: Counter[str] = Counter()
        self._answers: _Answers = queue.Queue()
        self._ended: list[Outcome] = []

    @property
    def capacity(self) -> int:
        """Number of tasks that run at the same time."""
        return self._jobs

    def prepare(self, tasks: int) -> None:
        """Start workers, which import torch while the caller does something else."""
        while len(self._workers) < min(tasks, self._jobs):
            self._start_worker()

    def submit(self, task: Task) -> None:
        """Start a task, or let it wait for a worker."""
        self._waiting.append(task)
        self._fill()

    def wait(self, seconds: float) -> list[Outcome]:
        """Return what has ended."""
        deadline = time.monotonic() + seconds
        while not self._ended and (left := deadline - time.monotonic()) > 0:
            if not self._workers:
                break
            with contextlib.suppress(queue.Empty):
                self._receive(*self._answers.get(timeout=left))
            self._fill()
        ended, self._ended = self._ended, []
        return ended

    def cancel(self, name: str) -> None:
        """End a task."""
        for task in [task for task in self._waiting if task.name == name]:
            self._waiting.remove(task)
            self._ended.append(Outcome(name, "cancelled"))
        for worker in self._workers:
            if worker.task is not None and worker.task.name == name and not worker.cancelled:
                worker.cancelled = True
                worker.stop()

    def close(self) -> None:
        """End all workers; trainings write a checkpoint first."""
        self._waiting.clear()
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self._workers:
            worker.join(max(0.1, deadline - time.monotonic()))
        self._workers.clear()

    def _fill(self) -> None:
        """Give waiting tasks to idle workers, and start workers as long as there are fewer than allowed."""
        while self._waiting:
            idle = next((worker for worker in self._workers if worker.task is None), None)
            if idle is None:
                if len(self._workers) >= self._jobs:
                    return
                idle = self._start_worker()
            try:
                idle.start(self._waiting[0])
            except OSError:  # it died while it was idle
                idle.task = None
                self._bury(idle)
                continue
            self._attempts[self._waiting.popleft().name] += 1

    def _start_worker(self) -> _Worker:
        environment: dict[str, str] = {**os.environ, "OMP_NUM_THREADS": str(self._threads)}
        if self._gpus > 1:
            environment["CUDA_VISIBLE_DEVICES"] = str(self._started % self._gpus)
        here = self._here and self._started == 0  # on the first GPU, as the process of its number would be
        worker = _Here(self._answers) if here else _Process(self._answers, environment)
        self._started += 1
        self._workers.append(worker)
        return worker

    def _receive(self, worker: _Worker, line: bytes) -> None:
        if worker not in self._workers:
            return
        if not line:
            self._bury(worker)
            return
        assert worker.task is not None
        self._ended.append(Outcome.of_answer(worker.task.name, json.loads(line)))
        worker.task = None

    def _bury(self, worker: _Worker) -> None:
        """Forget a worker that has died; its task is cancelled, or continues in another worker."""
        status = worker.join(_GRACE_SECONDS)
        self._workers.remove(worker)
        task = worker.task
        if task is None:
            return
        if worker.cancelled:
            self._ended.append(Outcome(task.name, "cancelled"))
        elif self._attempts[task.name] >= MAX_ATTEMPTS:
            reason = f"its process died {MAX_ATTEMPTS} times, the last time with status {status}; is there enough memory?"
            self._ended.append(Outcome(task.name, "failed", error=reason, kind="WorkerDied"))
        else:
            self._waiting.appendleft(task)
