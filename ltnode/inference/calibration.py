"""Which examples an operating point is chosen on, and the choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from ltnode.data import Dataset, Split
from ltnode.errors import InputError
from ltnode.evaluation.protocols.held_out import calibration_halves
from ltnode.evaluation.subject import Subject
from ltnode.inference.operating_point import DEFAULT_SCORE, OperatingPoint, operating_point
from ltnode.inference.rows import class_uncertainty
from ltnode.inference.trained import BATCH, TrainedModel
from ltnode.metrics import UncertaintySplit


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
        raise InputError(f"{trained.name} is a regression model: it has no classes between which to be undecided, "
                         "and its rows carry an interval instead")  # fmt: skip
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
    run: Path | str, data: Dataset | str | None = None, limit: int | None = None, device: str = "cpu"
) -> tuple[Split, str]:
    """The examples on which a run's operating point is to be chosen, raw, and what they are, in words.

    They are those that training held out for validation; without them a half of the test set, the same one that the
    evaluation calibrates on, so that nothing is ever measured where a threshold was chosen.

    Args:
        run: The run folder.
        data: The data set or its name; None takes the one that the run records.
        limit: Use only so many of them, drawn at random.
        device: For the model; the examples stay on the CPU.
    """
    subject = Subject.of(run, data, device)
    validation = subject.validation_split()
    if validation is not None:
        assert subject.config is not None
        fraction, seed = subject.config.validation_fraction, subject.config.seed
        split = validation
        words = f"{{n}} validation examples of {subject.data.name} that training held out (share {fraction:g}, seed {seed})"
    else:
        first, second = calibration_halves(len(subject.data.test))
        split = subject.data.test.select(first)
        words = (
            f"{{n}} test examples of {subject.data.name}, out of the fixed random half of {len(first)} that the evaluation "
            f"calibrates on, as training held nothing out: report no results on that half, only on the other {len(second)}"
        )
    if limit is not None and limit < len(split):
        chosen = torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:limit]
        split = split.select(chosen.sort().values)
    return split, words.format(n=len(split))
