"""Autograd around the fused GroupNorm + ReLU (+ mean over positions), and a way to run a Sequential with it.

The reference is the same layers of `torch.nn`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.kernels import patch_conv
from ltnode.typing import Float, Tensor

_LARGEST_PART = 32768
"""Numbers of a sample that one program holds in the registers of at most 16 warps."""
_BACKWARD_TILE = 4096
"""Numbers that a program of the backward kernel works on at a time."""


def norm_relu(
    x: Float[Tensor, "N C H W"], norm: nn.GroupNorm, pool: bool = False, bias: Float[Tensor, " C"] | None = None
) -> Tensor:
    """``relu(norm(x + bias))`` in the dtype of x, channels last; with ``pool`` its mean over positions, (N, C) float32.

    Images too large for the registers, and norms without scale and shift or with a number of channels a group that is no
    power of two, go through the layers.
    """
    block = _channel_block(norm, x.shape[2] * x.shape[3])
    if block is not None:
        return _NormRelu.apply(x, bias, norm.weight, norm.bias, norm.num_groups, norm.eps, pool, block)
    shifted = x if bias is None else x + bias.to(x.dtype)[:, None, None]
    a = functional.relu(norm(shifted))
    return a.mean(dim=(2, 3), dtype=torch.float32) if pool else a.to(x.dtype)


def _channel_block(norm: nn.GroupNorm, positions: int) -> int | None:
    """Channels of a program: whole groups, and at least 16 where the registers hold them; None where the kernels do not fit."""
    per_group = norm.num_channels // norm.num_groups
    if not norm.affine or per_group & (per_group - 1):
        return None
    tile = power_of_two(positions)
    block = per_group
    while norm.num_channels % (2 * block) == 0 and (2 * block * tile <= _LARGEST_PART // 2 or block < 16) and block < 32:
        block *= 2
    return block if block * tile <= _LARGEST_PART else None


def power_of_two(n: int) -> int:
    """The smallest that is at least n."""
    return 1 << (n - 1).bit_length()


def _sizes(channels: int, groups: int, tile: int, block: int, per_thread: int) -> dict[str, int]:
    """What a kernel is compiled for, with so many numbers of its tile per thread."""
    warps = min(max(tile * block // (32 * per_thread), 1), 16)
    return {"CHANNELS": channels, "PER_GROUP": channels // groups, "TILE": tile, "BLOCK": block, "num_warps": warps}


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        bias: Tensor | None,
        scale: Tensor,
        shift: Tensor,
        groups: int,
        eps: float,
        pool: bool,
        block: int,
    ) -> Tensor:
        from ltnode.kernels.norm_relu_triton import norm_relu_forward

        samples, channels, height, width = x.shape
        rows = x.detach().permute(0, 2, 3, 1).contiguous()
        out = torch.empty((samples, channels), device=x.device) if pool else torch.empty_like(rows)
        means = torch.empty((samples, channels), device=x.device)
        rstds = torch.empty_like(means)
        # Without a bias the kernel reads none; any tensor can stand in its place.
        tensors = (rows, (shift if bias is None else bias).detach(), scale.detach(), shift.detach())
        sizes = _sizes(channels, groups, power_of_two(height * width), block, per_thread=64)
        norm_relu_forward[(channels // block * samples,)](
            *tensors, out, means, rstds, height * width, eps, POOL=pool, BIAS=bias is not None, **sizes
        )
        ctx.save_for_backward(*tensors, means, rstds)
        ctx.biased, ctx.pool, ctx.groups, ctx.block = bias is not None, pool, groups, block
        return out if pool else out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from ltnode.kernels.norm_relu_triton import norm_relu_backward

        rows = ctx.saved_tensors[0]
        samples, height, width, channels = rows.shape
        d_rows = torch.empty_like(rows)
        d_affine = torch.empty((samples, 3 if ctx.biased else 2, channels), device=rows.device)
        given = d_out.contiguous() if ctx.pool else d_out.permute(0, 2, 3, 1).contiguous()
        tile = min(power_of_two(height * width), max(_BACKWARD_TILE // ctx.block, 1))
        sizes = _sizes(channels, ctx.groups, tile, ctx.block, per_thread=16)
        norm_relu_backward[(channels // ctx.block * samples,)](
            *ctx.saved_tensors, given, d_rows, d_affine, height * width, POOL=ctx.pool, BIAS=ctx.biased, **sizes
        )
        d_scale, d_shift, *d_bias = d_affine.sum(dim=0)
        return d_rows.permute(0, 3, 1, 2), d_bias[0] if ctx.biased else None, d_scale, d_shift, None, None, None, None


def run_fused(layers: nn.Sequential, x: Tensor) -> Tensor:
    """The Sequential on x, with GroupNorm-ReLU pairs, the bias before and the pooling after one, in fused kernels.

    A convolution's bias that no pair takes over is added in its own precision: under autocast that gives the cast for nothing.
    """
    modules = list(layers)
    bias: Tensor | None = None
    i = 0
    while i < len(modules):
        layer, following = modules[i], modules[i + 1 : i + 4]
        if isinstance(layer, nn.GroupNorm) and following and isinstance(following[0], nn.ReLU):
            pool = is_pooling(following[1:])
            x, bias = norm_relu(x, layer, pool, bias), None
            i += 4 if pool else 2
            continue
        if bias is not None:
            x, bias = x + bias[:, None, None], None
        if isinstance(layer, nn.Conv2d) and layer.padding_mode == "zeros":
            x, bias = _convolve(layer, x), layer.bias
        else:
            x = layer(x)
        i += 1
    return x if bias is None else x + bias[:, None, None]


def _convolve(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The convolution without its bias; one copy brings the weight to autocast's precision and to channels last."""
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else layer.weight.dtype
    weight = layer.weight.to(dtype=dtype, memory_format=torch.channels_last)
    x = x.to(dtype)
    if patch_conv.why_not(layer, x) is None:
        return patch_conv.patch_conv(x, weight)
    return functional.conv2d(x, weight, None, layer.stride, layer.padding, layer.dilation, layer.groups)


def is_pooling(layers: list[nn.Module]) -> bool:
    """Whether these two layers take the mean over all positions, (N, C, H, W) to (N, C)."""
    if len(layers) != 2 or not isinstance(layers[0], nn.AdaptiveAvgPool2d) or not isinstance(layers[1], nn.Flatten):
        return False
    return layers[0].output_size in (1, (1, 1)) and (layers[1].start_dim, layers[1].end_dim) in ((1, -1), (1, 3))
