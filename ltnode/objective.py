"""The evidence lower bound over sampled end-times, and its likelihoods.

For data (x_i, y_i), i = 1..N, and end-times T_s drawn uniformly on the window (a, b), training minimises, per data point,

    L = - (1/B) sum_i sum_s w_s log p(y_i | T_s, x_i) + kappa * KL(q || p)

where the weights w_s estimate the expectation under q (see `Weighting`) and kappa is the weight of the KL term.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from torch import nn
from torch.nn import functional

from ltnode.checks import checked_count, is_finite_number
from ltnode.errors import InputError, unknown_name
from ltnode.typing import Float, Num, Tensor


class Weighting(StrEnum):
    """How the log-likelihoods at the sampled end-times are weighted."""

    DENSITY = "density"
    """``w_s = q(T_s) / S``: the paper's code. Estimates the expectation divided by the width of the window."""
    INTEGRAL = "integral"
    """``w_s = (b - a) q(T_s) / S``: unbiased for the expectation of q over the window."""
    NORMALISED = "normalised"
    """``w_s = q(T_s) / sum_r q(T_r)``: self-normalised; bias O(1/S), less variance, no push out of the window."""
    SOFTMAX = "softmax"
    """``w_s = exp(q(T_s)) / sum_r exp(q(T_r))``: nearly uniform; commented out in the paper's code."""

    @classmethod
    def parse(cls, value: str) -> Weighting:
        """Return the member of a name; an unknown name is an error that suggests the nearest."""
        try:
            return cls(value)
        except ValueError:
            raise InputError(unknown_name("weighting", value, [member.value for member in cls])) from None


def time_weights(log_q: Float[Tensor, "S *batch"], weighting: Weighting, width: float) -> Float[Tensor, "S *batch"]:
    """Compute the weights of the S sampled end-times from their log-densities; differentiable in the posterior.

    Args:
        log_q: log q(T_s), (S,) for a shared T or (S, B) for one T per input.
        weighting: The estimator.
        width: Length b - a of the window from which the times were drawn.
    """
    samples = log_q.shape[0]
    match weighting:
        case Weighting.DENSITY:
            return log_q.exp() / samples
        case Weighting.INTEGRAL:
            return log_q.exp() * (width / samples)
        case Weighting.NORMALISED:
            return torch.softmax(log_q, dim=0)
        case Weighting.SOFTMAX:
            return torch.softmax(log_q.exp(), dim=0)


LOGGED_PARTS = ("loss", "expected_log_likelihood", "kl")
"""Names of the `LossParts` that a training step reports."""


@dataclass(frozen=True)
class LossParts:
    """The parts of one loss.

    Attributes:
        loss: What training minimises, per data point.
        expected_log_likelihood: ``(1/B) sum_i sum_s w_s log p(y_i | T_s, x_i)``.
        kl: KL(q || p); the mean over the batch where every input has its own T.
        kl_weight: Weight kappa of the KL.
        times: The end-times used, (S,) or (S, B).
    """

    loss: Tensor
    expected_log_likelihood: Tensor
    kl: Tensor
    kl_weight: float
    times: Tensor

    def logged(self) -> dict[str, Tensor]:
        """Return the parts that a training step reports, by name."""
        return {name: getattr(self, name) for name in LOGGED_PARTS}

    def detached(self) -> LossParts:
        """Return the parts without their graph, which must not be copied, pickled or kept alive with a model."""
        loss, expected, kl = (part.detach() for part in self.logged().values())
        return replace(self, loss=loss, expected_log_likelihood=expected, kl=kl)


