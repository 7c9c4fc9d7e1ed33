"""Base class of all end-time modules: the interface for models, objectives and training loops."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import nn

from ltnode.checks import checked_count, checked_number
from ltnode.counter_rng import CounterGenerator
from ltnode.endtime.distributions import TimeDistribution, uniform_draws
from ltnode.errors import InputError, unknown_name
from ltnode.typing import Float, Tensor

# Training times start here instead of at 0, where Gamma densities with alpha < 1 are infinite.
_FIRST_TIME = 1e-6
_SCHEMES = ("iid", "grid")


class EndTime(nn.Module, ABC):
    """The end-time of a neural ODE as a random variable; ``module(x)`` returns its current `TimeDistribution`.

    The methods below check their arguments and build a new distribution in every call. Inner loops call ``module(x)`` once
    and use the distribution directly, which performs no checks and no device synchronisation.

    Attributes:
        kind: Short name of the class for descriptions of a model; "none" by default.
        window: (low, high), the interval of training times.
        truncate: Whether T is restricted to the window.
        amortized: Whether each input has its own end-time; all methods then need ``x``.
        learnable: Whether the posterior is learnt. Otherwise all training times have equal weight and the KL is zero.

    The window, fixed times and interval ends are configuration and not part of the state dict; the prior is.
    """

    kind: ClassVar[str] = "none"
    amortized: ClassVar[bool] = False
    learnable: ClassVar[bool] = True

    def __init__(self, window: tuple[float, float], truncate: bool = True) -> None:
        super().__init__()
        self.window = window
        self.truncate = bool(truncate)

    @abstractmethod
    def forward(self, x: Tensor | None = None) -> TimeDistribution:
        """The current distribution of T, for each of the inputs ``x`` (B, ...) if amortised."""

    @property
    def horizon(self) -> float | None:
        """The largest possible time of a draw or quantile; None if T is not truncated."""
        return self.window[1] if self.truncate else None

    def variational_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of q, for a separate optimiser group; empty if nothing is learnt."""
        return self.parameters()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Clamp the parameters to their valid range, in place; to be called after every optimiser step."""

    def sample(self, n: int, x: Tensor | None = None, generator: torch.Generator | None = None) -> Float[Tensor, "n *batch"]:
        """Draw n independent end-times; no gradient."""
        return self(x).sample(checked_count("n", n), generator)

    def log_prob(self, t: Float[Tensor, "..."], x: Tensor | None = None) -> Float[Tensor, "..."]:
        """Log-density at t, (n,), or (n, B) if amortised; -inf outside of the window if truncated."""
        q = self(x)
        if t.ndim <= len(q.batch_shape) or t.shape[t.ndim - len(q.batch_shape) :] != q.batch_shape:
            shape = f"(n, {q.batch_shape[0]}), n times for each input" if self.amortized else "(n,)"
            raise InputError(f"t must have shape {shape}, not {tuple(t.shape)}")
        if not bool((t >= 0).all()):
            raise InputError(f"end-times t must be at least 0 and not NaN; the smallest is {float(t.min()):g}")
        return q.log_prob(t)

    def kl(self, x: Tensor | None = None) -> Float[Tensor, "*batch"]:
        """KL(q || prior) in nats: a scalar, or (B,) if amortised; zero if nothing is learnt."""
        return self(x).kl()

    def quantile(self, u: Float[Tensor, "n *_"] | Sequence[float], x: Tensor | None = None) -> Float[Tensor, "n *batch"]:
        """Quantiles of T at the levels u in [0, 1]; u has shape (n,) or (n, B)."""
        q = self(x)
        u = torch.as_tensor(u, dtype=torch.float64, device=q.device)
        if u.shape[1:] not in ((), q.batch_shape) or u.ndim == 0:
            raise InputError(f"u must have shape (n,) or (n, *{tuple(q.batch_shape)}), not {tuple(u.shape)}")
        if not bool(((u >= 0) & (u <= 1)).all()):
            raise InputError(f"quantile levels u must lie in [0, 1], not in [{float(u.min()):g}, {float(u.max()):g}]")
        return q.quantile(u)

    def tail(self, b: float, x: Tensor | None = None) -> Float[Tensor, "*batch"]:
        """P(T > b)."""
        return self(x).tail(checked_number("b", b, "a time of at least 0", 0.0, math.inf))

    def training_times(
        self,
        n: int,
        batch: int | None = None,
        scheme: str = "iid",
        *,
        generator: torch.Generator | CounterGenerator | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Float[Tensor, "n *batch"]:
        """Draw the times at which training evaluates the likelihood; they do not depend on q.

        Args:
            n: Number of times S.
            batch: Number of inputs B; required if amortised.
            scheme: "iid" draws from Uniform(low, high) like the authors' code; "grid" draws one time in each of n equal
                sub-intervals (stratified sampling), which reduces the variance of the gradient.
            generator: Source of randomness. With a `CounterGenerator` the times depend only on seed, step and sample index.
            device: Device of the result; by default that of this module.
            dtype: Dtype of the result; by default that of this module.

        Returns:
            (S,) in ascending order, or (S, B) if amortised, independent between inputs. With "grid" every column then contains
            one time per sub-interval in random order.
        """
        n = checked_count("n", n)
        if scheme not in _SCHEMES:
            raise InputError(unknown_name("scheme of training times", scheme, _SCHEMES))
        shape: tuple[int, ...] = (n,)
        if self.amortized:
            if batch is None:
                raise InputError("an amortised end-time draws separate times for each input: pass batch=B to training_times")
            shape = (n, checked_count("batch", batch))
        like = next(self.buffers())
        device = like.device if device is None else torch.device(device)
        times = self._window_times(shape, scheme, generator, device).to(like.dtype if dtype is None else dtype)
        return times.clamp_max(self.window[1])

    def _window_times(
        self, shape: tuple[int, ...], scheme: str, generator: torch.Generator | CounterGenerator | None, device: torch.device
    ) -> Tensor:
        u = uniform_draws(shape, generator, device)
        if scheme == "grid":
            stratum = torch.arange(shape[0], dtype=torch.float64, device=device)
            if self.amortized:
                stratum = stratum[uniform_draws(shape, generator, device).argsort(0)]
            u = (stratum + u) / shape[0]
        low, high = self.window
        low = low if low > 0 else _FIRST_TIME * min(1.0, high)
        times = low + (high - low) * u
        return times if self.amortized else times.sort().values

    @torch.no_grad()
    def describe(self, x: Tensor | None = None) -> dict[str, float]:
        """Parameters, mean, quantiles and "tail" = P(T > end of the window) as floats, for logs.

        If amortised, the values are averages over the inputs ``x``.
        """
        q = self(x)
        levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
        values = {"mean": q.mean, **dict(zip(("q05", "q50", "q95"), q.quantile(levels), strict=True))}
        values["tail"] = q.tail(self.window[1])
        return {name: float(v.mean()) for name, v in {**self._named_values(q), **values}.items()}

    def _named_values(self, q: TimeDistribution) -> dict[str, Tensor]:
        """The parameters that `describe` includes."""
        return {}

    def extra_repr(self) -> str:
        """Mean, quantiles and window for the printed form; without the quantiles if they depend on the input."""
        window = f"window ({self.window[0]:g}, {self.window[1]:g})" + ("" if self.truncate else ", not truncated")
        return window if self.amortized else f"{self().summary()}, {window}"
