"""Processes that compute predictions for one server, so that it uses more than one core.

The server itself stays one process: it receives and checks requests, keeps the queue, and counts. All limits and metrics are
therefore those of the whole server, however many workers there are.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait

import torch

from ltnode.errors import InputError
from ltnode.serve.failures import ApiError
from ltnode.serve.predicting import PredictedRows, predict_together
from ltnode.trained import TrainedModel
from ltnode.typing import Float, Tensor

_LOG = logging.getLogger("ltnode")
_ATTEMPTS = 3
"""How often the workers may die under one batch."""
_models: dict[str, TrainedModel] = {}
"""The models of this process, if it is a worker."""


class ModelWorkers:
    """Worker processes, each with all models.

    Args:
        models: The models, which the workers load from their folders.
        count: Number of processes.
    """

    def __init__(self, models: Sequence[TrainedModel], count: int) -> None:
        for trained in models:
            if trained.path is None:
                raise InputError(f"{trained.name} has no folder from which workers could load it: save it, or use one worker")
        self.count = count
        self._loaded = [(str(trained.path), trained.false_alarm_rate) for trained in models]
        self._lock = threading.Lock()
        self._pool = self._started()

    def predict(self, name: str, samples: int, inputs: Sequence[Float[Tensor, "_ *shape"]]) -> list[PredictedRows]:
        """Predict a batch in one of the processes; if that dies, in another one."""
        pool, sent = self._pool, [part.cpu().numpy() for part in inputs]
        for _ in range(_ATTEMPTS):
            try:
                return pool.submit(_predict, name, samples, sent).result()
            except BrokenProcessPool:
                pool = self._renewed(pool)
        raise ApiError(503, "busy", "the workers of the server have died while they predicted: try again", {"Retry-After": "5"})

    def stop(self) -> None:
        """End the processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _renewed(self, broken: ProcessPoolExecutor) -> ProcessPoolExecutor:
        """Start new processes, once for all threads that have met the same dead one."""
        with self._lock:
            if self._pool is broken:
                _LOG.warning("a worker of the server has died: starting new ones; is there enough memory?")
                self._pool = self._started()
            return self._pool

    def _started(self) -> ProcessPoolExecutor:
        threads = max(1, (os.cpu_count() or 1) // self.count)
        context = multiprocessing.get_context("spawn")  # a fork would copy threads and locks of torch
        pool = ProcessPoolExecutor(self.count, context, initializer=_load, initargs=(self._loaded, threads))
        for _ in range(self.count):
            pool.submit(os.getpid)  # starts the processes now, not with the first requests
        return pool


def _load(folders: Sequence[tuple[str, float]], threads: int) -> None:
    """Prepare a worker: load the models, and end with the server even if that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal, and the server ends its workers
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    torch.set_num_threads(threads)
    for folder, rate in folders:
        trained = TrainedModel.open(folder).with_false_alarm_rate(rate)
        trained.model.eval()
        _models[trained.name] = trained


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(0)


def _predict(name: str, samples: int, inputs: Sequence[object]) -> list[PredictedRows]:
    trained = _models[name]
    device = next(trained.model.parameters()).device
    return predict_together(trained, samples, [torch.from_numpy(part).to(device) for part in inputs])
