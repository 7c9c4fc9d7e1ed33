"""A Gaussian process on where a path begins, from which a regression learns how far its targets may vary without data.

A network that fits its data extrapolates with certainty: its late states h(t) are nearly linear in the answer, so that a density
or a process on them trusts the same extrapolation. The state h(0), where every path begins, has seen the targets least. On it,

    y = c + f(h(0)) + noise,   f ~ GP(0, a exp(-|z - z'|^2 / (2 l^2))),   c ~ N(mean(y), 10 a),

says how variable the targets are and over which distance. Two intervals of data determine amplitude and length scale only
roughly, so they are averaged with their evidence as weights instead of being set to its maximum, which is known to be too sure.
The process has at most 64 inducing inputs (the variational bound of Titsias, 2009), so that fit and prediction take milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from ltnode.errors import InputError
from ltnode.models.fitted import FittedModule
from ltnode.typing import Float, Tensor

_ROWS = 1024
_CENTRES = 64
_COMPONENTS = 6
_LENGTHS = torch.logspace(-1.5, 2.0, 29, dtype=torch.float64)
"""Length scales, in units of the root mean square distance of a row from the mean of the features."""
_NOISES = torch.logspace(-7.0, 1.0, 65, dtype=torch.float64)
"""Variances of the noise relative to the amplitude."""
_CONSTANT = 10.0
"""Prior variance of the constant relative to the amplitude."""
_JITTER = 1e-8
_FAMILIAR_QUANTILE = 0.99
_FAMILIAR_FACTOR = 2.0
"""A variance is familiar up to this many times the quantile of those of training rows, each predicted without its own target."""


class Fallback(NamedTuple):
    """What a process answers in place of the members, each (B,), or (B, K) for several targets.

    Attributes:
        mean: Mean of the function.
        variance: Variance of the function, without noise.
        weight: How much of the answer it should give, from 0 to 1.
    """

    mean: Float[Tensor, "B *targets"]
    variance: Float[Tensor, "B *targets"]
    weight: Float[Tensor, "B *targets"]


class PathProcess(FittedModule):
    """A Gaussian process whose length scale, amplitude and noise are averaged with their evidence as weights.

    All values are float64, whatever the dtype of the model: they are differences of nearly equal numbers.

    Attributes:
        amplitude: Mean prior variance of the function, at least the variance of the targets.
        familiar: Variance up to which a row counts as similar to training rows.
    """

    origin: Tensor
    scale: Tensor
    centres: Tensor
    constant: Tensor
    weights: Tensor
    lengths: Tensor
    amplitudes: Tensor
    projections: Tensor
    slopes: Tensor
    amplitude: Tensor
    familiar: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.declare("origin", "scale", "centres", "constant", "amplitude", "familiar")
        self.declare("weights", "lengths", "amplitudes", "projections", "slopes")
        for name, empty in self._buffers.items():
            self._buffers[name] = None if empty is None else empty.double()

    @property
    def fitted(self) -> bool:
        """Whether `fit` was called."""
        return self.centres.numel() > 0

    @torch.no_grad()
    def fit(self, features: Float[Tensor, "N F"], targets: Tensor) -> None:
        """Fit on training rows, without any randomness.

        Args:
            features: States h(0), flattened; of more than 1,024 rows, as many are used.
            targets: Real values (N,) or (N, 1).

        Raises:
            InputError: Fewer than 2 rows, or as many targets as rows are not given.
        """
        x, y = features.double(), targets.double().reshape(-1)
        if len(x) < 2 or len(x) != len(y):
            raise InputError(f"a process needs at least 2 rows and one target for each, not {len(x)} rows and {len(y)} targets")
        if len(x) > _ROWS:
            chosen = torch.linspace(0, len(x) - 1, _ROWS, device=x.device).long()
            x, y = x[chosen], y[chosen]
        self.origin = x.mean(dim=0)
        # Constant features or targets have no spread; any unit will do for them.
        self.scale = _positive((x - self.origin).square().sum(dim=1).mean().sqrt())
        self.constant = y.mean()
        z = (x - self.origin) / self.scale
        self.centres = z[_farthest_first(z, _CENTRES)]
        spread = _positive(y.var(correction=0))
        components = sorted(
            (_component(float(length), self.centres, z, y - self.constant, float(spread)) for length in _LENGTHS),
            key=lambda component: -component.log_evidence,
        )[:_COMPONENTS]
        evidence = x.new_tensor([component.log_evidence for component in components])
        self.weights = torch.softmax(evidence, dim=0)
        self.lengths = x.new_tensor([component.length for component in components])
        self.amplitudes = torch.stack([component.amplitude for component in components])
        self.projections = torch.stack([component.projection for component in components])
        self.slopes = torch.stack([component.slope for component in components])
        self.amplitude = self.weights @ self.amplitudes
        noise = self.weights @ torch.stack([component.noise for component in components])
        self.familiar = self._familiar_variance(features.double(), noise)

    def _familiar_variance(self, features: Float[Tensor, "N F"], noise: Tensor) -> Float[Tensor, ""]:
        """Return the variance up to which rows are familiar, at most half of the amplitude.

        Without its own target, a training row with variance v has ``1 / (1 / v - 1 / noise)``.
        """
        _, variance = self(features[:: max(1, len(features) // _ROWS)])
        left_out = 1 / (1 / variance.clamp_min(1e-12) - 1 / noise).clamp_min(1 / self.amplitude)
        return torch.minimum(_FAMILIAR_FACTOR * left_out.quantile(_FAMILIAR_QUANTILE), self.amplitude / 2)

    def forward(self, features: Float[Tensor, "B F"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Return mean and variance of the function, without noise, in the dtype of the features."""
        z = (features.to(self.centres.dtype) - self.origin) / self.scale
        squared = _squared_distances(z, self.centres)
        kernel = torch.exp(-0.5 * squared / self.lengths[:, None, None].square()) + _CONSTANT
        means = self.constant + torch.matmul(kernel, self.slopes[:, :, None]).squeeze(-1)
        explained = torch.matmul(kernel, self.projections).square().sum(dim=-1)
        variances = self.amplitudes[:, None] * (1 + _CONSTANT - explained).clamp_min(0.0)
        weights = self.weights[:, None]
        mean = (weights * means).sum(dim=0)
        variance = (weights * (variances + (means - mean).square())).sum(dim=0)
        return mean.to(features.dtype), variance.to(features.dtype)

    def fallback(self, features: Float[Tensor, "B F"], noise: Tensor) -> Fallback:
        """Return mean, variance and weight; ``noise`` is the standard deviation of the observation noise, 0-dim or (B,)."""
        mean, variance = self(features)
        return Fallback(mean, variance, self.weight(variance, noise))

    def weight(self, variance: Float[Tensor, " B"], noise: Tensor) -> Float[Tensor, " B"]:
        """Return how much of an answer the process should give: 0 for familiar rows, 1 where it knows nothing.

        Between them it is ``u / (u + noise^2)`` with the excess u of the variance, so that the process takes over where it is
        less certain than the noise is large.

        Args:
            variance: Variance from `forward`.
            noise: Standard deviation of the observation noise.
        """
        familiar, amplitude = self.familiar.to(variance), self.amplitude.to(variance)
        noise_variance = noise.to(variance).square()
        excess, largest = (variance - familiar).clamp_min(0.0), amplitude - familiar
        return (excess / (excess + noise_variance) * ((largest + noise_variance) / largest)).clamp_max(1.0)

    def shape_problem(self) -> str | None:
        """Check that the restored tensors belong together."""
        if not self.fitted:
            return None
        n, m = len(self.lengths), len(self.centres)
        required = {"projections": (n, m, m), "slopes": (n, m), "weights": (n,), "amplitudes": (n,), "scale": ()}
        for name, shape in required.items():
            if tuple(getattr(self, name).shape) != shape:
                return f"a process of {n} kernels and {m} centres needs {name} of shape {shape}"
        return None

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> PathProcess:
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype != old.dtype:
                self._buffers[name] = old.to(new.device)
        return self


