"""Between HTTP and the models: names, limits, the queue, and work that must not block the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import torch

from ltnode.errors import InputError, unknown_name
from ltnode.models import LatentTimeODE
from ltnode.serve.batching import Batcher, StoppedError
from ltnode.serve.failures import ApiError
from ltnode.serve.limits import Limits
from ltnode.serve.metrics import Metrics
from ltnode.trained import PredictionRow, TrainedModel
from ltnode.typing import Float, Tensor

Result = TypeVar("Result")


class Answer(NamedTuple):
    """Rows of one request, and the evaluations of the pass that they come from."""

    rows: list[PredictionRow]
    evaluations: int


class Service:
    """Trained models by name, behind one queue.

    Args:
        models: Put into eval mode; names must differ.
        limits: What a request may ask for.

    Raises:
        InputError: No models, or two of the same name.
    """

    def __init__(self, models: Sequence[TrainedModel], limits: Limits) -> None:
        names = [trained.name for trained in models]
        if not names:
            raise InputError("a server needs at least one model")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InputError(f"two models are called {twice[0]!r}: rename one of the folders, their names tell the models apart")
        self.models = {trained.name: trained for trained in models}
        for trained in models:
            trained.model.eval()
        self.limits = limits
        self.batcher = Batcher(
            limits.max_batch, limits.max_wait_ms / 1000, limits.max_queue, observe=self._observe, ready=_use_few_threads
        )
        self.metrics = Metrics(lambda: len(self.batcher))
        # One thread: several large pictures at a time would hold their pixels at the same time.
        self._decoder = ThreadPoolExecutor(1, thread_name_prefix="ltnode-decode")

    def start(self) -> None:
        """Begin to work."""
        self.batcher.start()

    def stop(self) -> None:
        """Finish what was accepted, and end the threads."""
        self.batcher.stop()
        self._decoder.shutdown()

    def model(self, name: str | None) -> TrainedModel:
        """A model by name; None is the only one.

        Raises:
            ApiError: 404 for an unknown name, 422 where a name is needed.
        """
        if name is None:
            if len(self.models) > 1:
                raise ApiError(422, "invalid", f"name the model; this server has {', '.join(self.models)}")
            return next(iter(self.models.values()))
        if name not in self.models:
            raise ApiError(404, "unknown_model", unknown_name("model", name[:80], self.models))
        return self.models[name]

    def check_limit(self, name: str, asked: int) -> None:
        """Nobody asks for more than the limit of this name.

        Raises:
            InputError: Somebody does.
        """
        allowed = getattr(self.limits, name)
        if asked > allowed:
            raise InputError(f"{asked} {name} are too many; this server allows at most {allowed} in one request")

    async def aside(self, work: Callable[[], Result]) -> Result:
        """Run something that takes a while (decoding pictures, large arrays) beside the event loop, one at a time.

        Raises:
            StoppedError: The server is shutting down.
        """
        try:
            future = self._decoder.submit(work)
        except RuntimeError as error:
            raise StoppedError("the server is shutting down") from error
        return await asyncio.wrap_future(future)

    async def predict(self, trained: TrainedModel, raw: Float[Tensor, "B *shape"], samples: int) -> Answer:
        """Rows of raw inputs; shares a pass with whoever asks the same model for as many samples.

        Raises:
            InputError: The inputs do not fit.
            QueueFullError: Too many wait.
        """
        x = trained.prepare(raw)

        def one_pass(inputs: Sequence[Tensor]) -> list[Answer]:
            return predict_together(trained, inputs, samples)

        # Other models draw noise by position in the batch: an answer would depend on who else asks.
        key = (trained.name, samples) if isinstance(trained.model, LatentTimeODE) else None
        future = self.batcher.submit(key, one_pass, x, x.shape[0], self.limits.seconds)
        return await asyncio.wrap_future(future)

    async def alone(self, work: Callable[[], Result]) -> Result:
        """Run something that needs the models to itself, in its turn."""
        future = self.batcher.submit(None, lambda _: [work()], None, 1, self.limits.seconds)
        result: Result = await asyncio.wrap_future(future)
        return result

    def _observe(self, key: Any, inputs: int, jobs: int) -> None:
        if key is not None:
            self.metrics.batches.observe(inputs, key[0])


def predict_together(trained: TrainedModel, inputs: Sequence[Float[Tensor, "_ *shape"]], samples: int) -> list[Answer]:
    """One pass over the network inputs of several requests: the answer of each."""
    x = torch.cat(list(inputs)) if len(inputs) > 1 else inputs[0]
    prediction = trained.predict_inputs(x, samples)
    rows = trained.rows_of(prediction, x)
    evaluations = prediction.stats.n_evaluations if prediction.stats else 0
    answers, start = [], 0
    for part in inputs:
        answers.append(Answer(rows[start : start + part.shape[0]], evaluations))
        start += part.shape[0]
    return answers


def _use_few_threads() -> None:
    # One core stays for the event loop; on two cores more threads of torch would wait for each other.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))
