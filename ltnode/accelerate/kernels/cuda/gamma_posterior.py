"""Log-densities and divergence of Gamma posteriors in one kernel: the launches of gamma_posterior.cu.

The reference is `ltnode.endtime.GammaDistribution`. In torch, the same quadrature is about two hundred small operations, which on
a fast GPU take longer than the training step of the network.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import devices
from ltnode.typing import Float, Tensor

_THREADS = 128
_SHARED_BYTES = _THREADS * 8


def unsupported_reason(alpha: Tensor, times: Tensor) -> str | None:
    """Return why the kernel cannot compute the terms of these posteriors, or None."""
    if alpha.dtype != torch.float32 or times.dtype != torch.float32:
        return f"posterior and times must be float32, not {alpha.dtype} and {times.dtype}"
    return devices.unsupported_reason(alpha.device)


@dataclass(frozen=True)
class Family:
    """Properties that all posteriors of a model share.

    Attributes:
        window: Window to which the posteriors are truncated; None for T > 0.
        prior: Shape, rate and logarithm of the normaliser of the prior, float64, 0-dim.
        rule: Nodes and weights of the quadrature on (0, 1), float64 (20,).
    """

    window: tuple[float, float] | None
    prior: tuple[Tensor, Tensor, Tensor]
    rule: Tensor


def posterior_terms(
    alpha: Float[Tensor, "*batch"], beta: Float[Tensor, "*batch"], times: Float[Tensor, "S *some"], family: Family
) -> tuple[Float[Tensor, "S *batch"], Float[Tensor, "*batch"]]:
    """Return ``log_prob(times)`` and ``kl()`` of Gamma(alpha, beta), differentiable in alpha and beta.

    Args:
        alpha: Shapes, () or (B,).
        beta: Rates.
        times: End-times (S,) or (S, B); constants.
        family: Window and prior.
    """
    return _PosteriorTerms.apply(alpha, beta, times.detach(), family)


class _PosteriorTerms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, alpha: Tensor, beta: Tensor, times: Tensor, family: Family) -> tuple[Tensor, Tensor]:
        device, batch = alpha.device, alpha.numel()
        ctx.module = devices.compiled("gamma_posterior", (), device)
        log_q = torch.empty((len(times), *alpha.shape), device=device)
        kl = torch.empty(alpha.shape, device=device)
        moments = torch.empty((batch, 4), device=device, dtype=torch.float64)
        times = times.contiguous()
        ctx.common = (len(times), batch, int(times.ndim == 1), int(family.window is not None), _limits(family.window, device))
        inputs = (alpha.detach().contiguous(), beta.detach().contiguous(), times, *ctx.common, family.rule, *family.prior)
        ctx.module.launch("posterior_forward", batch, _THREADS, _SHARED_BYTES, [*inputs, log_q, kl, moments])
        ctx.save_for_backward(times, moments, kl)
        return log_q, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_log_q: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:
        times, moments, kl = ctx.saved_tensors
        d_alpha, d_beta = torch.empty_like(kl), torch.empty_like(kl)
        arguments = [times, *ctx.common, moments, kl, d_log_q.contiguous(), d_kl.contiguous(), d_alpha, d_beta]
        ctx.module.launch("posterior_backward", -(-kl.numel() // _THREADS), _THREADS, 0, arguments)
        return d_alpha, d_beta, None, None


@cache  # a captured program must not copy from the host
def _limits(window: tuple[float, float] | None, device: torch.device) -> Tensor:
    """Return the window, its logarithms, the smallest time and infinity, in the order of gamma_posterior.cu."""
    low, high = window or (0.0, math.inf)
    smallest = torch.finfo(torch.float32).tiny * 1e5
    logarithms = (math.log(t) if t > 0 else -math.inf for t in (low, high))
    return torch.tensor([low, high, *logarithms, smallest, math.inf], dtype=torch.float64, device=device)
