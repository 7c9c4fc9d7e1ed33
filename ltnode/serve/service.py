"""The models by name, the queue in front of them, decoding processes, and a thread for work that would block the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch

from ltnode.errors import InputError, unknown_name
from ltnode.models import LatentTimeODE
from ltnode.serve.batching import Batcher, Work
from ltnode.serve.decoders import DecoderPool
from ltnode.serve.decoding import RawBatch
from ltnode.serve.failures import ApiError, stopping
from ltnode.serve.fair_queue import current_client
from ltnode.serve.limits import Limits
from ltnode.serve.metrics import Metrics
from ltnode.serve.model_workers import ModelWorkers
from ltnode.serve.predicting import PredictedRows, predict_together
from ltnode.trained import PredictionRow, TrainedModel
from ltnode.typing import Float, Tensor

Result = TypeVar("Result")
_LARGEST_TURN = 640
"""Most inputs times samples that are predicted before another client has its turn."""


class Service:
    """Trained models by name, in eval mode and behind one queue; their names must be distinct.

    With ``workers`` above 1, as many processes compute the predictions of images and vectors.
    """

    def __init__(self, models: Sequence[TrainedModel], limits: Limits, workers: int = 1) -> None:
        names = [trained.name for trained in models]
        if not names:
            raise InputError("a server needs at least one model")
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise InputError(f"model names must be unique, but two are called {duplicates[0]!r}: rename one of the folders")
        self.models = {trained.name: trained for trained in models}
        for trained in models:
            trained.model.eval()
        self.limits = limits
        self.workers = ModelWorkers(models, workers) if workers > 1 else None
        self._alone = threading.Lock()
        self.batcher = Batcher(
            limits.max_batch,
            limits.max_wait_ms / 1000,
            limits.max_queue,
            on_batch=self._count_batch,
            on_start=_use_few_threads,
            threads=workers,
        )
        self.metrics = Metrics(lambda: len(self.batcher))
        self.decoders = DecoderPool(limits)
        # A single thread, so that the Python objects of only one large body are in memory at a time.
        self._parser = ThreadPoolExecutor(1, thread_name_prefix="ltnode-parse")

    def start(self, warm: bool = False) -> None:
        """Start the thread of the models and those of the decoding processes; ``warm`` starts the processes as well."""
        self.batcher.start()
        self.decoders.start(warm)

    def stop(self, timeout_s: int | float | None = None) -> None:
        """Finish the accepted requests, for at most the given time, and end the threads and processes."""
        self.decoders.stop()
        self.batcher.stop(timeout_s)
        if self.workers is not None:
            self.workers.stop()
        self._parser.shutdown(wait=timeout_s is None, cancel_futures=True)

    @property
    def ended(self) -> bool:
        """Whether no model computes any more."""
        return self.batcher.ended

    def model(self, name: str | None) -> TrainedModel:
        """Find a model by name, or raise an ApiError; None is allowed if there is only one."""
        if name is None:
            if len(self.models) > 1:
                raise ApiError(422, "invalid", f"model is required; this server has {', '.join(self.models)}")
            return next(iter(self.models.values()))
        if name not in self.models:
            raise ApiError(404, "unknown_model", unknown_name("model", name[:80], self.models))
        return self.models[name]

    async def parse(self, work: Callable[[], Result]) -> Result:
        """Run slow work on a body (parsing large arrays) in the parser thread."""
        try:
            future = self._parser.submit(work)
        except RuntimeError as error:
            raise stopping() from error
        return await asyncio.wrap_future(future)

    async def decode(self, files: Sequence[bytes], trained: TrainedModel) -> RawBatch:
        """Decode the image files of one request in a decoding process."""
        future = self.decoders.submit(files, trained.shape, current_client.get(), self.limits.seconds)
        pixels, notes = await asyncio.wrap_future(future)
        return RawBatch(pixels.float() / 255, notes)

    async def predict(
        self,
        trained: TrainedModel,
        raw: Float[Tensor, "B *shape"],
        samples: int,
        on_submit: Callable[[], None] = lambda: None,
    ) -> PredictedRows:
        """Predict raw inputs, in one batch with other requests for the same model and number of samples.

        A large request is divided, so that other clients have their turn in between. ``on_submit`` is called when the first part
        is in the queue.
        """
        x = trained.prepare(raw)
        submit, seconds = self.batcher.submit, self.limits.seconds
        work: Work = partial(predict_together, trained, samples)
        if self.workers is not None:
            work = partial(self.workers.predict, trained.name, samples)
        if not isinstance(trained.model, LatentTimeODE):
            # These models draw noise by position in the batch, so that another batch would change their answers.
            alone = submit(None, work, x, x.shape[0], seconds, current_client.get())
            on_submit()
            return await asyncio.wrap_future(alone)
        most = max(1, min(self.limits.max_batch, _LARGEST_TURN // samples))
        rows: list[PredictionRow] = []
        evaluations = 0
        for part in torch.split(x, most):
            future = submit((trained.name, samples), work, part, len(part), seconds, current_client.get(), most)
            on_submit()
            predicted: PredictedRows = await asyncio.wrap_future(future)
            rows += predicted.rows
            evaluations += predicted.evaluations
        return PredictedRows(rows, evaluations)

    async def run_alone(self, work: Callable[[], Result]) -> Result:
        """Run work on the models that cannot share a batch, when its turn in the queue comes."""

        def one_at_a_time(_: Any) -> list[Result]:
            with self._alone:
                return [work()]

        future = self.batcher.submit(None, one_at_a_time, None, 1, self.limits.seconds, current_client.get())
        result: Result = await asyncio.wrap_future(future)
        return result

    def _count_batch(self, key: Any, inputs: int) -> None:
        if key is not None:
            self.metrics.batches.labels(key[0]).observe(inputs)


def _use_few_threads() -> None:
    # One core stays free for the event loop; on two cores, more threads of torch would wait for each other.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
