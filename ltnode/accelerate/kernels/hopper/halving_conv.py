"""The convolution that halves images (4x4, stride 2, padding 1) in bfloat16: the launches of halving_conv.cu.

``halving_conv(x, conv)`` is ``conv(x)`` without its bias under bfloat16 autocast, for 64 channels. Torch computes the gradient of
the weight and the convolution of small images. The reference is the layer of `torch.nn`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.cuda.patch_norm import pixels
from ltnode.accelerate.kernels.devices import Argument, CompiledModule
from ltnode.typing import Float, Tensor

_CHANNELS = 64
_FORWARD_THREADS, _BACKWARD_THREADS = 384, 512
_SMALLEST, _LARGEST = 8, 30
"""Smallest and largest side of an image."""
LARGE = 16
"""Smallest side of a large image. Torch convolves smaller images, and their input gradients take two images per block."""
WEIGHT_BYTES = 16 * _CHANNELS * _CHANNELS * 2
_PADDING, _COLUMNS = 16 * 17, 16
BUFFER_BYTES = 8 * (_PADDING + 16 * 15 * _COLUMNS) + _PADDING
"""Size of eight planes."""
OVERRUN_BYTES = 16 * _COLUMNS
"""Size of a row behind the last buffer that is read but not used."""
_SHARED_BYTES = WEIGHT_BYTES + 3 * BUFFER_BYTES + OVERRUN_BYTES


def unsupported_reason(conv: nn.Conv2d, x: Tensor) -> str | None:
    """Return why the kernels cannot replace this layer on an input x (N, C, H, W), or None."""
    if (conv.kernel_size, conv.stride, conv.padding, conv.dilation) != ((4, 4), (2, 2), (1, 1), (1, 1)):
        return "the filter must be 4 x 4 with stride 2 and padding 1"
    if (conv.in_channels, conv.out_channels, conv.groups) != (_CHANNELS, _CHANNELS, 1) or conv.padding_mode != "zeros":
        return f"there must be {_CHANNELS} channels in one group and a padding of zeros"
    if conv.weight.dtype != torch.float32 or conv.weight.stride()[2:] != (4, 1):
        return "the weight must be float32 with adjacent taps"
    if x.shape[2] != x.shape[3] or not _SMALLEST <= x.shape[2] <= _LARGEST:
        return f"images must be squares of {_SMALLEST} to {_LARGEST} rows, not {x.shape[2]} x {x.shape[3]}"
    reason = devices.unsupported_reason(x.device, shared_bytes=_SHARED_BYTES)
    return reason or (None if devices.has_warpgroup_mma(x.device) else "the device has no warpgroup MMA (wgmma)")


def halving_conv(x: Float[Tensor, "N C H W"], conv: nn.Conv2d) -> Float[Tensor, "N C P Q"]:
    """Convolve without the bias, in bfloat16 and channels last; `unsupported_reason` must return None."""
    return _HalvingConv.apply(x, conv.weight)


def _compiled(side: int, device: torch.device) -> CompiledModule:
    return devices.compiled("halving_conv", (("IN", side),), device)


def blocks_for(items: int, device: torch.device) -> int:
    """Number of blocks: one per multiprocessor, which loops over images, or pairs of them, and loads the weights once."""
    return devices.even_blocks(items, devices.multiprocessors(device))


def _packed(weight: Tensor, side: int) -> Tensor:
    """Return the weights in the layouts of the forward and the backward kernel, (2, WEIGHT_BYTES)."""
    packed = torch.empty((2, WEIGHT_BYTES), device=weight.device, dtype=torch.uint8)
    arguments: list[Argument] = [weight.detach(), weight.stride(0), weight.stride(1), packed]
    _compiled(side, weight.device).launch("pack_weights", packed.numel() // 4 // 256, 256, 0, arguments)
    return packed


def launch_forward(rows: Float[Tensor, "N H W C"], weight: Tensor) -> tuple[Float[Tensor, "N P Q C"], Tensor]:
    """Convolve rows in bfloat16 without a graph, and return the result and the packed weights."""
    batch, side, _, channels = rows.shape
    packed = _packed(weight, side)
    out = torch.empty((batch, side // 2, side // 2, channels), device=rows.device, dtype=torch.bfloat16)
    blocks = blocks_for(batch, rows.device)
    arguments: list[Argument] = [rows, packed[0], out, batch, blocks]
    _compiled(side, rows.device).launch("halving_forward", blocks, _FORWARD_THREADS, _SHARED_BYTES, arguments, long=True)
    return out, packed


class _HalvingConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = pixels(x.detach().to(torch.bfloat16))
        if rows.shape[1] < LARGE:
            packed = _packed(weight, rows.shape[1])
            rounded = weight.detach().to(dtype=torch.bfloat16, memory_format=torch.channels_last)
            out = functional.conv2d(rows.permute(0, 3, 1, 2), rounded, None, 2, 1)
        else:
            out_rows, packed = launch_forward(rows, weight)
            out = out_rows.permute(0, 3, 1, 2)
        ctx.save_for_backward(rows, packed, weight)
        ctx.dtype = x.dtype
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, packed, weight = ctx.saved_tensors
        d_rows = pixels(d_out.to(torch.bfloat16))
        d_x = d_weight = None
        if ctx.needs_input_grad[0]:
            d_x = torch.empty_like(rows)
            small = rows.shape[1] < LARGE
            blocks = blocks_for(-(-len(rows) // 2) if small else len(rows), rows.device)
            arguments: list[Argument] = [d_rows, packed[1], d_x, len(rows), blocks]
            threads = _BACKWARD_THREADS // 2 if small else _BACKWARD_THREADS
            module = _compiled(rows.shape[1], rows.device)
            module.launch("halving_backward", blocks, threads, _SHARED_BYTES, arguments, long=True)
            d_x = d_x.permute(0, 3, 1, 2).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            d_weight = weight_gradient(rows, d_rows, weight)
        return d_x, d_weight


def weight_gradient(x: Float[Tensor, "N H W C"], d_out: Float[Tensor, "N P Q C"], weight: Tensor) -> Tensor:
    """Return the gradient of the weight in float32, computed by torch from bfloat16 operands."""
    shaped = torch.empty_like(weight, dtype=x.dtype, memory_format=torch.channels_last)
    operands = (d_out.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), shaped)
    settings: tuple[Any, ...] = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    d_weight = torch.ops.aten.convolution_backward(*operands, None, *settings)[1]
    return d_weight.to(torch.float32, memory_format=torch.contiguous_format)
