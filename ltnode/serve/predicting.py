"""The prediction of one batch: the inputs of several requests together, and the rows of each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ltnode.trained import PredictionRow, TrainedModel
from ltnode.typing import Float, Tensor


class PredictedRows(NamedTuple):
    """Rows of one request, and the field evaluations of the batch that they come from."""

    rows: list[PredictionRow]
    evaluations: int


def predict_together(trained: TrainedModel, samples: int, inputs: Sequence[Float[Tensor, "_ *shape"]]) -> list[PredictedRows]:
    """Predict the network inputs of several requests in one batch, and split the rows by request."""
    x = torch.cat(list(inputs)) if len(inputs) > 1 else inputs[0]
    prediction = trained.predict_inputs(x, samples)
    rows = iter(trained.rows_of(prediction, x))
    evaluations = prediction.stats.n_evaluations if prediction.stats else 0
    return [PredictedRows(list(itertools.islice(rows, len(part))), evaluations) for part in inputs]
