"""Log-densities and divergence of Gamma posteriors in one kernel; the reference is `ltnode.endtime.GammaDistribution`.

The same quadrature in torch is some two hundred small operations, which cost more than the network's own step on a fast card.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import nvrtc
from ltnode.typing import Float, Tensor

_THREADS = 128
_SHARED_BYTES = _THREADS * 8
Compiled = Callable[[torch.device], nvrtc.Kernels]


def why_not(alpha: Tensor, times: Tensor) -> str | None:
    """Why the kernel cannot serve; None where it can."""
    if alpha.device.type != "cuda" or alpha.dtype != torch.float32 or times.dtype != torch.float32:
        return "posterior and times must be float32 on CUDA"
    return nvrtc.why_unavailable()


def _compiled_for(device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("gamma_posterior", (), device)


@dataclass(frozen=True)
class Family:
    """What the posteriors have in common.

    Attributes:
        window: They are truncated to it; None: T > 0.
        prior: Shape, rate and logarithm of the normaliser of the prior, float64, 0-dim.
        rule: Nodes and weights of the quadrature on (0, 1), float64 (20,).
    """

    window: tuple[float, float] | None
    prior: tuple[Tensor, Tensor, Tensor]
    rule: Tensor


def posterior_terms(
    alpha: Float[Tensor, "*batch"],
    beta: Float[Tensor, "*batch"],
    times: Float[Tensor, "S *some"],
    family: Family,
    compiled: Compiled = _compiled_for,
) -> tuple[Float[Tensor, "S *batch"], Float[Tensor, "*batch"]]:
    """``log_prob(times)`` and ``kl()`` of Gamma(alpha, beta); differentiable in alpha and beta.

    Args:
        alpha: Shapes, () or (B,).
        beta: Rates.
        times: (S,), or (S, B); constants.
        family: Window and prior.
        compiled: Gives the compiled functions for a device.
    """
    return _PosteriorTerms.apply(alpha, beta, times.detach(), family, compiled(alpha.device))


class _PosteriorTerms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, alpha: Tensor, beta: Tensor, times: Tensor, family: Family, kernels: nvrtc.Kernels
    ) -> tuple[Tensor, Tensor]:
        device, batch = alpha.device, alpha.numel()
        log_q = torch.empty((len(times), *alpha.shape), device=device)
        kl = torch.empty(alpha.shape, device=device)
        moments = torch.empty((batch, 4), device=device, dtype=torch.float64)
        times = times.contiguous()
        common = (len(times), batch, int(times.ndim == 1), int(family.window is not None), _limits(family.window, device))
        given = (alpha.detach().contiguous(), beta.detach().contiguous(), times, *common, family.rule, *family.prior)
        kernels.launch("posterior_forward", batch, _THREADS, _SHARED_BYTES, [*given, log_q, kl, moments])
        ctx.save_for_backward(times, moments, kl)
        ctx.common, ctx.kernels = common, kernels
        return log_q, kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_log_q: Tensor, d_kl: Tensor) -> tuple[Tensor | None, ...]:
        times, moments, kl = ctx.saved_tensors
        d_alpha, d_beta = torch.empty_like(kl), torch.empty_like(kl)
        arguments = [times, *ctx.common, moments, kl, d_log_q.contiguous(), d_kl.contiguous(), d_alpha, d_beta]
        ctx.kernels.launch("posterior_backward", -(-kl.numel() // _THREADS), _THREADS, 0, arguments)
        return d_alpha, d_beta, None, None, None


@cache
def _limits(window: tuple[float, float] | None, device: torch.device) -> Tensor:
    """Low, high, their logarithms, the smallest time that counts, infinity; kept, since a captured program cannot copy them."""
    low, high = window or (0.0, math.inf)
    smallest = torch.finfo(torch.float32).tiny * 1e5
    logarithms = (math.log(t) if t > 0 else -math.inf for t in (low, high))
    return torch.tensor([low, high, *logarithms, smallest, math.inf], dtype=torch.float64, device=device)
