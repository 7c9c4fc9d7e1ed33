"""Gamma functions missing in torch: a KL divergence that is stable near zero, and integrals over a window of end-times.

torch provides neither the derivative of the incomplete gamma function in its shape nor its inverse, so normaliser, moments,
cdf and quantiles of a truncated Gamma are computed by Gauss-Legendre quadrature. The variable is x = log t, in which the
density of Gamma(alpha, beta) is proportional to ``exp(alpha x - beta e^x)``: smooth and log-concave for every alpha > 0,
without the pole at t = 0 for alpha < 1. For large alpha the density has a peak of width ``alpha^-1/2``, for small alpha a left
tail of length ``1 / alpha``; the panels adapt to both.

All computations use float64 whatever the dtype of the network: a posterior has few parameters, and differences of log-gamma
functions cancel.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch

from ltnode.typing import Float, Tensor

# 12 panels with 10 nodes give the log-normaliser to 2e-12 for alpha and beta from 1e-3 to 1e4.
_PANELS = 12
_NODES = 10
_KL_NODES = 6
# Panels end where the density is exp(-40) = 4e-18 of its maximum inside the window.
_LOG_DROP = 40.0
# x = centre + 2 sinh(u / 2): nearly uniform panels around the peak, exponentially longer ones in the left tail.
_STRETCH = 2.0


def _unit_rule(n: int) -> tuple[list[float], list[float]]:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return ((nodes + 1) / 2).tolist(), (weights / 2).tolist()


_RULES = {n: _unit_rule(n) for n in (_KL_NODES, _NODES)}


def _new_rule(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = (torch.tensor(v, dtype=torch.float64, device=device) for v in _RULES[n])
    return nodes, weights


@functools.cache
def _cached_rule(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    # Cached per device: a copy from the host would synchronise, and cannot be captured in a CUDA graph.
    with torch.inference_mode(False):  # autograd cannot use tensors that were created in inference mode
        return _new_rule(n, device)


def _legendre(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights of Gauss-Legendre quadrature on (0, 1), each (n,)."""
    # Tensors created during tracing are fake and must not be cached.
    return _new_rule(n, device) if torch.compiler.is_compiling() else _cached_rule(n, device)


@functools.cache
def quadrature_rule(device: torch.device) -> Float[Tensor, " twice_nodes"]:
    """Nodes of the panel quadrature on (0, 1), followed by the weights, for a GPU kernel that integrates itself."""
    return torch.cat(_new_rule(_NODES, device))


def gamma_kl(
    alpha_q: Float[Tensor, "..."] | float,
    beta_q: Float[Tensor, "..."] | float,
    alpha_p: Float[Tensor, "..."] | float,
    beta_p: Float[Tensor, "..."] | float,
) -> Float[Tensor, "..."]:
    """KL(Gamma(alpha_q, beta_q) || Gamma(alpha_p, beta_p)) in nats, element-wise with broadcasting.

    With d = alpha_p - alpha_q and e = beta_p / beta_q - 1 (shapes alpha, rates beta, all positive):

        KL = [lgamma(alpha_p) - lgamma(alpha_q) - d digamma(alpha_q)] + alpha_q [e - log(1 + e)] - d log(1 + e)

    For small d the first bracket is a difference of nearly equal numbers, and is computed as the equivalent integral
    ``d^2 int_0^1 (1 - s) trigamma(alpha_q + s d) ds``. The result has full relative accuracy up to q == p, is never
    negative, and is differentiable in all four arguments. It is computed in float64, and has the promoted dtype of the arguments.
    """
    tensors = [v for v in (alpha_q, beta_q, alpha_p, beta_p) if isinstance(v, Tensor)]
    dtype = functools.reduce(torch.promote_types, (v.dtype for v in tensors)) if tensors else torch.get_default_dtype()
    device = tensors[0].device if tensors else torch.device("cpu")
    a_q, b_q, a_p, b_p = (torch.as_tensor(v, dtype=torch.float64, device=device) for v in (alpha_q, beta_q, alpha_p, beta_p))

    d = a_p - a_q
    near = d.abs() < 0.1 * a_q
    s, w = (v.reshape(-1, *[1] * d.ndim) for v in _legendre(_KL_NODES, device))
    d_near = torch.where(near, d, 0.0)  # the unused branch must stay finite, or its gradient would be NaN
    integral = d_near**2 * (w * (1 - s) * torch.polygamma(1, a_q + s * d_near)).sum(0)
    shape = torch.where(near, integral, torch.lgamma(a_p) - torch.lgamma(a_q) - d * torch.digamma(a_q))

    e = (b_p - b_q) / b_q
    close = e.abs() < 0.5
    log_ratio = torch.where(close, torch.log1p(torch.where(close, e, 0.0)), torch.log(b_p) - torch.log(b_q))
    return (shape + a_q * (e - log_ratio) - d * log_ratio).clamp_min(0.0).to(dtype)


