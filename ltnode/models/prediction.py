"""What a prediction means: the members at the sampled end-times, their average, and the two parts of the uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ltnode.errors import InputError
from ltnode.ode import Stats
from ltnode.typing import Float, Tensor

_VARIANCE_FLOOR = 1e-12
_PER_INPUT = ("distance", "familiarity", "widened_std")
"""Optional fields with one value per input."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """Predictive distribution of a batch.

    Classification: ``probs = mean_s softmax(outputs_s)``; its entropy in nats is the sum of the expected entropy of the members
    (aleatoric) and the mutual information between label and end-time (epistemic).
    Regression: ``mean`` and ``std`` over the members; the total variance is the sum of ``noise_std^2`` (aleatoric) and ``std^2``
    (epistemic), and the entropy is that of the Gaussian with the total variance. All have shape (B,) for one target, and (B, K)
    for K targets; the entropy is summed over the targets, which are independent given the input. Noise that varies with the input
    is that of the members' mean variance.

    All quantities are computed in the dtype and on the device of ``outputs``; see `to`.

    Attributes:
        task: "classification" or "regression".
        outputs: (S, B, C) logits, or (S, B, K) means of K targets, of every member.
        times: End-times, (S,), or (S, B) if every input has its own.
        stats: Work of the solve, summed over all passes for models that need several; None for models without a solve.
        noise: Standard deviation of the observation noise: 0-dim for one target, (K,) for several, and (B, K) where it varies
            with the input; None for classification.
        distance: Distance of the path of every input from those of the training inputs, unbounded, larger = less familiar; None
            for models whose familiarity was not fitted. It does not depend on end-times, draws or other inputs.
        familiarity: Rank of the distance among held-out inputs as a p-value in (0, 1]; None if nothing was held out. Inputs from
            the source of the training data have a familiarity of at most alpha with a probability of at most alpha.
        widened_std: Standard deviation of a regression that widening adds to that over the members; None without widening.
    """

    task: str
    outputs: Float[Tensor, "S B C"]
    times: Float[Tensor, "S *batch"]
    stats: Stats | None = None
    noise: Tensor | None = None
    distance: Float[Tensor, " B"] | None = None
    familiarity: Float[Tensor, " B"] | None = None
    widened_std: Float[Tensor, "B *targets"] | None = None

    def __repr__(self) -> str:
        members, inputs, outputs = self.outputs.shape
        classes = f", {outputs} classes" if self.task == "classification" else ""
        return f"Prediction({self.task}: {inputs} inputs, {members} members{classes})"

    @classmethod
    def cat(cls, parts: Sequence[Prediction]) -> Prediction:
        """Concatenate the predictions of several batches by one model; ``stats`` is None, since each batch has its own solve."""
        first = parts[0]
        shared = all(p.times.ndim == 1 and torch.equal(p.times, first.times) for p in parts)
        per_input = (p.times if p.times.ndim == 2 else p.times[:, None].expand(p.outputs.shape[:2]) for p in parts)
        times = first.times if shared else torch.cat(list(per_input), dim=1)
        columns = {name: [getattr(p, name) for p in parts] for name in _PER_INPUT}
        known: dict[str, Any] = {name: None if values[0] is None else torch.cat(values) for name, values in columns.items()}
        varies = first.noise is not None and first.noise.ndim == 2
        noise = torch.cat([p.noise for p in parts if p.noise is not None]) if varies else first.noise
        return cls(first.task, torch.cat([p.outputs for p in parts], dim=1), times, noise=noise, **known)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Prediction:
        """Return the prediction in another dtype, in which all averages are then computed, or on another device."""
        outputs, times = (value.to(dtype=dtype, device=device) for value in (self.outputs, self.times))
        optional = {name: getattr(self, name) for name in ("noise", *_PER_INPUT)}
        moved: dict[str, Any] = {name: None if value is None else value.to(outputs) for name, value in optional.items()}
        if self.familiarity is not None:
            moved["familiarity"] = self.familiarity.to(outputs.device)  # float64 in any case; see `Ranks`
        return replace(self, outputs=outputs, times=times, **moved)

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
        # Rounding can push a mean of probabilities slightly above 1.
        return self.member_probs.mean(dim=0).clamp_max(1.0)

    @property
    def log_probs(self) -> Float[Tensor, "B C"]:
        """Logarithm of the averaged probabilities, by log-mean-exp so that saturated members keep their gradient."""
        self._require("classification", "log_probs")
        return torch.logsumexp(torch.log_softmax(self.outputs, dim=-1), dim=0) - math.log(self.outputs.shape[0])

    @property
    def labels(self) -> Tensor:
        """Most probable class (B,)."""
        return self.probs.argmax(dim=-1)

    @property
    def member_means(self) -> Float[Tensor, "S B *targets"]:
        """Mean of every member."""
        self._require("regression", "member_means")
        return self.outputs.squeeze(-1)

    @property
    def mean(self) -> Float[Tensor, "B *targets"]:
        """Predictive mean."""
        self._require("regression", "mean")
        return self.member_means.mean(dim=0)

    @property
    def std(self) -> Float[Tensor, "B *targets"]:
        """Standard deviation over the members (population form) and of widening, without the observation noise."""
        self._require("regression", "std")
        spread = self.member_means.std(dim=0, correction=0)
        # Not torch.hypot, which ONNX does not have.
        return spread if self.widened_std is None else (spread.square() + self.widened_std.square()).sqrt()

    @property
    def noise_std(self) -> Tensor:
        """Standard deviation of the observation noise: 0-dim if one target has the same noise for all inputs, else as ``std``."""
        self._require("regression", "noise_std")
        assert self.noise is not None
        return self.noise if self.noise.ndim == 0 else self.noise.expand(self.outputs.shape[1:]).squeeze(-1)

    @property
    def total_std(self) -> Float[Tensor, "B *targets"]:
        """``sqrt(std^2 + noise_std^2)``."""
        return (self.std.square() + self.noise_std.square()).sqrt()

    def interval(self, coverage: float = 0.9) -> tuple[Float[Tensor, "B *targets"], Float[Tensor, "B *targets"]]:
        """Ends of the central interval of the Gaussian with mean ``mean`` and standard deviation ``total_std``."""
        half = torch.special.ndtri(torch.tensor((1 + coverage) / 2, dtype=torch.float64)).item() * self.total_std
        return self.mean - half, self.mean + half

    @property
    def aleatoric(self) -> Float[Tensor, "B *targets"]:
        """Expected entropy of the members in nats; for regression, the noise variance."""
        if self.task == "regression":
            return self.noise_std.square().expand(self.member_means.shape[1:])
        log_p = torch.log_softmax(self.outputs, dim=-1)
        return (log_p.exp() * -log_p).sum(dim=-1).mean(dim=0)

    @property
    def epistemic(self) -> Float[Tensor, "B *targets"]:
        """Mutual information between label and end-time in nats; for regression, ``std^2``."""
        if self.task == "regression":
            return self.std.square()
        return (self.entropy - self.aleatoric).clamp_min(0.0)

    @property
    def entropy(self) -> Float[Tensor, "B"]:
        """Entropy of the averaged prediction in nats; for regression, that of the moment-matched Gaussian."""
        if self.task == "regression":
            variance = (self.epistemic + self.aleatoric).clamp_min(_VARIANCE_FLOOR)
            entropy = 0.5 * torch.log(2 * math.pi * math.e * variance)
            return entropy if entropy.ndim == 1 else entropy.sum(dim=1)
        log_p = self.log_probs
        # Rounding can push the entropy of a certain prediction slightly below 0.
        return (log_p.exp() * -log_p).sum(dim=-1).clamp_min(0.0)
