"""Predictions as columns of numbers, for many inputs: the values of `PredictionRow`, without an object per input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.models import Prediction
from ltnode.trained.rows import INTERVAL, exact
from ltnode.typing import Float, Tensor

if TYPE_CHECKING:
    from ltnode.trained.model import TrainedModel

Columns = dict[str, NDArray[Any]]
"""One array per column, all of one length."""


@torch.no_grad()
def prediction_columns(trained: TrainedModel, prediction: Prediction, x: Float[Tensor, "B *shape"]) -> Columns:
    """The columns of a prediction and of the network inputs that it was made for.

    Returns:
        Classification: ``label``, ``name``, ``probability``, ``entropy``, ``aleatoric``, ``epistemic``, ``abstain`` (with an
        operating point) and ``p(CLASS)``. Regression: ``mean``, ``std``, ``noise_std``, ``low90`` and ``high90``. Both, where the
        model has them: ``t05``, ``t50`` and ``t95`` of the end-time, ``distance``, ``familiarity`` and ``unfamiliar``.

    Raises:
        InputError: An output is NaN or infinite.
    """
    p = exact(prediction)
    columns = _classes(trained, p) if trained.task == "classification" else _reals(p)
    end_times = trained.end_time_quantiles(x)
    if end_times is not None:
        columns |= dict(zip(("t05", "t50", "t95"), end_times.numpy(), strict=True))
    if p.distance is not None:
        columns["distance"] = p.distance.numpy()
    if p.familiarity is not None:
        columns["familiarity"] = p.familiarity.numpy()
        columns["unfamiliar"] = columns["familiarity"] <= trained.false_alarm_rate
    return columns


def _classes(trained: TrainedModel, p: Prediction) -> Columns:
    probs = p.probs.numpy()
    label = probs.argmax(axis=1)
    columns: Columns = {
        "label": label,
        "name": np.array(trained.class_names, dtype=object)[label],
        "probability": probs.max(axis=1),
        "entropy": p.entropy.numpy(),
        "aleatoric": p.aleatoric.numpy(),
        "epistemic": p.epistemic.numpy(),
    }
    if trained.operating_point is not None:
        columns["abstain"] = np.array([trained.operating_point.abstains(value) for value in columns["entropy"].tolist()])
    return columns | {f"p({name})": probs[:, position] for position, name in enumerate(trained.class_names)}


def _reals(p: Prediction) -> Columns:
    low, high = p.interval(INTERVAL)
    noise = np.full(len(p.mean), float(p.noise_std))
    return {"mean": p.mean.numpy(), "std": p.std.numpy(), "noise_std": noise, "low90": low.numpy(), "high90": high.numpy()}
