"""Values of predictions as columns of NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from ltnode.estimators.networks import TableModel
from ltnode.estimators.uncertainty import FloatArray
from ltnode.models import Prediction
from ltnode.typing import Float, Tensor


def predicted_columns(predictions: Iterable[Prediction], *names: str) -> list[FloatArray]:
    """Attributes of predictions, joined over their inputs; NaN where the model cannot tell."""
    parts = [[_values(prediction, name) for name in names] for prediction in predictions]
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def distance_by_column(model: TableModel, inputs: Float[Tensor, "B D"], groups: Sequence[Sequence[int]]) -> FloatArray:
    """By how much the distance falls if the features of a column are replaced by their training means, (B, columns).

    Args:
        model: A model with a fitted distance.
        inputs: Network inputs.
        groups: For each column, the positions of its features; 0 is returned for a column without features.
    """
    x = inputs.to(next(model.parameters()).device)
    before = model.distance(x)
    falls = torch.zeros(len(x), len(groups), dtype=before.dtype, device=before.device)
    for place, positions in enumerate(groups):
        if positions:
            replaced = x.clone()
            replaced[:, list(positions)] = model.input_mean.to(x)[list(positions)]
            falls[:, place] = before - model.distance(replaced)
    array: FloatArray = falls.cpu().numpy()
    return array


def _values(prediction: Prediction, name: str) -> FloatArray:
    value: Tensor | None = getattr(prediction, name)
    if value is None:
        return np.full(prediction.outputs.shape[1], np.nan)
    array: FloatArray = value.expand(prediction.outputs.shape[1]).cpu().numpy() if value.ndim == 0 else value.cpu().numpy()
    return array
