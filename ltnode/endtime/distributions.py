"""Distributions over end-times; an end-time module returns one for its current parameters."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch

from ltnode.counter_rng import CounterGenerator
from ltnode.endtime.gamma import gamma_kl, log_time_panels, nodes_between
from ltnode.errors import InputError
from ltnode.typing import Float, Tensor

# Newton steps of the inverse cdf inside a panel; after 7 steps t is accurate to 1e-7 for u from 1e-6 to 1 - 1e-6.
_INVERSE_STEPS = 7


def uniform_draws(shape: tuple[int, ...], generator: torch.Generator | CounterGenerator | None, device: torch.device) -> Tensor:
    """Uniform(0, 1) draws in float64, drawn on the device of the generator so that a CPU seed works for every device."""
    if isinstance(generator, CounterGenerator):
        return generator.uniform(shape, device)
    source = device if generator is None else generator.device
    return torch.rand(shape, generator=generator, dtype=torch.float64, device=source).to(device)


class TimeDistribution(ABC):
    """A distribution over T >= 0, or a batch of independent ones.

    Attributes:
        batch_shape: () for a global end-time, (B,) for one per input.
        dtype: Dtype of all results; computations use float64.
        device: Device of the parameters.
    """

    def __init__(self, batch_shape: torch.Size, dtype: torch.dtype, device: torch.device) -> None:
        self.batch_shape = batch_shape
        self.dtype = dtype
        self.device = device

    @property
    @abstractmethod
    def mean(self) -> Float[Tensor, "*batch"]:
        """Expected end-time."""

    @abstractmethod
    def log_prob(self, t: Float[Tensor, "n *batch"]) -> Float[Tensor, "n *batch"]:
        """Log-density at t: differentiable in t and in the parameters, -inf outside of the support, never NaN.

        t = 0 is replaced by the smallest time whose logarithm has a finite gradient (1e-33 in float32).
        """

    @abstractmethod
    def _cdf(self, t: Tensor) -> Tensor:
        """P(T <= t) in float64 for t of shape (n, *batch)."""

    @abstractmethod
    def _quantile(self, u: Tensor) -> Tensor:
        """Inverse of the cdf in float64 for u of shape (n, *batch)."""

    @abstractmethod
    def kl(self) -> Float[Tensor, "*batch"]:
        """KL(q || prior) in nats, never negative; zero if nothing is learnt."""

    def cdf(self, t: Float[Tensor, "n *batch"]) -> Float[Tensor, "n *batch"]:
        """P(T <= t)."""
        return self._cdf(t).to(self.dtype)

    def tail(self, b: float) -> Float[Tensor, "*batch"]:
        """P(T > b)."""
        at = torch.full((1, *self.batch_shape), b, dtype=torch.float64, device=self.device)
        return (1 - self._cdf(at)[0]).to(self.dtype)

    def quantile(self, u: Float[Tensor, "n *_"]) -> Float[Tensor, "n *batch"]:
        """Inverse of the cdf, non-decreasing in u, differentiable in the parameters.

        Args:
            u: Levels in [0, 1], (n,) for the whole batch, or (n, *batch).
        """
        u = u.to(device=self.device, dtype=torch.float64)
        if u.ndim == 1:
            u = u.reshape(-1, *[1] * len(self.batch_shape)).expand(-1, *self.batch_shape)
        return self._quantile(u).to(self.dtype)

    @torch.no_grad()
    def sample(self, n: int, generator: torch.Generator | None = None) -> Float[Tensor, "n *batch"]:
        """Draw n independent times by inversion of the cdf; no gradient."""
        return self.quantile(uniform_draws((n, *self.batch_shape), generator, self.device))

    @torch.no_grad()
    def summary(self) -> str:
        """Mean and 5-95 % quantiles as text; averages over a batch."""
        low, high = self.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).reshape(2, -1).mean(1).tolist()
        return f"mean {self.mean.mean().item():.2f}, 5-95 % {low:.2f} to {high:.2f}"

    def __repr__(self) -> str:
        count = f"{self.batch_shape[0]} end-times, on average " if self.batch_shape else ""
        return f"{type(self).__name__}({count}{self.summary()})"


class PointDistribution(TimeDistribution):
    """A point mass at one time."""

    def __init__(self, t: Float[Tensor, ""]) -> None:
        super().__init__(t.shape, t.dtype, t.device)
        self.t = t

    @property
    def mean(self) -> Float[Tensor, ""]:
        """The time itself."""
        return self.t

    def log_prob(self, t: Float[Tensor, "n *batch"]) -> Float[Tensor, "n *batch"]:
        """Raise an error: a point mass has no density."""
        raise InputError(
            f"a fixed time has no density, so log_prob of T = {float(self.t):g} is undefined; weight its predictions "
            "equally, or use UniformTime or a Gamma posterior"
        )

    def _cdf(self, t: Tensor) -> Tensor:
        return (t.to(self.dtype) >= self.t).double()

    def _quantile(self, u: Tensor) -> Tensor:
        return self.t.double().expand_as(u)

    def kl(self) -> Float[Tensor, ""]:
        """Zero, because nothing is learnt."""
        return torch.zeros_like(self.t)


class UniformDistribution(TimeDistribution):
    """The uniform distribution on (low, high)."""

    def __init__(self, low: float, high: float, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(torch.Size(), dtype, device)
        self.low = low
        self.high = high

    @property
    def mean(self) -> Float[Tensor, ""]:
        """The middle of the interval."""
        return torch.full((), (self.low + self.high) / 2, dtype=self.dtype, device=self.device)

    def log_prob(self, t: Float[Tensor, "n *batch"]) -> Float[Tensor, "n *batch"]:
        """-log(high - low) inside, -inf outside."""
        inside = (t >= self.low) & (t <= self.high)
        flat = torch.full_like(t, -math.log(self.high - self.low), dtype=self.dtype)
        return torch.where(inside, flat, -math.inf)

    def _cdf(self, t: Tensor) -> Tensor:
        return ((t.double() - self.low) / (self.high - self.low)).clamp(0.0, 1.0)

    def _quantile(self, u: Tensor) -> Tensor:
        return self.low + (self.high - self.low) * u

    def kl(self) -> Float[Tensor, ""]:
        """Zero, because nothing is learnt."""
        return torch.zeros((), dtype=self.dtype, device=self.device)


class _LogTimeDistribution(TimeDistribution):
    """A density on panels in x = log t: integrals by quadrature, quantiles by inversion within a panel.

    Subclasses define the panel edges, (P + 1, *batch) without gradient, and the normalised log-density of x. Panels are computed
    when an integral needs them; the density and the KL of an untruncated Gamma do not.
    """

    window: tuple[float, float] | None
    prior: GammaDistribution | None
    _edges: Tensor | None = None
    _cached_nodes: tuple[Tensor, Tensor, Tensor] | None = None

    @abstractmethod
    def _log_density(self, x: Tensor, t: Tensor) -> Tensor:
        """Normalised log-density of x = log t in float64, for x and t of shape (..., *batch)."""

    @abstractmethod
    def _panel_edges(self) -> Tensor:
        """Compute the panel edges."""

    # Cached by hand, because torch.compile cannot trace the lock of functools.cached_property in Python 3.11.
    @property
    def edges(self) -> Float[Tensor, "edges *batch"]:
        """Panel edges in x = log t."""
        if self._edges is None:
            self._edges = self._panel_edges()
        return self._edges

    @property
    def _nodes(self) -> tuple[Tensor, Tensor, Tensor]:
        """Quadrature nodes x, t = e^x and weights of all panels, each (10, P, *batch)."""
        if self._cached_nodes is None:
            x, weights = nodes_between(self.edges[:-1], self.edges[1:])
            self._cached_nodes = x, torch.exp(x), weights
        return self._cached_nodes

    def _log(self, t: Tensor) -> Tensor:
        # The floor keeps the gradient of the log-density, (alpha - 1) / t, finite for alpha up to 1e4.
        return torch.log(t.double().clamp_min(torch.finfo(self.dtype).tiny * 1e5))

    def _mass(self, left: Tensor, right: Tensor) -> Tensor:
        """Probability of the intervals (left, right) of x, each within one panel; differentiable in the parameters."""
        x, weights = nodes_between(left, right)
        return (weights * torch.exp(self._log_density(x, torch.exp(x)))).sum(0)

    def _cumulative(self) -> Tensor:
        """Probability to the left of each edge, (P + 1, *batch)."""
        x, t, weights = self._nodes
        masses = (weights * torch.exp(self._log_density(x, t))).sum(0)
        return torch.cat([torch.zeros_like(masses[:1]), masses.cumsum(0)])

    def _cdf_of_log(self, x: Tensor, cumulative: Tensor) -> Tensor:
        x = torch.minimum(torch.maximum(x, self.edges[0]), self.edges[-1])
        panel = (self.edges[1:-1].unsqueeze(1) <= x).sum(0)
        return cumulative.gather(0, panel) + self._mass(self.edges.gather(0, panel), x)

    @property
    def mean(self) -> Float[Tensor, "*batch"]:
        """Expected end-time."""
        x, t, weights = self._nodes
        return (weights * torch.exp(self._log_density(x, t)) * t).sum((0, 1)).to(self.dtype)

    def log_prob(self, t: Float[Tensor, "n *batch"]) -> Float[Tensor, "n *batch"]:
        """Log-density at t; -inf outside of the window if truncated."""
        x = self._log(t)
        value = (self._log_density(x, torch.exp(x)) - x).to(self.dtype)
        low, high = self.window or (0.0, math.inf)
        # The comparison uses the dtype of t, so that a float32 time at the end of the window counts as inside.
        return torch.where((t >= low) & (t <= high), value, -math.inf)

    def kl(self) -> Float[Tensor, "*batch"]:
        """Expectation of log q - log p over the panels of q; the prior is truncated like q."""
        if self.prior is None:
            raise InputError("the KL needs a prior, but this distribution was built without a prior: pass prior=(alpha, beta)")
        x, t, weights = self._nodes
        log_q = self._log_density(x, t)
        divergence = (weights * torch.exp(log_q) * (log_q - self.prior._log_density(x, t))).sum((0, 1))
        return divergence.clamp_min(0.0).to(self.dtype)

    def _cdf(self, t: Tensor) -> Tensor:
        below = self._cdf_of_log(self._log(t), self._cumulative()).clamp(0.0, 1.0)
        # Exactly 1 at the end of the window, so that P(T > high) is exactly 0.
        return below if self.window is None else torch.where(t >= self.window[1], 1.0, below)

    def _quantile(self, u: Tensor) -> Tensor:
        cumulative = self._cumulative()
        x = self._solve(u, cumulative.detach())
        if torch.is_grad_enabled() and cumulative.requires_grad:
            # Implicit function theorem: dx = -dF / F'. The added term is zero but has this gradient.
            below = self._cdf_of_log(x, cumulative)
            density = torch.exp(self._log_density(x, torch.exp(x)).detach()).clamp_min(torch.finfo(torch.float64).tiny)
            x = x - (below - below.detach()) / density
        low, high = self.window or (0.0, math.inf)
        return torch.exp(x).clamp(low, high)

    @torch.no_grad()
    def _solve(self, u: Tensor, cumulative: Tensor) -> Tensor:
        """Solve cdf = u for log t: find the panel, then use Newton's method, with bisection if a step leaves the bracket."""
        target = u * cumulative[-1]
        panel = (cumulative[1:-1].unsqueeze(1) <= target).sum(0)
        left, right = self.edges.gather(0, panel), self.edges.gather(0, panel + 1)
        below, above = cumulative.gather(0, panel), cumulative.gather(0, panel + 1)
        mass = target - below
        tiny = torch.finfo(torch.float64).tiny
        # Start with the inverse for a density that is exponential between the ends of the panel.
        part = (mass / (above - below).clamp_min(tiny)).clamp(0.0, 1.0)
        rise = self._log_density(right, torch.exp(right)) - self._log_density(left, torch.exp(left))
        rise = torch.where(rise.abs() < 1e-6, 1e-6, rise.clamp(-50.0, 50.0))
        x = torch.lerp(left, right, (torch.log1p(part * torch.expm1(rise)) / rise).clamp(0.0, 1.0))
        low, high = left, right
        for _ in range(_INVERSE_STEPS):
            excess = self._mass(left, x) - mass
            low, high = torch.where(excess < 0, x, low), torch.where(excess < 0, high, x)
            newton = x - excess / torch.exp(self._log_density(x, torch.exp(x))).clamp_min(tiny)
            x = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
        return x


