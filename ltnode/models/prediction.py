"""A prediction: the members at the sampled end-times, their average, and the decomposition of its uncertainty."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ltnode.errors import InputError
from ltnode.ode import Stats
from ltnode.typing import Float, Tensor

_VARIANCE_FLOOR = 1e-12


@dataclass(frozen=True)
class Prediction:
    """Predictive distribution of a batch.

    Classification: ``probs = mean_s softmax(outputs_s)``; entropy in nats splits into the expected entropy of the members
    (aleatoric) and the mutual information between label and end-time (epistemic).
    Regression: ``mean`` and ``std`` over the members; the variance splits into ``noise_std^2`` (aleatoric) and ``std^2``
    (epistemic), and the entropy is that of the Gaussian with the total variance.

    Attributes:
        task: "classification" or "regression".
        outputs: (S, B, C) logits, or (S, B, 1) means, of every member.
        times: (S,), or (S, B) where each input has its own end-times.
        stats: Work of the solve, summed over all passes; None for models without a solve.
        noise: Standard deviation of the observation noise, 0-dim; None for classification.
    """

    task: str
    outputs: Float[Tensor, "S B C"]
    times: Float[Tensor, "S *batch"]
    stats: Stats | None = None
    noise: Tensor | None = None

    def _require(self, task: str, name: str) -> None:
        if self.task != task:
            other = "probs, member_probs" if self.task == "classification" else "mean, std, noise_std"
            raise InputError(f"a {self.task} prediction has no {name}; it has {other}, entropy, aleatoric and epistemic")

    @property
    def member_probs(self) -> Float[Tensor, "S B C"]:
        """Class probabilities of every member."""
        self._require("classification", "member_probs")
        return torch.softmax(self.outputs, dim=-1)

    @property
    def probs(self) -> Float[Tensor, "B C"]:
        """Averaged class probabilities."""
        self._require("classification", "probs")
        return self.member_probs.mean(dim=0)

    @property
    def log_probs(self) -> Float[Tensor, "B C"]:
        """Logarithm of the averaged probabilities, by log-mean-exp, so that saturated members keep their gradient."""
        self._require("classification", "log_probs")
        return torch.logsumexp(torch.log_softmax(self.outputs, dim=-1), dim=0) - math.log(self.outputs.shape[0])

    @property
    def labels(self) -> Tensor:
        """Most probable class (B,)."""
        return self.probs.argmax(dim=-1)

    @property
    def member_means(self) -> Float[Tensor, "S B"]:
        """Mean of every member."""
        self._require("regression", "member_means")
        return self.outputs.squeeze(-1)

    @property
    def mean(self) -> Float[Tensor, "B"]:
        """Predictive mean."""
        self._require("regression", "mean")
        return self.member_means.mean(dim=0)

    @property
    def std(self) -> Float[Tensor, "B"]:
        """Standard deviation of the members (population form), without observation noise."""
        self._require("regression", "std")
        return self.member_means.std(dim=0, correction=0)

    @property
    def noise_std(self) -> Tensor:
        """Standard deviation of the observation noise, 0-dim."""
        self._require("regression", "noise_std")
        assert self.noise is not None
        return self.noise

    @property
    def total_std(self) -> Float[Tensor, "B"]:
        """``sqrt(std^2 + noise_std^2)``."""
        return (self.std.square() + self.noise_std.square()).sqrt()

    @property
    def aleatoric(self) -> Float[Tensor, "B"]:
        """Expected entropy of the members in nats; the noise variance for regression."""
        if self.task == "regression":
            return self.noise_std.square().expand(self.outputs.shape[1])
        log_p = torch.log_softmax(self.outputs, dim=-1)
        return -(log_p.exp() * log_p).sum(dim=-1).mean(dim=0)

    @property
    def epistemic(self) -> Float[Tensor, "B"]:
        """Mutual information between label and end-time in nats; the variance of the members for regression."""
        if self.task == "regression":
            return self.std.square()
        return (self.entropy - self.aleatoric).clamp_min(0.0)

    @property
    def entropy(self) -> Float[Tensor, "B"]:
        """Entropy of the averaged prediction in nats; that of the moment-matched Gaussian for regression."""
        if self.task == "regression":
            variance = (self.epistemic + self.aleatoric).clamp_min(_VARIANCE_FLOOR)
            return 0.5 * torch.log(2 * math.pi * math.e * variance)
        log_p = self.log_probs
        return -(log_p.exp() * log_p).sum(dim=-1)
