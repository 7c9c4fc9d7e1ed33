"""GroupNorm followed by ReLU: the launches of norm_relu.cu, or the layers of torch, which are the reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.cuda.patch_norm import pixels
from ltnode.accelerate.kernels.devices import Argument, Defines
from ltnode.typing import Float, Tensor

_CHANNELS_PER_BLOCK, _LARGEST_IMAGE = 16, 1024


def unsupported_reason(x: Tensor, norm: nn.GroupNorm, bias: Tensor | None = None) -> str | None:
    """Return why the kernels cannot compute ``relu(norm(x + bias))`` for x (N, C, H, W), or None."""
    if x.dtype not in (torch.float32, torch.bfloat16):
        return f"the input must be float32 or bfloat16, not {x.dtype}"
    if norm.num_channels != 2 * norm.num_groups or norm.num_channels % _CHANNELS_PER_BLOCK:
        return f"the norm must have two channels per group and a multiple of {_CHANNELS_PER_BLOCK} channels"
    if x.shape[2] * x.shape[3] > _LARGEST_IMAGE:
        return f"the images have {x.shape[2] * x.shape[3]} positions, and the kernels hold {_LARGEST_IMAGE} in registers"
    parameters = [norm.weight, norm.bias, *([] if bias is None else [bias])]
    if any(p is None or p.dtype != torch.float32 or not p.is_contiguous() or p.data_ptr() % 16 for p in parameters):
        return "scale, shift and bias must exist and be float32, contiguous and aligned to 16 bytes"
    return devices.unsupported_reason(x.device, capability=(8, 0))


def norm_relu(x: Float[Tensor, "N C H W"], norm: nn.GroupNorm, bias: Float[Tensor, " C"] | None = None) -> Tensor:
    """Return ``relu(norm(x + bias))`` in the dtype of x and channels last; the layers serve where the kernels cannot."""
    if unsupported_reason(x, norm, bias) is None:
        return _NormRelu.apply(x, bias, norm.weight, norm.bias, norm.eps)
    shifted = x if bias is None else x + bias[:, None, None]
    return functional.relu(norm(shifted)).to(x.dtype)


def _launch(name: str, x: Float[Tensor, "N H W C"], biased: bool, arguments: Sequence[Argument]) -> None:
    samples, height, width, channels = x.shape
    positions = height * width
    threads = 128 if positions <= 256 else 256
    sizes: Defines = (("THREADS", threads), ("POSITIONS", positions), ("CHANNELS", channels))
    defines = (*sizes, ("BIAS", int(biased)), ("FLOAT32", int(x.dtype == torch.float32)))
    warps, sums = threads // 32, 3
    blocks, shared_bytes = samples * (channels // _CHANNELS_PER_BLOCK), 4 * sums * warps * _CHANNELS_PER_BLOCK
    devices.compiled("norm_relu", defines, x.device).launch(name, blocks, threads, shared_bytes, arguments, long=True)


class _NormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        rows = pixels(x.detach())
        out = torch.empty_like(rows)
        means, rstds = torch.empty((2, *x.shape[:2]), device=x.device)
        # Without a bias the kernel does not read this argument; any tensor can take its place.
        inputs = (rows, (shift if bias is None else bias).detach(), scale.detach(), shift.detach())
        ctx.biased = bias is not None
        _launch("norm_relu_forward", rows, ctx.biased, [*inputs, float(eps), out, means, rstds])
        ctx.save_for_backward(*inputs, means, rstds)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        rows = ctx.saved_tensors[0]
        d_rows = torch.empty_like(rows)
        d_affine = torch.empty((rows.shape[0], 3 if ctx.biased else 2, rows.shape[3]), device=rows.device)
        _launch("norm_relu_backward", rows, ctx.biased, [*ctx.saved_tensors, pixels(d_out), d_rows, d_affine])
        d_scale, d_shift, *d_bias = d_affine.sum(dim=0)
        return d_rows.permute(0, 3, 1, 2), d_bias[0] if ctx.biased else None, d_scale, d_shift, None
