"""A convolution of images with few channels as a matrix product, in bfloat16.

``patch_conv(x, weight)`` is ``functional.conv2d(x, weight)``. A network's first layer reads three channels or one, for which the
library's convolutions have no good kernels: written out, the neighbourhoods are a matrix with a few dozen columns, and both the
result and the weight's gradient are products with it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.kernels import nvrtc
from ltnode.typing import Tensor

_THREADS = 256
_MOST_COLUMNS = 32


def why_not(layer: nn.Conv2d, x: Tensor) -> str | None:
    """Why the product cannot replace this layer on this input; None where it can."""
    if x.requires_grad:
        return "the input needs a gradient"
    if not x.is_cuda or x.dtype != torch.bfloat16:
        return f"the input is {x.dtype} on {x.device.type}"
    if math.prod(layer.weight.shape[1:]) > _MOST_COLUMNS:
        return f"a neighbourhood has more than {_MOST_COLUMNS} values"
    regular = layer.kernel_size[0] == layer.kernel_size[1] and layer.groups == 1
    if not regular or {*layer.stride, *layer.dilation} != {1} or layer.padding not in (0, (0, 0)):
        return "the kernel is not square, or there are strides, dilation, padding or groups"
    return nvrtc.why_unavailable()


def patch_conv(x: Tensor, weight: Tensor) -> Tensor:
    """The convolution of x (N, C, H, W) with a weight (O, C, k, k), bfloat16 and channels last; no gradient for x."""
    return _PatchConv.apply(x, weight)


def write_patches(x: Tensor, size: int, kernels: nvrtc.Kernels) -> Tensor:
    """Neighbourhoods (N, H - size + 1, W - size + 1, columns) of x (N, H, W, C), zeros beyond the last value."""
    samples, height, width, channels = x.shape
    rows = x.new_empty((samples, height - size + 1, width - size + 1, _columns(channels, size)))
    threads = rows.numel() // 8
    kernels.launch("patches", -(-threads // _THREADS), _THREADS, 0, [x, rows, threads])
    return rows


def defines(x: Tensor, size: int) -> tuple[tuple[str, int], ...]:
    """What the kernel is compiled for, from x (N, H, W, C)."""
    _, height, width, channels = x.shape
    columns = _columns(channels, size)
    return (("HEIGHT", height), ("WIDTH", width), ("CHANNELS", channels), ("SIZE", size), ("COLUMNS", columns))


def _columns(channels: int, size: int) -> int:
    """Values of a neighbourhood, up to a multiple of 16: what the products want."""
    return math.ceil(channels * size**2 / 16) * 16


def _compiled_for(x: Tensor, size: int) -> nvrtc.Kernels:
    device = torch.cuda.current_device() if x.device.index is None else x.device.index
    return nvrtc.compiled("patches", defines(x, size), device)


class _PatchConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        images = x.detach().permute(0, 2, 3, 1).contiguous()
        size = weight.shape[2]
        rows = write_patches(images, size, _compiled_for(images, size))
        matrix = weight.detach().permute(0, 2, 3, 1).flatten(1)
        ctx.save_for_backward(rows)
        ctx.shape = weight.shape
        out = rows.flatten(0, 2) @ functional.pad(matrix, (0, rows.shape[3] - matrix.shape[1])).mT
        return out.unflatten(0, rows.shape[:3]).permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[None, Tensor]:
        (rows,) = ctx.saved_tensors
        out, channels, size, _ = ctx.shape
        d = d_out.permute(0, 2, 3, 1).reshape(-1, out)
        d_matrix = d.mT @ rows.flatten(0, 2)
        return None, d_matrix[:, : channels * size**2].unflatten(1, (size, size, channels)).permute(0, 3, 1, 2)