class GammaDistribution(_LogTimeDistribution):
    """Gamma(alpha, beta) with rate beta, optionally truncated to a window.

    Args:
        alpha: Positive shapes, (*batch).
        beta: Positive rates, (*batch).
        window: (low, high) with 0 <= low < high; T is conditioned on the window. None: no truncation.
        prior: The prior, or its scalar (alpha, beta), truncated to the same window.
    """

    def __init__(
        self,
        alpha: Float[Tensor, "*batch"],
        beta: Float[Tensor, "*batch"],
        window: tuple[float, float] | None = None,
        prior: tuple[Float[Tensor, ""], Float[Tensor, ""]] | GammaDistribution | None = None,
    ) -> None:
        super().__init__(alpha.shape, torch.promote_types(alpha.dtype, torch.float32), alpha.device)
        self.alpha = alpha
        self.beta = beta
        self.window = window
        self.prior = GammaDistribution(*prior, window) if isinstance(prior, tuple) else prior
        self._alpha, self._beta = alpha.double(), beta.double()
        # Computed eagerly: a lazy value that is first used under no_grad would be cached without a graph.
        if window is None:
            self._log_z = torch.lgamma(self._alpha) - self._alpha * torch.log(self._beta)
        else:
            x, t, weights = self._nodes
            self._log_z = torch.logsumexp(self._alpha * x - self._beta * t + torch.log(weights), dim=(0, 1))

    @property
    def in_float64(self) -> tuple[Float[Tensor, "*batch"], Float[Tensor, "*batch"], Float[Tensor, "*batch"]]:
        """Shape, rate, and log-normaliser of ``exp(alpha x - beta e^x)`` with x = log t."""
        return self._alpha, self._beta, self._log_z

    def _panel_edges(self) -> Tensor:
        return log_time_panels(self.alpha, self.beta, self.window or (0.0, math.inf))

    def _log_density(self, x: Tensor, t: Tensor) -> Tensor:
        return self._alpha * x - self._beta * t - self._log_z

    def kl(self) -> Float[Tensor, "*batch"]:
        """KL(q || prior): in closed form if not truncated, else by quadrature with the prior truncated to the same window."""
        if self.window is None and self.prior is not None:
            return gamma_kl(self.alpha, self.beta, self.prior.alpha, self.prior.beta).to(self.dtype)
        return super().kl()


