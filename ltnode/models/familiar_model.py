"""Models that know how familiar an input is, and whose answers widen where it is not.

After training, three calls on three disjoint sets of examples make predictions carry a distance and a familiarity:
`fit_familiarity` (the examples of the training), `fit_widening` (held-out examples on which anything may be chosen) and
`calibrate_familiarity` (held-out examples that choose nothing). `ltnode.fit` makes them; own loops call them.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ltnode.data.streaming import in_parts
from ltnode.errors import InputError
from ltnode.models import execution
from ltnode.models.contract import Draw, Inputs, Model, Steps, Task, evaluating
from ltnode.models.familiarity import Ranks
from ltnode.models.path_process import Fallback
from ltnode.models.prediction import Prediction
from ltnode.models.widening import Widening, mean_noise
from ltnode.ode import Stats
from ltnode.typing import Float, Tensor

_CHUNKS = {"cpu": 256, "cuda": 2048}
_CELLS = 8
"""Number of parts per side into which `attribute_distance` divides an image."""


@dataclass(frozen=True, eq=False)
class Members:
    """Outputs of the members of a prediction before temperature and widening; see `Prediction` for the attributes.

    ``noise`` that varies with the input is that of every member, (S, B, K). ``fallback`` is what a regression answers where the
    members know nothing.
    """

    outputs: Float[Tensor, "S B C"]
    times: Float[Tensor, "S *batch"]
    stats: Stats | None
    noise: Tensor | None
    distance: Float[Tensor, " B"] | None
    fallback: Fallback | None = None


class FamiliarModel(Model):
    """A model whose solve has a path; its predictions have a distance once `fit_familiarity` was called.

    Attributes:
        ranks: Distances of the calibration examples.
        widening: Temperature and widening of the answers.
    """

    has_path = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.ranks, self.widening = Ranks(), Widening()

    @abstractmethod
    def members(self, x: Tensor, samples: int, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored") -> Members:
        """Compute the members of a prediction in the current mode of the model."""

    @abstractmethod
    def fit_familiarity(self, x: Inputs, y: Tensor | None = None) -> None:
        """Fit the density of the path on training inputs, in eval mode; earlier ranks and widening are discarded.

        Args:
            x: Network inputs (N, ...), as in `predict`; of many, 10,000 are used.
            y: Their targets; without labels, the density has no class means.
        """

    @property
    @abstractmethod
    def has_familiarity(self) -> bool:
        """Whether predictions have a distance."""

    @property
    @abstractmethod
    def input_mean(self) -> Tensor:
        """Mean of the inputs on which the familiarity was fitted."""

    @abstractmethod
    def base_rates(self, y: Tensor, n_outputs: int) -> Float[Tensor, "n *targets"]:
        """Return class frequencies (C,), or mean and standard deviation of the targets, (2,) or for several targets (2, K).

        They are those of the training, or of ``y`` if these are unknown.
        """

    @property
    def n_calibration(self) -> int:
        """Number of calibration examples among which distances are ranked."""
        return self.ranks.n

    def predict(
        self, x: Inputs, samples: int = 10, draw: Draw = "quantile", seed: int = 0, steps: Steps = "stored"
    ) -> Prediction:
        """Compute the predictive distribution; see `LatentTimeODE.predict`."""
        x = self.as_inputs(x)
        with torch.no_grad(), evaluating(self):
            at_once = execution.current().predict(self, x, samples, draw, seed) if steps == "stored" else None
            return at_once or self.answer(self.members(x, samples, draw, seed, steps))

    def answer(self, members: Members) -> Prediction:
        """Apply temperature and widening, and rank the distances."""
        return answer(members, self.task, self.widening, self.ranks)

    def distance(self, x: Inputs) -> Float[Tensor, " B"]:
        """Return the distances of inputs, in chunks of bounded size.

        Raises:
            InputError: The familiarity was not fitted.
        """
        self._require_familiarity()
        x = self.as_inputs(x)
        with torch.no_grad(), evaluating(self):
            return torch.cat([_known(self.members(part, 1).distance) for part in self.chunks(x)])

    def fit_widening(self, x: Inputs, y: Tensor, samples: int = 10, temperature: bool = True) -> None:
        """Choose temperature and widening on held-out examples, which the density must not have seen.

        Args:
            x: Network inputs (N, ...).
            y: Their targets.
            samples: Number of members of the predictions.
            temperature: Choose a temperature; False keeps the logits of a classifier as they are.

        Raises:
            InputError: The familiarity was not fitted, or the targets do not fit the inputs.
        """
        self._require_familiarity()
        x = self.as_inputs(x)
        self.check_targets(x, y)
        self.widening = Widening().to(x)
        with torch.no_grad(), evaluating(self):
            parts = [self.members(part, samples) for part in self.chunks(x)]
            outputs = torch.cat([part.outputs for part in parts], dim=1)
            distance = torch.cat([_known(part.distance) for part in parts])
        base = self.base_rates(y, outputs.shape[-1])
        if self.task == "classification":
            self.widening.fit_classes(outputs, y, distance, base, temperature)
        else:
            noises = [part.noise for part in parts if part.noise is not None]
            noise = torch.cat(noises, dim=1) if noises[0].ndim == 3 else noises[0]
            fallbacks = [part.fallback for part in parts if part.fallback is not None]
            fallback = Fallback(*map(torch.cat, zip(*fallbacks, strict=True))) if fallbacks else None
            self.widening.fit_targets(outputs, noise, y, distance, base, fallback)

    def calibrate_familiarity(self, x: Inputs) -> None:
        """Keep the distances of calibration examples, which nothing was fitted to or chosen on, for the ranks of predictions.

        Raises:
            InputError: The familiarity was not fitted.
        """
        self.ranks.fit(self.distance(x))

    def attribute_distance(self, x: Inputs, groups: Sequence[int] | None = None) -> Float[Tensor, "B *parts"]:
        """Return by how much the distance falls if a part of the input is replaced by its mean over the training inputs.

        Args:
            x: Network inputs.
            groups: Number of the group of every feature of vectors, from 0 on; the features of a group, such as those of one
                column of a table, are replaced together. None makes every feature a group of its own.

        Returns:
            (B, groups) for vectors; (B, 8, 8) for the cells of images, which have fewer where images are smaller.
        """
        self._require_familiarity()
        x = self.as_inputs(x)
        before = self.distance(x)
        falls = [before - self.distance(torch.where(mask, self.input_mean.to(x), x)) for mask in _parts(x, groups)]
        stacked = torch.stack(falls, dim=1)
        return stacked if x.ndim == 2 else stacked.unflatten(1, (-1, len(_edges(x.shape[3])) - 1))

    def chunks(self, x: Tensor) -> Iterator[Tensor]:
        """Split inputs into batches whose predictions need little memory, and read those that are not in memory."""
        return in_parts(x, _CHUNKS.get(x.device.type, _CHUNKS["cpu"]))

    def _require_familiarity(self) -> None:
        if not self.has_familiarity:
            raise InputError("the familiarity is not fitted: call fit_familiarity(x, y) with training inputs first")


def answer(members: Members, task: Task, widening: Widening, ranks: Ranks) -> Prediction:
    """Make a prediction of its members: apply temperature and widening, and rank the distances."""
    outputs, widened_std = widening(members.outputs, members.distance, task, members.fallback)
    familiarity = ranks(members.distance) if members.distance is not None and ranks.n else None
    return Prediction(
        task,
        outputs,
        members.times,
        members.stats,
        None if members.noise is None else mean_noise(members.noise),
        distance=members.distance,
        familiarity=familiarity,
        widened_std=widened_std,
    )


def _known(distance: Tensor | None) -> Tensor:
    assert distance is not None
    return distance


def _parts(x: Tensor, groups: Sequence[int] | None) -> list[Tensor]:
    """Masks of the groups of features of vectors, or of the cells of images."""
    if x.ndim == 2 and groups is not None:
        of_feature = torch.tensor(groups, device=x.device)
        return [of_feature == group for group in range(max(groups) + 1)]
    if x.ndim == 2:
        return list(torch.eye(x.shape[1], dtype=torch.bool, device=x.device))
    masks = []
    rows, columns = _edges(x.shape[2]), _edges(x.shape[3])
    for top, bottom in itertools.pairwise(rows):
        for left, right in itertools.pairwise(columns):
            mask = torch.zeros(x.shape[2:], dtype=torch.bool, device=x.device)
            mask[top:bottom, left:right] = True
            masks.append(mask)
    return masks


def _edges(size: int) -> list[int]:
    cells = min(_CELLS, size)
    return [size * m // cells for m in range(cells + 1)]


def frequencies(y: Tensor, n_classes: int) -> Float[Tensor, " C"]:
    """Return the frequencies of classes, each counted once more, so that none is 0."""
    counts = torch.bincount(y, minlength=n_classes).double() + 1
    return counts / counts.sum()


def moments(y: Float[Tensor, "N *targets"]) -> Float[Tensor, "2 *several"]:
    """Return mean and standard deviation of one real target, (2,), or of each of several, (2, K)."""
    y = y.double()
    y = y if y.ndim == 2 and y.shape[1] > 1 else y.reshape(-1)
    return torch.stack([y.mean(dim=0), y.std(dim=0, correction=0)])
