"""Which examples an operating point is chosen on, and the choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ltnode.data import Dataset, Split
from ltnode.endtime import FixedTime
from ltnode.errors import InputError, unknown_name
from ltnode.evaluation.protocols.held_out import calibration_halves
from ltnode.evaluation.subject import Subject
from ltnode.metrics import UncertaintySplit
from ltnode.models import LatentTimeODE
from ltnode.trained.inputs import find_files, read_input
from ltnode.trained.model import BATCH, TrainedModel
from ltnode.trained.operating_point import DEFAULT_SCORE, OperatingPoint, operating_point
from ltnode.trained.rows import class_uncertainty


def choose_operating_point(
    trained: TrainedModel,
    split: Split,
    coverage: float = 0.95,
    *,
    ood_score: str = DEFAULT_SCORE,
    ood_keeps: float = 0.95,
    samples: int = 10,
    data: str | None = None,
    on_predicted: Callable[[int], None] = lambda examples: None,
) -> OperatingPoint:
    """Thresholds at which a classifier answers ``coverage`` of some examples, and accepts ``ood_keeps`` of them as its own.

    Args:
        trained: The classifier.
        split: Raw examples of the training distribution that the training did not see, with labels.
        coverage: Share to be answered, in (0, 1].
        ood_score: "max_probability", "entropy" or "mutual_information".
        ood_keeps: Share to be accepted, in (0, 1].
        samples: End-times per prediction.
        data: What the examples are, in words.
        on_predicted: Called with the number of examples of every predicted batch.

    Raises:
        InputError: A regression model, no examples, labels out of range, an unknown score, an impossible share.
    """
    if trained.task != "classification":
        raise InputError(f"{trained.name} is a regression model: its predictions carry an interval and have no operating point")
    fixed = isinstance(trained.model, LatentTimeODE) and isinstance(trained.model.end_time, FixedTime)
    if fixed and ood_score == "mutual_information":
        raise InputError(f"{trained.name} has a fixed end-time, so its mutual information is always 0: choose another score")
    if not len(split):
        raise InputError("an operating point needs examples to be chosen on: the split is empty")
    probs, totals, aleatoric, epistemic = [], [], [], []
    for raw in torch.split(split.x, BATCH):
        mean, uncertainty = class_uncertainty(trained.predict(raw, samples))
        probs.append(mean)
        totals.append(uncertainty.total)
        aleatoric.append(uncertainty.aleatoric)
        epistemic.append(uncertainty.epistemic)
        on_predicted(len(raw))
    return operating_point(
        torch.cat(probs),
        UncertaintySplit(torch.cat(totals), torch.cat(aleatoric), torch.cat(epistemic)),
        split.y.cpu(),
        data=data or f"{len(split)} examples",
        coverage=coverage,
        ood_score=ood_score,
        ood_keeps=ood_keeps,
        samples=samples,
        weights=trained.weights_digest(),
    )


def calibration_examples(
    trained: TrainedModel, data: Dataset | Path | str | None = None, limit: int | None = None
) -> tuple[Split, str]:
    """The examples on which a model's operating point is to be chosen, raw, and what they are, in words.

    They are those that training held out for validation; without them a half of the test set, the same one that the
    evaluation calibrates on, so that nothing is ever measured where a threshold was chosen.

    Args:
        trained: A model from a folder.
        data: The data set or its name; a folder that holds a folder of images per class, all of which are used; None takes
            the data set that the run records.
        limit: Use only so many examples, drawn at random (seed 0).

    Raises:
        InputError: The data are not told, do not fit the model, or their classes are not the model's.
    """
    if isinstance(data, Path) or (isinstance(data, str) and Path(data).is_dir()):
        split = labelled_images(Path(data), trained)
        words = f"{{n}} labelled images of the folder {Path(data).resolve().name}"
    else:
        split, words = _recorded_examples(trained, data)
    if limit is not None and limit < len(split):
        chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:limit]
        split = split.select(chosen.sort().values)
    return split, words.format(n=len(split))


def _recorded_examples(trained: TrainedModel, data: Dataset | str | None) -> tuple[Split, str]:
    if trained.path is None:
        raise InputError("a model from memory has no record of its training: pass the examples to choose_operating_point")
    subject = Subject.of(trained.path, data, "cpu")
    validation = subject.validation_split()
    if validation is not None:
        assert subject.config is not None
        fraction, seed = subject.config.validation_fraction, subject.config.seed
        words = f"{{n}} validation examples of {subject.data.name} that training held out (share {fraction:g}, seed {seed})"
        return validation, words
    if len(subject.data.test) < 2:
        raise InputError(
            "an operating point needs held-out examples: train with validation_fraction > 0, or use 2 test examples or more"
        )
    first, second = calibration_halves(len(subject.data.test))
    return subject.data.test.select(first), (
        f"{{n}} test examples of {subject.data.name} out of the fixed random half of {len(first)} that the evaluation "
        f"calibrates on, as training held nothing out: report no results on that half, only on the other {len(second)}"
    )


def labelled_images(folder: Path, trained: TrainedModel) -> Split:
    """All images of ``folder/CLASS``, converted to the model's shape; every CLASS must be one of the model's.

    Raises:
        InputError: There are none, a class is unknown, or a file is no image.
    """
    classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise InputError(f"{folder} holds no folders; put the images of each class into a folder named after the class")
    pixels, labels = [], []
    for entry in classes:
        if entry.name not in trained.class_names:
            raise InputError(f"{entry}: {unknown_name('class', entry.name, trained.class_names)}")
        for file in find_files(entry):
            pixels.append(read_input(file, trained.shape).raw)
            labels.append(trained.class_names.index(entry.name))
    return Split(torch.cat(pixels), torch.tensor(labels))