class GammaMixtureDistribution(_LogTimeDistribution):
    """A mixture of Gammas. With a window, each component is truncated, and the weights apply to the truncated components.

    Args:
        logits: Unnormalised log-weights, (K,).
        alpha: Shapes, (K,).
        beta: Rates, (K,).
        window: See `GammaDistribution`.
        prior: See `GammaDistribution`.
    """

    def __init__(
        self,
        logits: Float[Tensor, " K"],
        alpha: Float[Tensor, " K"],
        beta: Float[Tensor, " K"],
        window: tuple[float, float] | None = None,
        prior: tuple[Float[Tensor, ""], Float[Tensor, ""]] | GammaDistribution | None = None,
    ) -> None:
        super().__init__(torch.Size(), torch.promote_types(alpha.dtype, torch.float32), alpha.device)
        self.components = GammaDistribution(alpha, beta, window)
        self.log_weights = torch.log_softmax(logits.double(), dim=0)
        self.window = window
        self.prior = GammaDistribution(*prior, window) if isinstance(prior, tuple) else prior

    def _panel_edges(self) -> Tensor:
        # Every panel of the union lies within one panel of each component, so all components are smooth on it.
        return self.components.edges.flatten().sort().values

    def _log_density(self, x: Tensor, t: Tensor) -> Tensor:
        each = self.components._log_density(x.unsqueeze(-1), t.unsqueeze(-1))
        return torch.logsumexp(self.log_weights + each, dim=-1)
