"""The examples on which an operating point is chosen, and the choice itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ltnode.counter_rng import hash_counters
from ltnode.data import Dataset, Split
from ltnode.data.folder import labelled_images
from ltnode.data.streaming import in_parts
from ltnode.errors import InputError
from ltnode.models import Prediction
from ltnode.trained.model import BATCH, TrainedModel
from ltnode.trained.operating_point import FALSE_ALARM_RATE, OperatingPoint, operating_point
from ltnode.typing import Int, Tensor

_HALVES = 3
"""Keeps the split of the test set apart from other random numbers of the same seed."""


def choose_operating_point(
    trained: TrainedModel,
    split: Split,
    coverage: float = 0.95,
    *,
    false_alarm_rate: float = FALSE_ALARM_RATE,
    samples: int = 10,
    data: str | None = None,
    on_predicted: Callable[[int], None] = lambda examples: None,
) -> OperatingPoint:
    """Choose the entropy up to which a classifier answers, so that it answers ``coverage`` of some examples.

    Args:
        trained: The classifier.
        split: Raw labelled examples of the training distribution that training did not see.
        coverage: Share of the examples to answer, in (0, 1].
        false_alarm_rate: Familiarity at or below which inputs are called unfamiliar; see `OperatingPoint`.
        samples: Number of end-times per prediction.
        data: Description of the examples.
        on_predicted: Called after every batch with the number of its examples.

    Raises:
        InputError: The model is for regression, there are no examples, a label is out of range, the coverage is not in (0, 1], or
            the rate is not in (0, 1).
    """
    if trained.task != "classification":
        raise InputError(f"{trained.name} is a regression model: its predictions carry an interval and have no operating point")
    if not len(split):
        raise InputError("an operating point needs examples to be chosen on: the split is empty")
    parts = []
    for raw in in_parts(split.x, BATCH):
        parts.append(trained.predict(raw, samples))
        on_predicted(len(raw))
    return operating_point(
        Prediction.cat(parts).to(torch.float64, "cpu"),
        split.y.cpu(),
        data=data or f"{len(split)} examples",
        coverage=coverage,
        false_alarm_rate=false_alarm_rate,
        samples=samples,
        weights=trained.weights_digest(),
    )


def calibration_examples(
    trained: TrainedModel, data: Dataset | Path | str | None = None, limit: int | None = None
) -> tuple[Split, str]:
    """Find the raw examples on which a model's operating point is to be chosen, and describe them.

    They are the examples that training held out for validation. If it held out none, they are one half of the test set: the same
    half that the evaluation calibrates on, so that no result is measured on examples that a threshold was chosen on.

    Args:
        trained: The model.
        data: The data set or its name; or a folder that contains one folder of images per class; None loads the data set that the
            run records.
        limit: Use at most this many examples, drawn at random (seed 0).

    Raises:
        InputError: The data set is unknown or does not fit the model, or a class is not one of the model's.
    """
    if isinstance(data, Path) or (isinstance(data, str) and Path(data).is_dir()):
        if len(trained.shape) != 3:
            raise InputError(f"{data} is a folder of images, but {trained.name} takes inputs of shape {trained.shape}")
        split = labelled_images(data, trained.shape, trained.class_names)
        description = f"{{n}} labelled images of the folder {Path(data).resolve().name}"
    else:
        split, description = held_out_examples(trained, trained.dataset(data))
    split = drawn(split, limit)
    return split, description.format(n=len(split))


def drawn(split: Split, limit: int | None) -> Split:
    """At most ``limit`` examples, drawn at random (seed 0), in their order; None keeps all."""
    if limit is None or limit >= len(split):
        return split
    chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:limit]
    return split.select(chosen.sort().values)


def held_out_examples(trained: TrainedModel, dataset: Dataset) -> tuple[Split, str]:
    """Examples of a data set that training held out, or else half of its test examples, and a description with ``{n}``."""
    validation = trained.validation_split(dataset)
    if validation is not None:
        assert trained.config is not None
        fraction, seed = trained.config.validation_fraction, trained.config.parts_seed
        return validation, (
            f"{{n}} validation examples of {dataset.name} that training held out (share {fraction:g}, seed {seed})"
        )
    if len(dataset.test) < 2:
        raise InputError(
            "an operating point needs held-out examples: train with validation_fraction > 0, or use at least 2 test examples"
        )
    first, second = calibration_halves(len(dataset.test))
    return dataset.test.select(first), (
        f"{{n}} test examples of {dataset.name} out of the fixed random half of {len(first)} that the evaluation "
        f"calibrates on, as training held nothing out: report no results on that half, only on the other {len(second)}"
    )


def calibration_halves(n: int, draw_seed: int = 0) -> tuple[Int[Tensor, " a"], Int[Tensor, " b"]]:
    """Positions of a random half of n test examples to calibrate on, and of the others to measure on, each ascending."""
    order = torch.randperm(n, generator=torch.Generator().manual_seed(hash_counters(draw_seed, _HALVES) >> 1))
    first, second = (half.sort().values for half in order.tensor_split(2))
    return first, second
