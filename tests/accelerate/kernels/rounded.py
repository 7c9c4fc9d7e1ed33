"""The convolutional field in float64 layers, rounded to bfloat16 in the same places as in the fused kernels.

The kernels must agree closely with this field, but with the field without rounding only within the rounding itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ltnode.models.images import ConvField


def rounded(x: Tensor) -> Tensor:
    """Round to bfloat16 and back."""
    return x.to(torch.bfloat16).to(x.dtype)


class _Round(torch.autograd.Function):
    """Rounds in the forward pass; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return rounded(x)

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return d


class _RoundGradient(torch.autograd.Function):
    """Leaves the forward pass unchanged and rounds the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> Tensor:
        return rounded(d)


class _Norm(torch.autograd.Function):
    """GroupNorm, with or without ReLU, whose backward pass uses rounded normalised values."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, scale: Tensor, shift: Tensor, groups: int, relu: bool) -> Tensor:
        x = functional.group_norm(z, groups)
        grouped = z.reshape(z.shape[0], groups, -1)
        rstd = (grouped.var(dim=2, unbiased=False) + 1e-5).rsqrt()
        ctx.save_for_backward(rounded(x), rstd, scale, shift)
        ctx.groups, ctx.relu = groups, relu
        y = x * scale[:, None, None] + shift[:, None, None]
        return y.clamp_min(0) if relu else y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, rstd, scale, shift = ctx.saved_tensors
        if ctx.relu:
            d = torch.where(x * scale[:, None, None] + shift[:, None, None] > 0, d, 0)
        d_scale, d_shift = (d * x).sum(dim=(0, 2, 3)), d.sum(dim=(0, 2, 3))
        shape = (x.shape[0], ctx.groups, -1)
        dn, n = (d * scale[:, None, None]).reshape(shape), x.reshape(shape)
        dz = rstd[..., None] * (dn - dn.mean(dim=2, keepdim=True) - n * (dn * n).mean(dim=2, keepdim=True))
        return dz.reshape(x.shape), d_scale, d_shift, None, None


class RoundedField(ConvField):
    """`ConvField` with the rounding of the fused bfloat16 kernels."""

    def forward(self, t: Tensor, h: Tensor) -> Tensor:
        """Return dh/dt at time t."""
        for norm, convolution in ((self.norm1, self.conv1), (self.norm2, self.conv2)):
            a = _Norm.apply(h, norm.weight, norm.bias, norm.num_groups, True)
            weight = convolution.conv.weight
            ones = torch.ones(1, 1, *h.shape[2:], dtype=weight.dtype, device=h.device)
            shift = t * functional.conv2d(ones, weight[:, :1], padding=1)
            z = functional.conv2d(_Round.apply(a), _Round.apply(weight[:, 1:]), convolution.conv.bias, padding=1) + shift
            h = _RoundGradient.apply(z)
        return _Norm.apply(h, self.norm3.weight, self.norm3.bias, self.norm3.num_groups, False)