def negative_elbo(
    log_likelihood: Float[Tensor, "S B"],
    times: Float[Tensor, "S *batch"],
    log_q: Float[Tensor, "S *batch"] | None,
    kl: Float[Tensor, "*inputs"] | None,
    weighting: Weighting,
    kl_weight: float,
    width: float,
    example_weights: Float[Tensor, " B"] | None = None,
) -> LossParts:
    """Compute the loss and its parts.

    Args:
        log_likelihood: log p(y_i | T_s, x_i).
        times: The end-times, which the result reports.
        log_q: log q(T_s), (S,) or (S, B); None for end-times without a learnt posterior, which have equal weights.
        kl: KL(q || p), 0-dim or (B,); None without a learnt posterior.
        weighting: The estimator of the expectation.
        kl_weight: Weight kappa of the KL.
        width: Length of the window.
        example_weights: How many examples each one counts for; None counts each once. A KL per input counts likewise.
    """
    if example_weights is not None:
        log_likelihood = log_likelihood * example_weights.to(log_likelihood.dtype)
        kl = kl * example_weights.to(kl.dtype) if kl is not None and kl.ndim == 1 else kl
    if log_q is None:
        expected = log_likelihood.mean()
    else:
        weights = time_weights(log_q, weighting, width).to(log_likelihood.dtype)
        if weights.ndim == 1:
            weights = weights[:, None]
        expected = (weights * log_likelihood).sum(dim=0).mean()
    divergence = torch.zeros_like(expected) if kl is None else kl.mean().to(expected.dtype)
    loss = -expected + kl_weight * divergence
    return LossParts(loss, expected.detach(), divergence.detach(), kl_weight, times.detach())


def resolve_kl_weight(kl_weight: float | str, n_data: int | None, per_input: bool) -> float:
    """Return the weight of the KL per data point: a number unchanged, or that of the literal bound for ``"elbo"``.

    The literal weight is 1/N for one T that all N points share, and 1 for one T per input.
    """
    if kl_weight == "elbo":
        if per_input:
            return 1.0
        if n_data is None:
            raise InputError("kl_weight='elbo' requires n_data, the number of training points N: the literal weight is 1/N")
        return 1.0 / n_data
    if not is_finite_number(kl_weight) or kl_weight < 0:
        raise InputError(f"kl_weight must be a number >= 0 or 'elbo', not {kl_weight!r}")
    return float(kl_weight)


class Likelihood(nn.Module):
    """p(y | output), the likelihood of every member's prediction.

    Attributes:
        targets: Number of targets of a regression.
        outputs_per_target: Number of outputs of the head for each of them.
    """

    targets: int = 1
    outputs_per_target: int = 1

    def log_prob(self, outputs: Float[Tensor, "S B C"], y: Num[Tensor, "B *targets"]) -> Float[Tensor, "S B"]:
        """Compute log p(y_i | output_si)."""
        raise NotImplementedError

    def moments(self, outputs: Float[Tensor, "S B C"]) -> tuple[Float[Tensor, "S B C"], Tensor | None]:
        """Return logits, or means (S, B, targets), and the standard deviation of the noise.

        The latter is None for labels, `observation_noise` where it is the same for all inputs, and otherwise (S, B, targets).
        """
        return outputs, self.observation_noise()

    def observation_noise(self) -> Tensor | None:
        """Return the standard deviation of the observation noise without a graph; None for labels.

        It is 0-dim for one target, and (targets,) for several. Where it varies with the input, this is its typical value.
        """
        return None

    def fit_noise(self, residuals: Callable[[], Tensor]) -> None:
        """Fit the observation noise to the residuals (N,) of a trained model, where training did not learn it."""


class Categorical(Likelihood):
    """Likelihood of class labels; the outputs are logits."""

    def log_prob(self, outputs: Float[Tensor, "S B C"], y: Num[Tensor, "B *targets"]) -> Float[Tensor, "S B"]:
        """Compute the negative cross-entropy of every member, with labels (B,) or with class probabilities (B, C)."""
        if y.ndim == 2 and y.is_floating_point():
            return (functional.log_softmax(outputs, dim=-1) * y.to(outputs.dtype)).sum(-1)
        samples, batch, classes = outputs.shape
        target = y.long().expand(samples, batch).reshape(-1)
        return -functional.cross_entropy(outputs.reshape(-1, classes), target, reduction="none").reshape(samples, batch)


