"""The prediction of one input in plain numbers: a row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ltnode.errors import InputError
from ltnode.models import Prediction
from ltnode.trained.operating_point import OperatingPoint
from ltnode.typing import Float, Tensor

END_TIME_LEVELS = (0.05, 0.5, 0.95)
INTERVAL = 0.9
"""Coverage of a regression interval."""

_COMMON = ("task", "end_time", "distance", "familiarity", "unfamiliar")
_REGRESSION = ("mean", "std", "noise_std", "interval")


@dataclass(frozen=True)
class PredictionRow:
    """The prediction of one input; the values of the other task are None. See `Prediction` for their meaning.

    Attributes:
        task: "classification" or "regression".
        label: Most probable class.
        name: Name of this class.
        probability: Averaged probability of this class.
        probs: Averaged probabilities of all classes.
        entropy: Entropy of ``probs`` in nats.
        aleatoric: Expected entropy of the members in nats.
        epistemic: Mutual information between label and end-time in nats.
        abstain: Whether the entropy is above the threshold of the operating point; None without an operating point.
        mean: Predictive mean.
        std: Standard deviation over the members.
        noise_std: Standard deviation of the observation noise.
        interval: Ends of the central 90 % interval of the Gaussian with variance ``std^2 + noise_std^2``.
        end_time: 5, 50 and 95 % quantiles of the end-time of this input; None for a model without a distribution of end-times.
        distance: Distance of the input's path from those of training inputs, larger = less familiar; None if not fitted.
        familiarity: Rank of this distance among calibration examples, a p-value in (0, 1]; None without such examples.
        unfamiliar: Whether the familiarity is at most the false-alarm rate; None without calibration examples.
    """

    task: str
    label: int | None = None
    name: str | None = None
    probability: float | None = None
    probs: tuple[float, ...] | None = None
    entropy: float | None = None
    aleatoric: float | None = None
    epistemic: float | None = None
    abstain: bool | None = None
    mean: float | None = None
    std: float | None = None
    noise_std: float | None = None
    interval: tuple[float, float] | None = None
    end_time: tuple[float, float, float] | None = None
    distance: float | None = None
    familiarity: float | None = None
    unfamiliar: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """The values of the row's task as JSON types; tuples become lists."""
        regression = self.task == "regression"
        names = (name for name in self.__dataclass_fields__ if name in _COMMON or (name in _REGRESSION) == regression)
        values = {name: getattr(self, name) for name in names}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def classification_rows(
    prediction: Prediction,
    names: Sequence[str],
    end_times: Float[Tensor, "3 B"] | None,
    point: OperatingPoint | None,
    false_alarm_rate: float,
) -> list[PredictionRow]:
    """One row per input; ``end_times`` are the quantiles of its end-time at `END_TIME_LEVELS`."""
    p = exact(prediction)
    columns = (p.probs.tolist(), p.entropy.tolist(), p.aleatoric.tolist(), p.epistemic.tolist())
    rows = []
    for position, (probs, entropy, aleatoric, epistemic) in enumerate(zip(*columns, strict=True)):
        label = probs.index(max(probs))
        rows.append(
            PredictionRow(
                task="classification",
                label=label,
                name=names[label],
                probability=probs[label],
                probs=tuple(probs),
                entropy=entropy,
                aleatoric=aleatoric,
                epistemic=epistemic,
                abstain=None if point is None else point.abstains(entropy),
                **_shared(p, end_times, position, false_alarm_rate),
            )
        )
    return rows


def regression_rows(
    prediction: Prediction, end_times: Float[Tensor, "3 B"] | None, false_alarm_rate: float
) -> list[PredictionRow]:
    """One row per input; ``end_times`` are the quantiles of its end-time at `END_TIME_LEVELS`.

    Raises:
        InputError: The model predicts several targets, or an output is not finite.
    """
    p = exact(prediction)
    if p.outputs.shape[-1] > 1:
        raise InputError(
            f"a row holds one target, but the model predicts {p.outputs.shape[-1]}; use Prediction.mean, (B, targets)"
        )
    low, high = p.interval(INTERVAL)
    noise = p.noise_std.expand_as(p.mean)
    columns = zip(p.mean.tolist(), p.std.tolist(), noise.tolist(), low.tolist(), high.tolist(), strict=True)
    return [
        PredictionRow(
            task="regression",
            mean=mean,
            std=std,
            noise_std=noise_std,
            interval=(left, right),
            **_shared(p, end_times, position, false_alarm_rate),
        )
        for position, (mean, std, noise_std, left, right) in enumerate(columns)
    ]


def _shared(p: Prediction, end_times: Tensor | None, position: int, false_alarm_rate: float) -> dict[str, Any]:
    """The values that the rows of both tasks have."""
    familiarity = None if p.familiarity is None else float(p.familiarity[position])
    return {
        "end_time": _quantiles(end_times, position),
        "distance": None if p.distance is None else float(p.distance[position]),
        "familiarity": familiarity,
        "unfamiliar": None if familiarity is None else familiarity <= false_alarm_rate,
    }


def exact(prediction: Prediction) -> Prediction:
    """The prediction in float64 on the CPU.

    Raises:
        InputError: An output is NaN or infinite.
    """
    finite = prediction.outputs.isfinite().all(dim=2).all(dim=0)
    if not bool(finite.all()):
        raise InputError(
            f"the model predicts NaN or infinity for {int((~finite).sum())} of {len(finite)} inputs: its weights are damaged, or "
            "the inputs are far outside the range of its training data"
        )
    return prediction.to(torch.float64, "cpu")


def _quantiles(end_times: Tensor | None, position: int) -> tuple[float, float, float] | None:
    if end_times is None:
        return None
    low, middle, high = end_times[:, position].tolist()
    return low, middle, high
