"""Answers that become less certain with the distance of the path, and the temperature of a classifier.

With the distance d, the weight ``w = 1 - exp(-(d - onset) / scale)`` for d > onset, else 0, moves an answer towards what is known
without the input:

- Classification: every member becomes ``(1 - w) p + w r``. The base rates r are the class frequencies, in which the most
  probable class of the input has at least the largest frequency, so that widening never changes the most probable class.
- Regression: with the weight s, the answer is that of a Gaussian process on the path (`ltnode.models.path_process`) and with
  1 - s that of the members; mean and variance are those of this mixture. ``1 - s = (1 - w) (1 - w')``, where w' is the weight
  that the process itself asks for. Its variance counts as at least w times that of the targets, so that a distant input has at
  least the spread of the targets. A model that was fitted without targets has no process; its place is taken by mean and
  variance of the held-out targets.

Onset, scale and temperature are chosen on held-out examples: the widening is the strongest one that costs them nothing, and the
temperature is used if it clearly helps them.
"""

from __future__ import annotations

import itertools
import math

import torch

from ltnode.models.fitted import FittedModule
from ltnode.models.path_process import Fallback
from ltnode.ode.replay import traced
from ltnode.typing import Float, Tensor

_TEMPERATURES = torch.logspace(-0.5, 1.0, 73, dtype=torch.float64)
_STANDARD_ERRORS = 2.0
"""Number of standard errors that a temperature must gain, and by which the cost of widening may be underestimated."""
_ONSETS = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
_SCALES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_CAREFUL_SCALE = 4.0
_FEW = 500
"""Number of held-out examples below which the strength of the widening is chosen with more care."""
_LARGEST_EXCESS = 16.0
"""At this excess the members keep a weight of 1e-7, so that the most probable class stays the same."""
_COST = 0.0005
"""Largest loss of held-out log-likelihood, in nats per example, that widening may cost."""


class Widening(FittedModule):
    """Temperature and widening of a model's answers; without a fit, answers stay unchanged."""

    temperature: Tensor
    onset: Tensor
    scale: Tensor
    base: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.declare("temperature", "onset", "scale", "base")

    @property
    def fitted(self) -> bool:
        """Whether answers are widened."""
        return self.onset.numel() > 0

    def forward(
        self, outputs: Float[Tensor, "S B C"], distance: Float[Tensor, " B"] | None, task: str, fallback: Fallback | None = None
    ) -> tuple[Float[Tensor, "S B C"], Float[Tensor, "B *targets"] | None]:
        """Return widened outputs and, for regression, the standard deviation that is added to that over the members."""
        if task == "classification" and self.temperature.numel():
            outputs = outputs / self.temperature
        if distance is None or not self.fitted:
            return (outputs, None) if fallback is None else mixed_means(outputs, fallback)
        excess = _excess(distance, self.onset, self.scale)
        if task == "classification":
            return widened_logits(outputs, excess, self.derived(lambda: log_rates(self.base))), None
        return mixed_means(outputs, _widened(fallback, _weight(excess), self.base))

    @torch.no_grad()
    def fit_classes(
        self,
        outputs: Float[Tensor, "S N C"],
        labels: Tensor,
        distance: Float[Tensor, " N"],
        frequencies: Float[Tensor, " C"],
        temperature: bool = True,
    ) -> None:
        """Choose temperature, onset and scale on held-out examples.

        Args:
            outputs: Logits of the members without temperature and widening.
            labels: Classes of the examples.
            distance: Their distances.
            frequencies: Frequencies of the classes among the training examples.
            temperature: Choose a temperature; otherwise it is 1.
        """
        like = outputs.dtype
        self.temperature = (_best_temperature(outputs.double(), labels) if temperature else torch.ones(())).to(outputs)
        tempered = outputs.double() / self.temperature.double()
        base, d = frequencies.double(), distance.double()
        candidates = []
        for onset, scale in _candidates(d):
            excess = _excess(d, onset, scale)
            widened = widened_logits(tempered, excess, log_rates(base))
            candidates.append((float(_weight(excess).mean()), _log_likelihoods(widened, labels), onset, scale))
        onset, scale = _strongest(candidates, _log_likelihoods(tempered, labels))
        self.onset, self.scale, self.base = (value.to(distance.device, like) for value in (onset, scale, base))

    @torch.no_grad()
    def fit_targets(
        self,
        outputs: Float[Tensor, "S N K"],
        noise: Tensor,
        y: Tensor,
        distance: Float[Tensor, " N"],
        base: Float[Tensor, "2 *targets"],
        fallback: Fallback | None = None,
    ) -> None:
        """Choose onset and scale of a regression on held-out examples.

        Args:
            outputs: Means of the members without widening.
            noise: Standard deviation of the observation noise: 0-dim, (K,), or (S, N, K) where it varies with the input.
            y: Targets (N,) or (N, K) of the examples.
            distance: Their distances.
            base: Mean and standard deviation of the training targets, (2,) or (2, K).
            fallback: What the process answers for the examples.
        """
        means, d = outputs.double(), distance.double()
        y = y.double().reshape(means.shape[1:]).squeeze(-1)
        noise_variance = mean_noise(noise.double()).square()
        noise_variance = noise_variance.squeeze(-1) if noise_variance.ndim == 2 else noise_variance
        wide = None if fallback is None else Fallback(*(value.double() for value in fallback))

        def log_likelihoods(w: Tensor) -> Tensor:
            members, added = mixed_means(means, _widened(wide, w, base.double()))
            own = members.squeeze(-1)
            variance = own.var(dim=0, correction=0) + added.square() + noise_variance
            values = -0.5 * ((y - own.mean(dim=0)).square() / variance + (2 * math.pi * variance).log())
            return values if values.ndim == 1 else values.sum(dim=1)

        candidates = []
        for onset, scale in _candidates(d):
            w = _weight(_excess(d, onset, scale))
            candidates.append((float(w.mean()), log_likelihoods(w), onset, scale))
        onset, scale = _strongest(candidates, log_likelihoods(torch.zeros_like(d)))
        self.onset, self.scale, self.base = (value.to(distance.device, outputs.dtype) for value in (onset, scale, base))

    def shape_problem(self) -> str | None:
        """Check that restored constants are complete and possible."""
        if self.onset.numel() != self.scale.numel() or self.onset.numel() > 1 or self.temperature.numel() > 1:
            return "temperature, onset and scale must be single numbers"
        if not bool((self.scale > 0).all()) or not bool((self.temperature > 0).all()):
            return "temperature and scale must be positive"
        if self.fitted and (self.base.ndim not in (1, 2) or not bool(torch.isfinite(self.base).all())):
            return "the base rates must be a finite vector, or two of them for a regression with several targets"
        return None