class Gaussian(Likelihood):
    """Likelihood of real values; the outputs are means, followed by log-scales of the noise where it varies with the input.

    The noise of target k is ``std_k``, one parameter for all inputs, or ``std_k exp(r tanh(output / r))`` with r = 3: it varies
    by a factor of at most 20 in either direction, so that no output can make it 0 or infinite, and an output of 0 leaves it as it
    is. Several targets are independent given the input.

    Args:
        noise_std: Initial standard deviation of the observation noise.
        learn: Learn the noise, as one parameter per target: its logarithm.
        targets: Number of targets.
        input_dependent: Let the noise vary with the input; the head returns (N, 2 targets) instead of (N, targets).
        smallest_std: Smallest standard deviation of the noise.
    """

    largest_log_ratio = 3.0

    def __init__(
        self,
        noise_std: float = 1.0,
        learn: bool = True,
        targets: int = 1,
        input_dependent: bool = False,
        smallest_std: float = 1e-4,
    ) -> None:
        super().__init__()
        self.smallest_std = smallest_std
        if not 0 < noise_std < math.inf:
            raise InputError(f"noise_std must be a positive, finite number, not {noise_std}")
        self.targets = checked_count("targets", targets)
        self.input_dependent = bool(input_dependent)
        self.outputs_per_target = 2 if input_dependent else 1
        value = torch.full(() if targets == 1 else (targets,), math.log(noise_std))
        if learn:
            self.log_std = nn.Parameter(value)
        else:
            self.register_buffer("log_std", value)

    @property
    def noise_std(self) -> Tensor:
        """Standard deviation of the noise, never below ``smallest_std``: 0-dim, or (targets,) for several targets."""
        return self.log_std.exp().clamp_min(self.smallest_std)

    def observation_noise(self) -> Tensor:
        """Return ``noise_std`` without a graph."""
        return self.noise_std.detach()

    def moments(self, outputs: Float[Tensor, "S B C"]) -> tuple[Float[Tensor, "S B K"], Tensor]:
        """Return the means and, without a graph, the standard deviation of the noise; see `Likelihood.moments`."""
        means, std = self._split(outputs)
        return means, std.detach()

    def log_prob(self, outputs: Float[Tensor, "S B C"], y: Num[Tensor, "B *targets"]) -> Float[Tensor, "S B"]:
        """Compute the Gaussian log-density of y (B,), (B, 1) or (B, targets) for every member, summed over the targets."""
        means, std = self._split(outputs)
        if self.targets == 1:
            means, std = means.squeeze(-1), std.squeeze(-1) if std.ndim else std
            y = y.reshape(-1)
        z = (y.to(outputs.dtype) - means) / std
        density = -0.5 * z.square() - std.log() - 0.5 * math.log(2 * math.pi)
        return density if self.targets == 1 else density.sum(dim=-1)

    def _split(self, outputs: Float[Tensor, "S B C"]) -> tuple[Float[Tensor, "S B K"], Tensor]:
        """Means and standard deviations of the noise."""
        std = self.noise_std
        if not self.input_dependent:
            return outputs, std
        means, ratios = outputs.split(self.targets, dim=-1)
        bounded = self.largest_log_ratio * torch.tanh(ratios / self.largest_log_ratio)
        return means, (std * bounded.exp()).clamp_min(self.smallest_std)


class MeanSquare(Likelihood):
    """Squared error in place of a log-density, ``-((y - mean) / scale)^2``: the 1-D loss that the paper describes.

    Predictions report ``noise_std``, which is fitted after training as the residual RMSE.

    Args:
        scale: Standard deviation of the targets, where they are not of order 1.
    """

    noise_std: Tensor

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.register_buffer("noise_std", torch.tensor(0.0))

    def observation_noise(self) -> Tensor:
        """Return ``noise_std``."""
        return self.noise_std

    @torch.no_grad()
    def fit_noise(self, residuals: Callable[[], Tensor]) -> None:
        """Set ``noise_std`` to the root mean square of the residuals."""
        self.noise_std.copy_(residuals().square().mean().sqrt())

    def log_prob(self, outputs: Float[Tensor, "S B C"], y: Num[Tensor, "B *targets"]) -> Float[Tensor, "S B"]:
        """Compute the negative squared error of every member."""
        return -((y.reshape(-1).to(outputs.dtype) - outputs.squeeze(-1)) / self.scale).square()
