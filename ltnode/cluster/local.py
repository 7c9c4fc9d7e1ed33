"""The engine ``local``: concurrent worker processes on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from typing import Any

import torch

from ltnode.cluster.executor import MAX_ATTEMPTS, Executor, Outcome, Task

_RUNS_PER_GPU = 4
"""Concurrent trainings per GPU: a network of this package leaves most multiprocessors idle, and the gain of more is small."""
_GRACE_SECONDS = 20.0
"""How long workers may take to write a checkpoint when they are told to stop."""


@dataclass(eq=False)
class _Worker:
    """One process, and the task that it works on."""

    process: subprocess.Popen[bytes]
    task: Task | None = None
    cancelled: bool = False

    def start(self, task: Task) -> None:
        assert self.process.stdin is not None
        self.task, self.cancelled = task, False
        line = json.dumps({"function": task.function, "arguments": dict(task.arguments)}) + "\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()


class LocalExecutor(Executor):
    """Runs tasks in worker processes of this machine.

    Args:
        jobs: Number of concurrent tasks; None chooses one per core (of ``threads`` cores each), or 4 per GPU.
        threads: Number of threads of a task.
        device: Where the tasks compute: ``"cpu"`` keeps them off the GPUs; with several GPUs, workers are spread over them.
    """

    def __init__(self, jobs: int | None = None, threads: int = 1, device: str = "auto") -> None:
        self._gpus = torch.cuda.device_count() if device != "cpu" else 0
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        usual = _RUNS_PER_GPU * self._gpus if self._gpus else max(1, cores // threads)
        self._jobs, self._threads, self._started = jobs or usual, threads, 0
        self._workers: list[_Worker] = []
        self._waiting: deque[Task] = deque()
        self._attempts: Counter[str] = Counter()
        self._answers: queue.Queue[tuple[_Worker, bytes]] = queue.Queue()  # what the workers write; nothing when one has died
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
                worker.process.terminate()

    def close(self) -> None:
        """End all workers; trainings write a checkpoint first."""
        self._waiting.clear()
        for worker in self._workers:
            if worker.task is None:
                worker.process.kill()
            else:
                worker.process.terminate()
        deadline = time.monotonic() + _GRACE_SECONDS
        for worker in self._workers:
            try:
                worker.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            self._forget_pipe(worker)
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
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-m", "ltnode.cluster.worker"]
        # In a session of its own, so that Ctrl-C reaches the caller only, which then ends the workers in order.
        worker = _Worker(subprocess.Popen(command, **pipes, env=environment, start_new_session=True))
        self._started += 1
        self._workers.append(worker)
        # A thread per worker, because pipes cannot be waited for on Windows.
        threading.Thread(target=self._read, args=(worker,), daemon=True).start()
        return worker

    def _read(self, worker: _Worker) -> None:
        """Pass on what a worker writes until it ends."""
        assert worker.process.stdout is not None
        with worker.process.stdout as lines:
            for line in lines:
                if line.endswith(b"\n"):  # otherwise it died while it wrote
                    self._answers.put((worker, line))
        self._answers.put((worker, b""))

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
        status = worker.process.wait()
        self._forget_pipe(worker)
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

    def _forget_pipe(self, worker: _Worker) -> None:
        assert worker.process.stdin is not None
        try:
            worker.process.stdin.close()
        except OSError:  # what was not yet written is lost with the worker
            return
