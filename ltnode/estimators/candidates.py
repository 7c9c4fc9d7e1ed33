"""Trainings on the same rows, of which held-out rows choose one, and the training on more rows that repeats it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ltnode.data import Split
from ltnode.estimators.epochs import Choice, Course, Patience, TableTraining
from ltnode.estimators.held_out import clearly_better, log_likelihoods, mean_difference
from ltnode.estimators.networks import TableModel, balanced_samples, copy_to_varying_
from ltnode.estimators.uncertainty import FloatArray
from ltnode.training import TrainConfig
from ltnode.training.status import TrainingError
from ltnode.typing import Tensor

_CONTINUED = 0.5
"""Share of epochs and learning rate with which a trained model goes on with another kind of noise."""


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
class Recipe:
    """How the models of a fit are made and trained.

    Attributes:
        new_model: Makes a model with new weights for a table and a kind of noise.
        config: The configuration of a training on so many rows.
        patience: When to stop.
        samples: Number of end-times per prediction.
        report: Called after every epoch.
    """

    new_model: Callable[[Split, str], TableModel]
    config: Callable[[int], TrainConfig]
    patience: Patience
    samples: int
    report: Callable[[Course], None] | None = None

    def training(self, model: TableModel, part: WeightedPart, share: float = 1.0) -> TableTraining:
        """A training for a share of the epochs, and at this share of the learning rate."""
        config = self.config(len(part.split))
        config = config.replace(epochs=math.ceil(share * config.epochs), lr=share * config.lr)
        return TableTraining(model, part.split, config, weights=part.weights)


@dataclass(frozen=True, eq=False)
class Stage:
    """One training of those that made a model.

    Attributes:
        noise: Kind of the noise of the model.
        share: The share of epochs and learning rate.
        progress: The best epoch, as a share of the epochs of a whole training.
        level: Log-likelihood, per row, of the rows that were trained on and those that were held out together.
        softening: The softening that held-out rows have chosen; None without them.
    """

    noise: str
    share: float
    progress: float = 1.0
    level: float = math.inf
    softening: Tensor | None = None

    @classmethod
    def of(cls, noise: str, share: float, training: TableTraining, choice: Choice | None, held_out: int) -> Stage:
        """Describe a training that has ended, with the number of held-out rows."""
        if choice is None:
            return cls(noise, share)
        trained = len(training.data.train)
        level = (trained * choice.trained + held_out * choice.log_likelihood) / (trained + held_out)
        return cls(noise, share, choice.epochs / training.config.epochs, level, choice.softening)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A trained model, the course of its trainings, and the last of them.

    Attributes:
        training: The last training, with the model.
        course: The course of all of them.
        stages: All of them in turn.
    """

    training: TableTraining
    course: Course
    stages: tuple[Stage, ...]


def trained_candidate(
    recipe: Recipe, model: TableModel, noise: str, trained: WeightedPart, held_out: WeightedPart | None, share: float = 1.0
) -> Candidate:
    """Train a model; held-out rows choose the epoch and the softening."""
    training = recipe.training(model, trained, share)
    selecting = (None, None) if held_out is None else (held_out.split, held_out.weights)
    course = training.run(recipe.patience, selecting[0], recipe.samples, selecting[1], recipe.report)
    training.finish()
    stage = Stage.of(noise, share, training, course.choice, 0 if held_out is None else len(held_out.split))
    return Candidate(training, course, (stage,))


def chosen_candidate(recipe: Recipe, noises: Sequence[str], trained: WeightedPart, held_out: WeightedPart | None) -> Candidate:
    """Train a new model with the first kind of noise, and go on with the others; held-out rows choose between them."""
    first, *others = noises
    candidate = trained_candidate(recipe, recipe.new_model(trained.split, first), first, trained, held_out)
    for noise in others:
        model = recipe.new_model(trained.split, noise)
        copy_to_varying_(model, candidate.training.model)
        later = trained_candidate(recipe, model, noise, trained, held_out, _CONTINUED)
        losses, scores = (getattr(candidate.course, name) + getattr(later.course, name) for name in ("losses", "scores"))
        later = Candidate(later.training, Course(losses, scores, later.course.choice), candidate.stages + later.stages)
        if held_out is None or best_candidate((candidate, later), held_out, recipe.samples) is later:
            candidate = later
    return candidate


def repeated(recipe: Recipe, chosen: Candidate, part: WeightedPart, held_out: WeightedPart) -> TableTraining | None:
    """Repeat the trainings of a candidate on more rows, as far as held-out rows have chosen.

    Args:
        recipe: The recipe of the candidate.
        chosen: The candidate.
        part: The rows to train on, those that were held out among them.
        held_out: The rows that were held out.

    Returns:
        The last training; None if it failed: there is no finite choice to repeat, a step was not finite, or its model answers the
        rows that were held out worse than that of the candidate, which has not seen them.
    """
    training: TableTraining | None = None
    for stage in chosen.stages:
        if stage.softening is None:
            return None
        model = recipe.new_model(part.split, stage.noise)
        if training is not None:
            copy_to_varying_(model, training.model)
        training = recipe.training(model, part, stage.share)
        epochs = max(1, round(stage.progress * training.config.epochs))
        try:
            training.repeat(epochs, stage.level, stage.softening, recipe.samples)
        except TrainingError:
            return None
        training.finish()
    assert training is not None
    values, reference = (log_likelihoods_of(model, held_out, recipe.samples) for model in (training.model, chosen.training.model))
    return training if mean_difference(values, reference, held_out.weights) >= 0 else None


def best_candidate(candidates: Sequence[Candidate], held_out: WeightedPart, samples: int) -> Candidate:
    """The first candidate, or a later one that is clearly better on held-out rows.

    Clearly: its mean log-likelihood is higher by more than the standard error of the difference, so that chance alone seldom
    decides for the less simple model.
    """
    best = candidates[0]
    for candidate in candidates[1:]:
        values, reference = (log_likelihoods_of(one.training.model, held_out, samples) for one in (candidate, best))
        if clearly_better(values, reference, held_out.weights):
            best = candidate
    return best


def log_likelihoods_of(model: TableModel, part: WeightedPart, samples: int) -> Tensor:
    """Log-likelihood of every row of a part, and of each of several targets."""
    rows = part.split.to(next(model.parameters()).device)
    return log_likelihoods(model.predict(rows.x, balanced_samples(model, samples)), rows.y).cpu()


def knowing_model(
    chosen: TableTraining,
    again: TableTraining | None,
    held_out: WeightedPart | None,
    calibration: WeightedPart | None,
    samples: int,
) -> TableModel:
    """Fit what the model of a training needs to know unfamiliar rows.

    How predictions widen is chosen on rows that the model has not seen, and a repeated training takes it over.

    Args:
        chosen: The training on whose held-out rows everything is chosen.
        again: The training on more rows, whose model is returned if there is one.
        held_out: Rows that choose; without them, only a regression widens, as far as its process asks.
        calibration: Rows that have chosen nothing, among which distances are ranked.
        samples: Number of end-times per prediction.
    """
    model = chosen.model
    chosen.fit_familiarity()
    if held_out is not None:
        rows = held_out.split.to(chosen.device)
        # The confidence on these rows is that of the softening already.
        model.fit_widening(rows.x, rows.y, balanced_samples(model, samples), temperature=False)
    if again is not None:
        again.fit_familiarity()
        again.model.widening, model = model.widening, again.model
    if calibration is not None:
        model.calibrate_familiarity(calibration.split.to(chosen.device).x)
    return model