def widened_logits(
    logits: Float[Tensor, "S B C"], excess: Float[Tensor, " B"], rates: Float[Tensor, "C C"]
) -> Float[Tensor, "S B C"]:
    """Return logits of ``exp(-excess) p + (1 - exp(-excess)) r``, where r are the rates for the most probable class.

    They are logits up to a constant per row, and without excess those that are given.

    Args:
        logits: Logits of the members.
        excess: By how much the distance exceeds the onset, in units of the scale; below 0 it counts as 0.
        rates: `log_rates` of the class frequencies.
    """
    log_p = torch.log_softmax(logits, dim=-1)
    # A distance that is not a number comes from a path that has left all bounds.
    excess = excess.nan_to_num(_LARGEST_EXCESS).clamp(0.0, _LARGEST_EXCESS)
    if excess.device.type == "cpu" and not traced(excess) and not excess.any():
        return log_p
    top = log_p.exp().sum(dim=0).argmax(dim=-1)
    # Divided by exp(-excess). Without excess, this logarithm is minus infinity, and the sum is exactly its first summand.
    odds = excess.expm1().log()
    return torch.logaddexp(log_p, rates.index_select(0, top) + odds[:, None])


def log_rates(frequencies: Float[Tensor, " C"]) -> Float[Tensor, "C C"]:
    """Return in row m the logarithms of class frequencies, in which class m was raised to the largest of them."""
    same = torch.eye(len(frequencies), dtype=torch.bool, device=frequencies.device)
    raised = torch.where(same, frequencies.max(), frequencies)
    rates = raised / raised.sum(dim=-1, keepdim=True)
    return rates.clamp_min(torch.finfo(rates.dtype).tiny).log()


def _excess(distance: Float[Tensor, " B"], onset: Tensor, scale: Tensor) -> Float[Tensor, " B"]:
    return (distance - onset) / scale