@torch.no_grad()
def log_time_panels(
    alpha: Float[Tensor, "*batch"], beta: Float[Tensor, "*batch"], window: tuple[float, float]
) -> Float[Tensor, "edges *batch"]:
    """Ascending edges, (13, *batch), of panels in x = log t on which Gamma(alpha, beta) restricted to ``window`` is smooth.

    The panels cover the part of the window (low, high), 0 <= low < high <= inf, where the density of x exceeds exp(-40) of
    its maximum in the window. The edges have no gradient: an integral does not depend on the position of its nodes, so its
    derivative is the quadrature of the derivative.
    """
    alpha, beta = alpha.double(), beta.double()
    peak = torch.log(alpha) - torch.log(beta)
    low, high = (math.log(t) if t > 0 else -math.inf for t in window)

    # With y = x - peak the log-density is -alpha (e^y - 1 - y). Both ends solve e^y - 1 - y = drop by Newton's method,
    # starting outside. The function is convex, so stopping early makes the panels too wide but never too narrow.
    best = torch.zeros_like(peak).clamp(low - peak, high - peak)
    drop = torch.expm1(best) - best + _LOG_DROP / alpha
    slope = alpha * torch.expm1(best)  # nonzero if the peak is outside of the window; the tangent is then a bound
    tiny = torch.finfo(torch.float64).tiny
    right = torch.minimum((2 * drop).sqrt(), 1 + torch.log1p(2 * drop))
    right = torch.minimum(right, best + _LOG_DROP / slope.clamp_min(tiny))
    left = torch.minimum((2 * drop).sqrt() + drop, _LOG_DROP / (-slope).clamp_min(tiny) - best)
    for _ in range(2):
        growth, decay = torch.expm1(right), torch.expm1(-left)
        right = right - (growth - right - drop) / growth
        left = left + (decay + left - drop) / decay

    # For alpha < 1 the density bends at beta t = 1, to the right of its peak; the panels are finest around this point.
    shift = torch.log(alpha).clamp_max(0.0)
    first = torch.asinh((torch.maximum(-left, low - peak) + shift) / _STRETCH)
    last = torch.asinh((torch.minimum(right, high - peak) + shift) / _STRETCH)
    steps = torch.linspace(0.0, 1.0, _PANELS + 1, dtype=torch.float64, device=alpha.device)
    steps = steps.reshape(-1, *[1] * alpha.ndim)
    return peak - shift + _STRETCH * torch.sinh(torch.lerp(first, last, steps))


def nodes_between(
    left: Float[Tensor, "*points"], right: Float[Tensor, "*points"]
) -> tuple[Float[Tensor, "nodes *points"], Float[Tensor, "nodes *points"]]:
    """Gauss-Legendre nodes and weights for integrals from ``left`` to ``right``, each (10, *points)."""
    nodes, weights = (v.reshape(-1, *[1] * left.ndim) for v in _legendre(_NODES, left.device))
    width = right - left
    return left + width * nodes, width * weights
