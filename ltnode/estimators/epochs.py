"""Training on one table, epoch by epoch, with early stopping by held-out rows or by the training loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ltnode.data import Dataset, Split
from ltnode.device import choose_device
from ltnode.estimators.held_out import Judgement, judge, soften_
from ltnode.estimators.networks import TableModel, balanced_samples
from ltnode.estimators.steps import table_steps
from ltnode.training.batches import TrainingData
from ltnode.training.config import TrainConfig
from ltnode.typing import Tensor

_FINISHING = 2048
_JUDGEMENTS = 50
"""Most epochs of a training that are judged; a judgement costs as much as several steps on a small table."""


@dataclass(frozen=True, eq=False)
class Choice:
    """What held-out rows have chosen.

    Attributes:
        epochs: Number of epochs after which the training was at its best.
        softening: The softening with which they are judged there; see `ltnode.estimators.held_out`.
        log_likelihood: Their log-likelihood there.
        trained: That of the rows that were trained on, with the softening that is best for them.
    """

    epochs: int
    softening: Tensor
    log_likelihood: float
    trained: float = -math.inf


@dataclass
class Course:
    """The course of a training.

    Attributes:
        losses: Mean training loss of every epoch.
        scores: Held-out log-likelihood of every judged epoch; empty if no rows are held out.
        choice: What the held-out rows have chosen; None if no rows are held out.
    """

    losses: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    choice: Choice | None = None


@dataclass(frozen=True)
class Patience:
    """When to stop: after ``epochs`` consecutive judged epochs that do not improve on the best one by more than ``tol``."""

    epochs: int
    tol: float


class TableTraining:
    """Runs data order, steps and optimisers of the training engine, one epoch at a time.

    Args:
        model: Trained in place, on the device of the configuration.
        table: Network inputs (N, D) and labels or targets (N,), or (N, K) for K targets.
        config: Epochs, batch size, learning rate, weight decay, seed, device.
        first_epoch: Number of epochs before this training, which determines the order of the data.
        weights: How many rows each row counts for, with a mean of 1; None counts each once.
    """

    def __init__(
        self, model: TableModel, table: Split, config: TrainConfig, first_epoch: int = 0, weights: Tensor | None = None
    ) -> None:
        assert model.spec is not None
        device = choose_device(config.device)
        dataset = Dataset("table", model.task, table, table, model.spec["input"]["n_classes"])
        self.model, self.config, self.epoch, self.device = model.to(device), config, first_epoch, device
        model.forget_familiarity()  # that of an earlier training belongs to other weights
        self.data = TrainingData.of(dataset, model, config, device)
        self.weights = None if weights is None else weights.to(device)
        self._steps = table_steps(model, self.data, self.weights)

    def run_epoch(self) -> float:
        """Train one pass over the table, and return the mean loss."""
        order = self.data.epoch_order(self.epoch).to(self.device)
        loss = self._steps.epoch(order, self.epoch * self.data.steps_per_epoch)
        self.epoch += 1
        return loss

    def run(
        self,
        patience: Patience,
        held_out: Split | None = None,
        samples: int = 10,
        held_out_weights: Tensor | None = None,
        on_epoch: Callable[[Course], None] | None = None,
    ) -> Course:
        """Train until the patience or the epochs of the configuration are exhausted.

        Of 100 epochs or more, every second is judged, of 150 or more every third, and so on. With held-out rows, the model gets
        the averaged weights of the best epoch. Without them, the training loss determines when to stop, and the last average
        is kept. Finally the model is softened, so that it is not more confident than the held-out and the training rows justify.

        Args:
            patience: When to stop early.
            held_out: Rows that are not trained on.
            samples: Number of end-times per prediction.
            held_out_weights: How many rows each held-out row counts for; None counts each once.
            on_epoch: Called after every epoch.
        """
        course, samples = Course(), balanced_samples(self.model, samples)
        held_out = None if held_out is None else held_out.to(self.device)
        held_out_weights = None if held_out_weights is None else held_out_weights.to(self.device)
        best, waited = -math.inf, 0
        kept: dict[str, Tensor] | None = None
        apart = max(1, self.config.epochs // _JUDGEMENTS)
        for epoch in range(self.config.epochs):
            self._steps.set_rate(self.config.lr_factor(epoch))
            course.losses.append(self.run_epoch())
            judged = (self.config.epochs - 1 - epoch) % apart == 0
            value = -course.losses[-1]
            if judged and held_out is not None:
                with self._steps.averaged():
                    judgement = judge(self.model.predict(held_out.x, samples), held_out.y, held_out_weights)
                    value = judgement.log_likelihood
                    course.scores.append(value)
                    if value > best:
                        kept = self._state()
                        course.choice = Choice(epoch + 1, judgement.softening, value)
            if on_epoch is not None:
                on_epoch(course)
            if not judged:
                continue
            waited = 0 if value > best + patience.tol else waited + 1
            best = max(best, value)
            if waited >= patience.epochs:
                break
        if kept is None:
            self._keep_average()
        else:
            self.model.load_state_dict(kept)
        trained = self._soften(None if course.choice is None else course.choice.softening, samples)
        if course.choice is not None:
            course.choice = replace(course.choice, trained=trained)
        return course

    def repeat(self, epochs: int, level: float, softening: Tensor, samples: int = 10) -> None:
        """Train as far as another training, which held-out rows have judged, and soften as they have chosen.

        An epoch at which that training was at its best was so partly by luck. This one therefore goes on until the rows that it
        is trained on have the log-likelihood that the other model gives them, at most for all epochs of the configuration.

        Args:
            epochs: Number of epochs after which the other training was at its best.
            level: The log-likelihood of the rows, per row and with the best softening.
            softening: The softening.
            samples: Number of end-times per prediction.
        """
        samples = balanced_samples(self.model, samples)
        apart = max(1, self.config.epochs // _JUDGEMENTS)
        for epoch in range(self.config.epochs):
            self._steps.set_rate(self.config.lr_factor(epoch))
            self.run_epoch()
            past = epoch + 1 - epochs
            if past >= 0 and past % apart == 0:
                with self._steps.averaged():
                    reached = self._judgement(samples).log_likelihood >= level
                if reached:
                    break
        self._keep_average()
        self._soften(softening, samples)

    def _keep_average(self) -> None:
        with self._steps.averaged():
            state = self._state()
        self.model.load_state_dict(state)

    def _state(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def _soften(self, softening: Tensor | None, samples: int) -> float:
        """Soften by this much, or by as much as the training rows demand; return their log-likelihood with the latter."""
        trained = self._judgement(samples)
        soften_(self.model, trained.softening if softening is None else torch.maximum(softening, trained.softening))
        return trained.log_likelihood

    def _judgement(self, samples: int) -> Judgement:
        """The judgement of the training rows."""
        x, y = self.data.evaluation_inputs(self.data.train, _FINISHING)
        return judge(self.model.predict(x, samples), y, None if self.weights is None else self.weights[: len(y)])

    def finish(self) -> None:
        """Fit the prediction grid, and delete the gradients."""
        x, y = self.data.evaluation_inputs(self.data.train, _FINISHING)
        self.model.eval()
        self.model.finish_training(x, y)
        self.model.zero_grad(set_to_none=True)

    def fit_familiarity(self) -> None:
        """Fit what predictions need to know unfamiliar rows; call it after `finish`."""
        self.model.fit_familiarity(self.data.train.x, self.data.train.y)

    def optimizer_state(self) -> dict[str, Any]:
        """State of the optimiser, to continue in a later call."""
        return self._steps.state()

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Continue with a state that `optimizer_state` returned."""
        self._steps.load_state(state)
