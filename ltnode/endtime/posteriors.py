"""End-time modules, which a model trains and saves. Calling one returns a `TimeDistribution`."""

from __future__ import annotations

import math

import torch
from torch import nn

from ltnode.checks import checked_count, checked_number, checked_prior, checked_window
from ltnode.counter_rng import CounterGenerator
from ltnode.endtime.base import EndTime
from ltnode.endtime.distributions import (
    GammaDistribution,
    GammaMixtureDistribution,
    PointDistribution,
    TimeDistribution,
    UniformDistribution,
)
from ltnode.errors import InputError
from ltnode.typing import Float, Tensor

PARAMETER_RANGE = (1e-2, 100.0)
"""Range of raw shapes and rates; at 0 the density is undefined and its gradient is NaN."""
_SMALLEST, _LARGEST = PARAMETER_RANGE
# Inference networks: exactly exp(output) for outputs in (-6, 8), then a smooth limit of 1e-3 and 1e4.
_LOG_CORE = (-6.0, 8.0)
_LOG_LIMITS = (math.log(1e-3), math.log(1e4))


class FixedTime(EndTime):
    """T = t, the end-time of a plain neural ODE.

    Args:
        t: The time, positive and finite.
    """

    kind = "fixed"
    learnable = False
    t: Tensor

    def __init__(self, t: float = 1.0) -> None:
        t = checked_number("t", t, "a positive, finite time", 1e-30, 1e30)
        super().__init__((0.0, t))
        self.register_buffer("t", torch.tensor(t), persistent=False)

    def forward(self, x: Tensor | None = None) -> PointDistribution:
        """A point mass at t."""
        return PointDistribution(self.t)

    def _window_times(
        self, shape: tuple[int, ...], scheme: str, generator: torch.Generator | CounterGenerator | None, device: torch.device
    ) -> Tensor:
        return torch.full(shape, self.window[1], dtype=torch.float64, device=device)

    def extra_repr(self) -> str:
        """The time."""
        return f"{self.window[1]:g}"


class UniformTime(EndTime):
    """T ~ Uniform(low, high), in training and in prediction (Uni-NODE).

    Args:
        low: Smallest time, at least 0.
        high: Largest time.
    """

    kind = "uniform"
    learnable = False
    bounds: Tensor

    def __init__(self, low: float = 0.0, high: float = 3.0) -> None:
        super().__init__(checked_window((low, high), name="(low, high) of UniformTime"))
        self.register_buffer("bounds", torch.tensor(self.window), persistent=False)

    def forward(self, x: Tensor | None = None) -> UniformDistribution:
        """The uniform distribution on the window."""
        return UniformDistribution(*self.window, dtype=self.bounds.dtype, device=self.bounds.device)

    def extra_repr(self) -> str:
        """The interval."""
        return f"{self.window[0]:g}, {self.window[1]:g}"


class _GammaFamily(EndTime):
    """Base of the learnt posteriors: a Gamma prior, which is saved with the weights, and optional truncation."""

    prior: Tensor

    def __init__(self, prior: tuple[float, float], window: tuple[float, float], truncate: bool) -> None:
        super().__init__(checked_window(window), truncate)
        self.register_buffer("prior", torch.tensor(checked_prior(prior)))
        self._cached_prior: tuple[object, GammaDistribution] | None = None

    @property
    def _support(self) -> tuple[float, float] | None:
        return self.window if self.truncate else None

    @property
    def prior_distribution(self) -> GammaDistribution:
        """The prior, truncated like q; cached until its parameters change, because its normaliser is an integral."""
        values = self.prior
        if torch.compiler.is_compiling() or values.is_inference():
            return GammaDistribution(values[0], values[1], self._support)
        key = (values._version, values.data_ptr(), values.device, values.dtype, self._support)
        if self._cached_prior is None or self._cached_prior[0] != key:
            with torch.inference_mode(False), torch.no_grad():
                self._cached_prior = key, GammaDistribution(values[0], values[1], self._support)
        return self._cached_prior[1]


def _constrain_gamma_(*parameters: nn.Parameter) -> None:
    # NaN, which only a non-finite gradient can cause, becomes 1, the initial value.
    for p in parameters:
        p.nan_to_num_(nan=1.0, posinf=_LARGEST, neginf=_SMALLEST).clamp_(_SMALLEST, _LARGEST)


class GammaTime(_GammaFamily):
    """T ~ Gamma(alpha, beta), one learnt posterior for all inputs (LT-NODE), with two parameters.

    alpha (shape) and beta (rate) are raw parameters as in the authors' code, so the learning rate determines how far the
    posterior moves from its initial value. `constrain_` clamps them to [0.01, 100].

    Args:
        alpha: Initial shape, in [0.01, 100].
        beta: Initial rate, in [0.01, 100].
        prior: (alpha, beta) of the Gamma prior.
        window: Interval of training times.
        truncate: Restrict q and prior to the window. Otherwise the likelihood pushes q out of the window.
    """

    kind = "gamma"

    def __init__(
        self,
        alpha: float = 1.0,
        beta: float = 1.0,
        prior: tuple[float, float] = (2.0, 0.5),
        window: tuple[float, float] = (0.0, 3.0),
        truncate: bool = True,
    ) -> None:
        super().__init__(prior, window, truncate)
        allowed = f"a number in [{_SMALLEST:g}, {_LARGEST:g}]"
        self.alpha = nn.Parameter(torch.tensor(checked_number("alpha", alpha, allowed, _SMALLEST, _LARGEST)))
        self.beta = nn.Parameter(torch.tensor(checked_number("beta", beta, allowed, _SMALLEST, _LARGEST)))

    def forward(self, x: Tensor | None = None) -> GammaDistribution:
        """The posterior, with batch shape (); ``x`` is ignored."""
        return GammaDistribution(*self.shape_and_rate(), self._support, self.prior_distribution)

    def shape_and_rate(self) -> tuple[Tensor, Tensor]:
        """Shape and rate, clamped to their range; both 0-dim."""
        return self.alpha.clamp(_SMALLEST, _LARGEST), self.beta.clamp(_SMALLEST, _LARGEST)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clamp alpha and beta to [0.01, 100] in place; NaN becomes 1."""
        _constrain_gamma_(self.alpha, self.beta)

    def _named_values(self, q: TimeDistribution) -> dict[str, Tensor]:
        return {"alpha": self.alpha, "beta": self.beta}


def _bounded_exp(v: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Exactly exp(v) for v in (-6, 8), with smooth limits of 1e-3 and 1e4 beyond.

    The limits are approached rationally rather than exponentially, so that extreme outputs still have a useful gradient.
    """
    low, high = _LOG_CORE
    above, below = _LOG_LIMITS[1] - high, low - _LOG_LIMITS[0]
    v_core = v.clamp(low, high)
    v_core = v_core + above * (1 - 1 / (1 + torch.relu(v - high) / above))
    return torch.exp(v_core - below * (1 - 1 / (1 + torch.relu(low - v) / below)))