class _Component(NamedTuple):
    """A process with one length scale: predictions are ``k @ slope`` and ``amplitude (k(0) - |k @ projection|^2)``."""

    log_evidence: float
    length: float
    amplitude: Tensor
    noise: Tensor
    projection: Tensor
    slope: Tensor


def _component(
    length: float, centres: Float[Tensor, "M F"], z: Float[Tensor, "N F"], y: Float[Tensor, " N"], smallest: float
) -> _Component:
    """Fit one length scale: amplitude and noise are averaged over a grid of their ratio, each with its best amplitude.

    Args:
        length: Length scale.
        centres: Inducing inputs.
        z: Inputs.
        y: Centred targets.
        smallest: Smallest amplitude.
    """
    rows, m, noises = len(z), len(centres), _NOISES.to(z)[:, None]
    inner, outer = (torch.exp(-0.5 * _squared_distances(centres, points) / length**2) + _CONSTANT for points in (centres, z))
    factor = torch.linalg.cholesky(inner + _JITTER * torch.eye(m).to(inner))
    white = torch.linalg.solve_triangular(factor, outer, upper=False)
    values, vectors = torch.linalg.eigh(white @ white.T)
    values = values.clamp_min(0.0)
    coefficients = vectors.T @ (white @ y)
    unexplained = (rows * (1 + _CONSTANT) - white.square().sum()).clamp_min(0.0)
    quadratic = (y @ y - (coefficients.square() / (values + noises)).sum(dim=1, keepdim=True)) / noises
    amplitudes = (quadratic / rows).clamp_min(smallest)
    log_volume = (values + noises).log().sum(dim=1, keepdim=True) + (rows - m) * noises.log()
    log_evidence = -0.5 * (quadratic / amplitudes + rows * (2 * math.pi * amplitudes).log() + log_volume + unexplained / noises)
    weights = torch.softmax(log_evidence, dim=0)
    amplitude = (weights * amplitudes).sum()
    ratio = (weights * amplitudes * noises).sum() / amplitude
    back = torch.linalg.solve_triangular(factor.T, vectors, upper=True)
    return _Component(
        float(torch.logsumexp(log_evidence, dim=0)),
        length,
        amplitude,
        amplitude * ratio,
        back * (values / (values + ratio)).sqrt(),
        back @ (coefficients / (values + ratio)),
    )


def _farthest_first(z: Float[Tensor, "N F"], count: int) -> list[int]:
    """Choose rows that cover all rows: first the one next to the origin, then again and again the farthest from those chosen."""
    nearest = z.square().sum(dim=1)
    chosen = [int(nearest.argmin())]
    nearest = (z - z[chosen[0]]).square().sum(dim=1)
    while len(chosen) < count and float(nearest.max()) > 1e-12:
        chosen.append(int(nearest.argmax()))
        nearest = torch.minimum(nearest, (z - z[chosen[-1]]).square().sum(dim=1))
    return chosen


def _squared_distances(a: Float[Tensor, "n F"], b: Float[Tensor, "m F"]) -> Float[Tensor, "n m"]:
    return (a.square().sum(dim=1)[:, None] + b.square().sum(dim=1) - 2 * a @ b.T).clamp_min(0.0)


def _positive(value: Float[Tensor, ""]) -> Float[Tensor, ""]:
    return torch.where(value > 0, value, torch.ones_like(value))
