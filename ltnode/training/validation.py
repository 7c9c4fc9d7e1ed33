"""Numbers about a model in training that leave the training unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ltnode import metrics
from ltnode.data.streaming import in_parts
from ltnode.models import Model, execution
from ltnode.models.contract import evaluating
from ltnode.training.batches import TrainingData

_BATCH = 1024
_SMALLEST_STD = 1e-6
"""A prediction without any spread would make the log-likelihood infinite."""


@contextmanager
def observing(model: Model, device: torch.device) -> Iterator[None]:
    """Put the model into eval mode inside the block; afterwards, its mode and the random state are restored."""
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), evaluating(model):
        yield


def validate(model: Model, data: TrainingData) -> dict[str, float]:
    """Evaluate the model on the held-out examples, layer by layer.

    A faster execution would keep graphs, and may only be used once it has seen a size: a resumed training would then see other
    numbers than an uninterrupted one, and the graphs would take memory from the training.
    """
    assert data.validation is not None
    x, y = data.evaluation_inputs(data.validation)
    with execution.using(execution.REFERENCE):
        predictions = [model.predict(part) for part in in_parts(x, _BATCH)]
    if model.task == "classification":
        probs = torch.cat([p.probs for p in predictions])
        return {"error": metrics.error(probs, y), "log_likelihood": metrics.log_likelihood(probs, y)}
    mean, std = (torch.cat(values) for values in ([p.mean for p in predictions], [p.total_std for p in predictions]))
    target = y.to(x.dtype)
    log_likelihood = -metrics.gaussian_nll(mean, std.clamp_min(_SMALLEST_STD), target)
    return {"rmse": metrics.rmse(mean, target), "log_likelihood": log_likelihood}