class AmortizedGammaTime(_GammaFamily):
    """T_i ~ Gamma(alpha(x_i), beta(x_i)), one posterior per input from an inference network (ALT-NODE).

    Args:
        encoder: Maps x (B, ...) to (B, 2), the logarithms of shape and rate (limited to 1e-3 and 1e4).
        prior: (alpha, beta) of the Gamma prior.
        window: Interval of training times.
        truncate: Restrict q and prior to the window.
    """

    kind = "amortized"
    amortized = True

    def __init__(
        self,
        encoder: nn.Module,
        prior: tuple[float, float] = (2.0, 0.5),
        window: tuple[float, float] = (0.0, 3.0),
        truncate: bool = True,
    ) -> None:
        super().__init__(prior, window, truncate)
        if not isinstance(encoder, nn.Module):
            raise InputError(f"encoder must be an nn.Module that maps x to (B, 2), not {type(encoder).__name__}")
        self.encoder = encoder

    def forward(self, x: Tensor | None = None) -> GammaDistribution:
        """The posteriors of the inputs x (B, ...), with batch shape (B,)."""
        if x is None:
            raise InputError("an amortised end-time depends on the input: pass x, a batch of inputs (B, ...)")
        out = self.encoder(x)
        if out.ndim != 2 or out.shape[1] != 2:
            raise InputError(
                f"the encoder must return (B, 2), log shape and log rate of each input, not {tuple(out.shape)} "
                f"for an input of shape {tuple(x.shape)}"
            )
        return GammaDistribution(*self.shape_and_rate(out), self._support, self.prior_distribution)

    @staticmethod
    def shape_and_rate(encoding: Float[Tensor, "B 2"]) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """Shape and rate from the output of the encoder."""
        alpha, beta = _bounded_exp(encoding.to(torch.promote_types(encoding.dtype, torch.float32))).unbind(dim=1)
        return alpha, beta

    def _named_values(self, q: TimeDistribution) -> dict[str, Tensor]:
        assert isinstance(q, GammaDistribution)
        return {"alpha": q.alpha, "beta": q.beta}


class GammaMixtureTime(_GammaFamily):
    """T ~ a mixture of Gammas for all inputs: a posterior that can have several modes.

    Initially the components have equal weights and are spread over equal parts of the window, each with a standard deviation of
    half a part. Shapes and rates are raw parameters in [0.01, 100] as in `GammaTime`.

    Args:
        components: Number of Gammas, at least 1.
        prior: (alpha, beta) of the Gamma prior.
        window: Interval of training times.
        truncate: Restrict each component and the prior to the window.
    """

    kind = "mixture"

    def __init__(
        self,
        components: int = 3,
        prior: tuple[float, float] = (2.0, 0.5),
        window: tuple[float, float] = (0.0, 3.0),
        truncate: bool = True,
    ) -> None:
        super().__init__(prior, window, truncate)
        components = checked_count("components", components)
        low, high = self.window
        part = (high - low) / components
        mean = low + part * (torch.arange(components) + 0.5)
        alpha = ((2 * mean / part) ** 2).clamp(_SMALLEST, _LARGEST)
        self.logits = nn.Parameter(torch.zeros(components))
        self.alpha = nn.Parameter(alpha)
        self.beta = nn.Parameter((alpha / mean).clamp(_SMALLEST, _LARGEST))

    def forward(self, x: Tensor | None = None) -> GammaMixtureDistribution:
        """The posterior, with batch shape (); ``x`` is ignored."""
        alpha, beta = (p.clamp(_SMALLEST, _LARGEST) for p in (self.alpha, self.beta))
        return GammaMixtureDistribution(self.logits, alpha, beta, self._support, self.prior_distribution)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clamp shapes and rates to [0.01, 100] and logits to [-20, 20] in place; NaN becomes 1 (logits: 0)."""
        _constrain_gamma_(self.alpha, self.beta)
        self.logits.nan_to_num_(nan=0.0, posinf=20.0, neginf=-20.0).clamp_(-20.0, 20.0)

    def _named_values(self, q: TimeDistribution) -> dict[str, Tensor]:
        rows = {"weight": torch.softmax(self.logits, dim=0), "alpha": self.alpha, "beta": self.beta}
        return {f"{name}{k}": v for name, row in rows.items() for k, v in enumerate(row)}

    def extra_repr(self) -> str:
        """Number of components, mean, quantiles and window."""
        return f"{len(self.logits)} components, {super().extra_repr()}"
