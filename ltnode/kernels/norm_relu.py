"""Autograd around the fused GroupNorm + ReLU (+ mean over positions), and a way to run a Sequential with it.

The reference is the same layers of `torch.nn`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ltnode.typing import Float, Tensor

_BLOCK = 64


def norm_relu(x: Float[Tensor, "N C H W"], norm: nn.GroupNorm, pool: bool = False) -> Tensor:
    """``relu(norm(x))`` in the dtype of x, channels last; with ``pool`` its mean over positions, (N, C) float32."""
    return _NormRelu.apply(x, norm.weight, norm.bias, norm.num_groups, norm.eps, pool)


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float, pool: bool) -> Tensor:
        from ltnode.kernels.norm_relu_triton import norm_relu_forward

        samples, channels, height, width = x.shape
        rows = x.detach().permute(0, 2, 3, 1).contiguous()
        out = torch.empty((samples, channels), device=x.device) if pool else torch.empty_like(rows)
        means = torch.empty((samples, channels), device=x.device)
        rstds = torch.empty_like(means)
        norm_relu_forward[(samples,)](
            rows,
            scale.detach(),
            shift.detach(),
            out,
            means,
            rstds,
            height * width,
            eps,
            POOL=pool,
            BLOCK=_BLOCK,
            CHANNELS=channels,
            GROUPS=groups,
            num_warps=4,
        )
        ctx.save_for_backward(rows, scale.detach(), shift.detach(), means, rstds)
        ctx.groups, ctx.pool = groups, pool
        return out if pool else out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from ltnode.kernels.norm_relu_triton import norm_relu_backward

        rows, scale, shift, means, rstds = ctx.saved_tensors
        samples, height, width, channels = rows.shape
        d_rows = torch.empty_like(rows)
        d_affine = torch.empty((samples, 2, channels), device=rows.device)
        given = d_out.contiguous() if ctx.pool else d_out.permute(0, 2, 3, 1).contiguous()
        norm_relu_backward[(samples,)](
            rows,
            scale,
            shift,
            means,
            rstds,
            given,
            d_rows,
            d_affine,
            height * width,
            POOL=ctx.pool,
            BLOCK=_BLOCK,
            CHANNELS=channels,
            GROUPS=ctx.groups,
            num_warps=4,
        )
        d_scale, d_shift = d_affine.sum(dim=0)
        return d_rows.permute(0, 3, 1, 2), d_scale, d_shift, None, None, None


def run_fused(layers: nn.Sequential, x: Tensor) -> Tensor:
    """The Sequential on x, with GroupNorm-ReLU pairs, and the pooling after one, in fused kernels."""
    modules = list(layers)
    i = 0
    while i < len(modules):
        layer = modules[i]
        following = modules[i + 1 : i + 4]
        if isinstance(layer, nn.GroupNorm) and following and isinstance(following[0], nn.ReLU):
            pool = len(following) == 3 and _is_global_mean(following[1]) and isinstance(following[2], nn.Flatten)
            x = norm_relu(x, layer, pool)
            i += 4 if pool else 2
        else:
            x = layer(x)
            i += 1
    return x


def _is_global_mean(layer: nn.Module) -> bool:
    return isinstance(layer, nn.AdaptiveAvgPool2d) and layer.output_size in (1, (1, 1))
