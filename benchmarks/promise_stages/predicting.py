"""Predictions of one solve in columns: before widening, after it, distance and familiarity."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from ltnode.device import product_precision
from ltnode.endtime import FixedTime
from ltnode.models import LatentTimeODE, Model, Prediction
from ltnode.models.contract import evaluating
from ltnode.models.familiar_model import FamiliarModel
from ltnode.trained import TrainedModel

BATCH = 10_000


def raw_log_probs(model: Model, x: Tensor, samples: int) -> Tensor:
    """Log of the averaged probabilities of network inputs, without temperature and widening; (B, C)."""
    if not isinstance(model, LatentTimeODE):
        members = [raw_log_probs(member, x, samples) for member in model.members]  # type: ignore[union-attr]
        return torch.logsumexp(torch.stack(members), 0) - math.log(len(members))
    with torch.no_grad(), evaluating(model):
        times = model.prediction_times(x, 1 if isinstance(model.end_time, FixedTime) else samples)
        return Prediction(model.task, model(x, times), times).log_probs


@dataclass(frozen=True)
class Columns:
    """Predictions of N inputs, on the CPU.

    Attributes:
        raw: Log-probabilities before temperature and widening, (N, C).
        probs: Probabilities as the user sees them, (N, C).
        distance: (N,); None without familiarity.
        familiarity: (N,); None without calibration.
    """

    raw: Tensor
    probs: Tensor
    distance: Tensor | None
    familiarity: Tensor | None

    def __getitem__(self, chosen: slice) -> Columns:
        values = (getattr(self, entry.name) for entry in fields(self))
        return Columns(*(None if value is None else value[chosen] for value in values))


def predict(trained: TrainedModel, images: Tensor, samples: int, batch: int = BATCH) -> Columns:
    """Predict raw images in large batches, since small ones leave a GPU idle; one solve gives all columns."""
    model, raws, predictions = trained.model, [], []
    if not isinstance(model, FamiliarModel):
        raise SystemExit(f"{trained.name} has no path, so there is no familiarity to measure")
    deterministic = isinstance(model, LatentTimeODE) and isinstance(model.end_time, FixedTime)
    with product_precision("fp32"), torch.no_grad(), evaluating(model):
        for part in torch.split(images, batch):
            members = model.members(trained.prepare(part), 1 if deterministic else samples)
            raws.append(Prediction(model.task, members.outputs, members.times).log_probs.double())
            predictions.append(model.answer(members))
    return Columns(torch.cat(raws), *(_joined(predictions, name) for name in ("probs", "distance", "familiarity")))


def _joined(predictions: list[Prediction], name: str) -> Tensor | None:
    values = [getattr(prediction, name) for prediction in predictions]
    return None if values[0] is None else torch.cat(values).double()
