"""Models with one path per input: the density of the path, and the distance over time."""

from __future__ import annotations

from abc import abstractmethod

import torch

from ltnode.models.contract import Inputs, Task, evaluating
from ltnode.models.familiar_model import FamiliarModel, frequencies, moments
from ltnode.models.familiarity import Familiarity, Ranks
from ltnode.models.path import PathFeatures
from ltnode.models.path_process import Fallback
from ltnode.models.widening import Widening, mean_noise
from ltnode.typing import Float, Tensor

_DENSITY_SAMPLES = 10_000
"""Largest number of training inputs on which the density of the path is fitted."""


class PathModel(FamiliarModel):
    """A model that solves one ODE per input.

    Attributes:
        familiarity: The density of the path on training inputs, from which predictions get their distance.
    """

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.familiarity = Familiarity()

    @abstractmethod
    def path(self, x: Tensor) -> PathFeatures:
        """Compute the features of the path of network inputs, in the current mode of the model."""

    @abstractmethod
    def fixed_times(self, device: torch.device) -> Float[Tensor, " K"]:
        """Return the fixed times of the path."""

    @property
    def has_familiarity(self) -> bool:
        """Whether predictions have a distance."""
        return self.familiarity.fitted

    @property
    def input_mean(self) -> Tensor:
        """Mean of the inputs on which the familiarity was fitted."""
        return self.familiarity.input_mean

    def forget_familiarity(self) -> None:
        """Discard density, ranks and widening, for example because the weights are trained further."""
        like = next(self.parameters(), torch.zeros(()))
        self.familiarity, self.ranks, self.widening = Familiarity().to(like), Ranks().to(like), Widening().to(like)

    @torch.no_grad()
    def fit_familiarity(self, x: Inputs, y: Tensor | None = None) -> None:
        """Fit the density of the path on training inputs; see `FamiliarModel.fit_familiarity`."""
        x = self.as_inputs(x)
        if y is not None:
            self.check_targets(x, y)
        if len(x) > _DENSITY_SAMPLES:
            chosen = torch.linspace(0, len(x) - 1, _DENSITY_SAMPLES, device=x.device).long()
            x, y = x[chosen], None if y is None else y[chosen]
        with evaluating(self):
            features = PathFeatures.cat([self.path(part) for part in self.chunks(x)])
            n_outputs = self.members(x[:2], 1).outputs.shape[-1]  # GroupNorm refuses one input of one position
        self.forget_familiarity()
        labels = y if self.task == "classification" else None
        self.familiarity.fit(features, labels, x.mean(dim=0), None if y is None else self.base_rates(y, n_outputs))
        if self.task == "regression" and y is not None and len(y) > 1:
            self.familiarity.fit_processes(features.states[0], y)

    def fallback(self, features: PathFeatures, noise: Tensor | None) -> Fallback | None:
        """Return what a regression answers where the members know nothing; None for models that have no such answer."""
        if not self.familiarity.process.fitted or noise is None:
            return None
        return self.familiarity.fallback(features.states[0], mean_noise(noise))

    def base_rates(self, y: Tensor, n_outputs: int) -> Float[Tensor, "n *targets"]:
        """Return class frequencies, or moments of the targets, of the training; see `FamiliarModel.base_rates`."""
        if self.familiarity.base_rates.numel():
            return self.familiarity.base_rates
        return frequencies(y, n_outputs) if self.task == "classification" else moments(y)

    def path_profile(self, x: Inputs) -> tuple[Float[Tensor, " K"], Float[Tensor, "K B"]]:
        """Return the fixed times of the path, and the distance of the state at each of them from those of training inputs.

        Deviations are those from the nearest class mean, in units of that of a typical training input.
        """
        self._require_familiarity()
        x = self.as_inputs(x)
        with torch.no_grad(), evaluating(self):
            profile = torch.cat([self.familiarity.profile(self.path(part).states) for part in self.chunks(x)], dim=1)
        return self.fixed_times(x.device).clone(), profile
