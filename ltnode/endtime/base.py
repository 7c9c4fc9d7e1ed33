"""The base class of all end-time modules: what a model, an objective and a training loop may rely on."""

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

# The training window starts here instead of at 0, where Gamma densities with alpha < 1 are infinite.
_FIRST_TIME = 1e-6
_SCHEMES = ("iid", "grid")


class EndTime(nn.Module, ABC):
    """The end-time of a neural ODE as a random variable; ``module(x)`` returns its current `TimeDistribution`.

    The methods below check their arguments and build the distribution anew at every call. Inner loops call
    ``module(x)`` once and use the distribution, which checks nothing and never waits for a device.

    Attributes:
        kind: short name of the class, for descriptions of a model; "none" unless a class says its own.
        window: (low, high), the times that training covers.
        truncate: whether T is restricted to the window.
        amortized: one end-time per input, so that every method needs ``x``; otherwise one for all inputs.
        learnable: has a learnt posterior. Otherwise all training times weigh the same and the KL is zero.

    What is not learnt (window, fixed times, interval ends) is configuration and not in the state dict; priors are.
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
        """The distribution of T, for each of the inputs ``x`` (B, ...) when amortised."""

    @property
    def horizon(self) -> float | None:
        """The largest time that a draw or quantile can reach, None when T is not truncated."""
        return self.window[1] if self.truncate else None

    def variational_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of q, for an optimiser group of their own; none when nothing is learnt."""
        return self.parameters()

    @torch.no_grad()
    def constrain_(self) -> None:
        """Put the parameters back into their valid range, in place; call it after every optimiser step."""

    def sample(self, n: int, x: Tensor | None = None, generator: torch.Generator | None = None) -> Float[Tensor, "n *batch"]:
        """Draw n independent end-times, without gradient."""
        return self(x).sample(checked_count("n", n), generator)

    def log_prob(self, t: Float[Tensor, "..."], x: Tensor | None = None) -> Float[Tensor, "..."]:
        """Log-density at t, (n,) or (n, B) when amortised; -inf outside of the window when truncated."""
        q = self(x)
        if t.ndim <= len(q.batch_shape) or t.shape[t.ndim - len(q.batch_shape) :] != q.batch_shape:
            wanted = f"(n, {q.batch_shape[0]}), n times for each input" if self.amortized else "(n,)"
            raise InputError(f"t must have shape {wanted}, got {tuple(t.shape)}.")
        if not bool((t >= 0).all()):
            raise InputError(f"end-times t must be at least 0 and not NaN, got {float(t.min()):g} as the smallest.")
        return q.log_prob(t)

    def kl(self, x: Tensor | None = None) -> Float[Tensor, "*batch"]:
        """KL(q || prior) in nats: one number, or (B,) when amortised; zero when nothing is learnt."""
        return self(x).kl()

    def quantile(self, u: Float[Tensor, "n *_"] | Sequence[float], x: Tensor | None = None) -> Float[Tensor, "n *batch"]:
        """End-times below which T falls with probability u in [0, 1]; u has shape (n,) or (n, B)."""
        q = self(x)
        u = torch.as_tensor(u, dtype=torch.float64, device=q.device)
        if u.shape[1:] not in ((), q.batch_shape) or u.ndim == 0:
            raise InputError(f"u must have shape (n,) or (n, *{tuple(q.batch_shape)}), got {tuple(u.shape)}.")
        if not bool(((u >= 0) & (u <= 1)).all()):
            raise InputError(f"quantile levels u must lie in [0, 1], got {float(u.min()):g} to {float(u.max()):g}.")
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
        """Times on the window at which training evaluates the likelihood, independent of q.

        Args:
            n: number of times S.
            batch: number of inputs B, needed when amortised.
            scheme: "iid" draws Uniform(low, high) as the authors' code does; "grid" draws one time in each of n equal
                sub-intervals (stratified), which lowers the variance of the gradient.
            generator: source of randomness; with a `CounterGenerator` a function of (seed, step[, sample index]) alone.
            device: of the result; by default where this module lives.
            dtype: of the result; by default this module's.

        Returns:
            (S,) ascending; when amortised (S, B), independent between inputs, where with "grid" every column holds
            one time per sub-interval in random order.
        """
        n = checked_count("n", n)
        if scheme not in _SCHEMES:
            raise InputError(unknown_name("scheme of training times", scheme, _SCHEMES))
        shape: tuple[int, ...] = (n,)
        if self.amortized:
            if batch is None:
                raise InputError("an amortised end-time has its own times for each input: pass batch=B to training_times.")
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
        """Plain numbers for logs: parameters, mean, quantiles, and "tail" = P(T > end of the window).

        When amortised, averages over the inputs ``x``.
        """
        q = self(x)
        levels = torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
        values = {"mean": q.mean, **dict(zip(("q05", "q50", "q95"), q.quantile(levels), strict=True))}
        values["tail"] = q.tail(self.window[1])
        return {name: float(v.mean()) for name, v in {**self._named_values(q), **values}.items()}

    def _named_values(self, q: TimeDistribution) -> dict[str, Tensor]:
        """The parameters that `describe` lists."""
        return {}

    def extra_repr(self) -> str:
        """The configuration, for printing a model."""
        low, high = self.window
        return f"window=({low:g}, {high:g}), truncate={self.truncate}"
