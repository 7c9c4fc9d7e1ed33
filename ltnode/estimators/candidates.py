"""Models that are trained on the same rows, of which held-out rows choose one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data import Split
from ltnode.estimators.epochs import Course, TableTraining
from ltnode.estimators.held_out import clearly_better, log_likelihoods
from ltnode.estimators.networks import balanced_samples
from ltnode.estimators.uncertainty import FloatArray
from ltnode.typing import Tensor


@dataclass(frozen=True, eq=False)
class WeightedPart:
    """Network inputs and targets of some rows, and their weights with a mean of 1; None counts each row once."""

    split: Split
    weights: Tensor | None

    @classmethod
    def of(cls, table: Split, weights: FloatArray | None, rows: NDArray[np.int64]) -> WeightedPart:
        """The part of a table at some rows."""
        chosen = None if weights is None else torch.from_numpy(weights[rows] / weights[rows].mean())
        return cls(table.select(torch.from_numpy(rows)), chosen)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A trained model and the course of its training."""

    training: TableTraining
    course: Course

    def after(self, earlier: Candidate) -> Candidate:
        """This candidate with the course of an earlier training before its own."""
        losses, scores = earlier.course.losses + self.course.losses, earlier.course.scores + self.course.scores
        return Candidate(self.training, Course(losses, scores))


def best_candidate(candidates: Sequence[Candidate], held_out: WeightedPart, samples: int) -> Candidate:
    """The first candidate, or a later one that is clearly better on held-out rows.

    Clearly: its mean log-likelihood is higher by more than the standard error of the difference, so that chance alone seldom
    decides for the less simple model.
    """
    best = candidates[0]
    for candidate in candidates[1:]:
        part = held_out.split.to(candidate.training.device)
        weights = None if held_out.weights is None else held_out.weights.to(candidate.training.device)
        models = candidate.training.model, best.training.model
        values, reference = (log_likelihoods(model.predict(part.x, balanced_samples(model, samples)), part.y) for model in models)
        if clearly_better(values, reference, weights):
            best = candidate
    return best