def _weight(excess: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Return the weight of what is known without the input."""
    return -torch.expm1(-excess.clamp_min(0.0))


def mixed_means(means: Float[Tensor, "S B K"], other: Fallback) -> tuple[Float[Tensor, "S B K"], Float[Tensor, "B *targets"]]:
    """Return members and an added standard deviation with mean and variance of the mixture of the members and another answer.

    With the weight s, the mean m and variance v of the members, and the mean u and variance V of the other answer, the mixture
    has the mean ``(1 - s) m + s u`` and the variance ``(1 - s) v + s V + s (1 - s) (m - u)^2``; ``(1 - s)^2 v`` of it is the
    variance of the moved members.
    """
    s, own = other.weight, means.squeeze(-1)
    moved = (own + s * (other.mean - own)).reshape(means.shape)
    variance, mean = torch.var_mean(own, dim=0, correction=0)
    added = s * other.variance + s * (1 - s) * (variance + (mean - other.mean).square())
    return moved, added.sqrt()


def mean_noise(noise: Tensor) -> Tensor:
    """Return the standard deviation of the members' mean noise variance: (B, K) for (S, B, K), else the noise as it is."""
    return noise.square().mean(dim=0).sqrt() if noise.ndim == 3 else noise


def _widened(fallback: Fallback | None, w: Float[Tensor, " B"], base: Float[Tensor, "2 *targets"]) -> Fallback:
    """Return the other answer with the weight of the distance in it; ``base`` is mean and std of the targets."""
    mean, variance = base[0], base[1].square()
    if base.ndim == 2:  # several targets share the weight
        w = w[:, None].expand(-1, base.shape[1])
    if fallback is None:
        return Fallback(mean.expand_as(w), variance.expand_as(w), w)
    weight = 1 - (1 - w) * (1 - fallback.weight)
    return Fallback(fallback.mean, torch.maximum(fallback.variance, w * variance), weight)


def _best_temperature(outputs: Float[Tensor, "S N C"], labels: Tensor) -> Float[Tensor, ""]:
    """Return the temperature with the best log-likelihood, or 1 if it is not clearly better than none."""
    plain = _log_likelihoods(outputs, labels)
    values = torch.stack([_log_likelihoods(outputs / t, labels) for t in _TEMPERATURES.tolist()])
    best = int(values.mean(dim=1).argmax())
    gain = values[best] - plain
    clear = len(gain) > 1 and bool(gain.mean() > _STANDARD_ERRORS * gain.std() / math.sqrt(len(gain)))
    return _TEMPERATURES[best] if clear else torch.ones((), dtype=torch.float64)


def _log_likelihoods(outputs: Float[Tensor, "S N C"], labels: Tensor) -> Float[Tensor, " N"]:
    log_probs = torch.logsumexp(torch.log_softmax(outputs, dim=-1), dim=0) - math.log(outputs.shape[0])
    return log_probs.gather(1, labels[:, None]).squeeze(1)


def _candidates(distance: Float[Tensor, " N"]) -> list[tuple[Tensor, Tensor]]:
    """Onsets at quantiles of the held-out distances, and scales in units of their spread."""
    spread = (distance.quantile(0.95) - distance.median()).clamp_min(1e-6)
    return [(distance.quantile(level), factor * spread) for level, factor in itertools.product(_ONSETS, _SCALES)]


def _strongest(candidates: list[tuple[float, Tensor, Tensor, Tensor]], plain: Float[Tensor, " N"]) -> tuple[Tensor, Tensor]:
    """Return onset and scale of the widening with the largest mean weight among those that surely cost at most `_COST` nats.

    Fewer than `_FEW` held-out examples cannot tell what widening costs, so that the cost counts with its standard errors. The
    last onset, the largest held-out distance, changes no held-out answer and costs nothing; of its scales, a few examples take
    `_CAREFUL_SCALE`, and many the smallest.
    """
    free = [entry for entry in candidates if _surely_free(entry[1] - plain)]
    if len(plain) < _FEW and not any(entry[0] > 0 for entry in free):
        free = free[-len(_SCALES) :][_SCALES.index(_CAREFUL_SCALE) :]
    _, _, onset, scale = max(free, key=lambda entry: (entry[0], -float(entry[3])))
    return onset, scale


def _surely_free(change: Float[Tensor, " N"]) -> bool:
    """Whether a change of held-out log-likelihoods costs at most `_COST` on average, even if it was lucky."""
    luck = _STANDARD_ERRORS * change.std(correction=0) / math.sqrt(len(change)) if len(change) < _FEW else 0.0
    return bool(change.mean() - luck >= -_COST)
