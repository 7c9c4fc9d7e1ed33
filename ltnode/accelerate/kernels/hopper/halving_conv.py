"""The 4x4 convolution that halves images, in bfloat16 on warpgroups: one kernel forward, one for the gradient of its input.

``halving_conv(x, conv)`` is ``conv(x)`` without its bias under bfloat16 autocast, for 64 channels, stride 2 and a border of one.
The gradient of its weight is torch's, and so is the convolution of small images. The reference is the layer of `torch.nn`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ltnode.accelerate.kernels import nvrtc
from ltnode.accelerate.kernels.cuda.patch_norm import pixels
from ltnode.typing import Float, Tensor

_CHANNELS = 64
_FORWARD_THREADS, _BACKWARD_THREADS = 384, 512
_SMALLEST, _LARGEST = 8, 30
"""Sides of images."""
LARGE = 16
"""Smallest side of a large one. Backward a block takes two of the others at a time; forward these are left to torch."""
KERNEL_BYTES = 16 * _CHANNELS * _CHANNELS * 2
_BORDER, _COLUMNS = 16 * 17, 16
BUFFER_BYTES = 8 * (_BORDER + 16 * 15 * _COLUMNS) + _BORDER
"""Of eight planes."""
UNUSED_BYTES = 16 * _COLUMNS
"""A row that is read and not used."""
_SHARED_BYTES = KERNEL_BYTES + 3 * BUFFER_BYTES + UNUSED_BYTES
"""Of a block."""


def why_not(conv: nn.Conv2d, x: Tensor) -> str | None:
    """Why the kernels cannot replace this layer on this input; None where they can."""
    if not x.is_cuda:
        return f"the input is on {x.device.type}"
    if torch.cuda.get_device_capability(x.device) != nvrtc.HOPPER:
        return "the card's warpgroups do not multiply matrices"
    return why_not_layer(conv, x) or nvrtc.why_unavailable()


def why_not_layer(conv: nn.Conv2d, x: Tensor) -> str | None:
    """What is against this layer and the shape of x (N, C, H, W), whatever the device."""
    if (conv.kernel_size, conv.stride, conv.padding, conv.dilation) != ((4, 4), (2, 2), (1, 1), (1, 1)):
        return "the kernel is not 4 x 4 with stride 2 and a border of one"
    if (conv.in_channels, conv.out_channels, conv.groups) != (_CHANNELS, _CHANNELS, 1) or conv.padding_mode != "zeros":
        return f"there must be {_CHANNELS} channels in one group and a border of zeros"
    if conv.weight.dtype != torch.float32 or conv.weight.stride()[2:] != (4, 1):
        return "the weight must be float32 with whole kernels side by side"
    if x.shape[2] != x.shape[3] or not _SMALLEST <= x.shape[2] <= _LARGEST:
        return f"images must be squares of {_SMALLEST} to {_LARGEST} rows"
    return None


def halving_conv(x: Float[Tensor, "N C H W"], conv: nn.Conv2d) -> Float[Tensor, "N C P Q"]:
    """The convolution without its bias in bfloat16, channels last, for a layer and input that `why_not` has nothing against."""
    return _HalvingConv.apply(x, conv.weight)


def _compiled_for(side: int, device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("halving_conv", (("IN", side),), device)


def blocks_for(batch: int, device: torch.device) -> int:
    """One for each multiprocessor: it goes over several images, or pairs of them, with the kernel that it has once."""
    return nvrtc.even_blocks(batch, nvrtc.multiprocessors(device))


def _packed(weight: Tensor, side: int) -> Tensor:
    """The kernel as the products read it, forward and backward, (2, KERNEL_BYTES)."""
    packed = torch.empty((2, KERNEL_BYTES), device=weight.device, dtype=torch.uint8)
    given: list[nvrtc.Argument] = [weight.detach(), weight.stride(0), weight.stride(1), packed]
    _compiled_for(side, weight.device).launch("pack_kernel", packed.numel() // 4 // 256, 256, 0, given)
    return packed


def launch_forward(rows: Float[Tensor, "N H W C"], weight: Tensor) -> tuple[Float[Tensor, "N P Q C"], Tensor]:
    """The convolution of rows in bfloat16, and its kernel packed for both directions, without a graph."""
    batch, side, _, channels = rows.shape
    kernels, packed = _compiled_for(side, rows.device), _packed(weight, side)
    out = torch.empty((batch, side // 2, side // 2, channels), device=rows.device, dtype=torch.bfloat16)
    blocks = blocks_for(batch, rows.device)
    arguments: list[nvrtc.Argument] = [rows, packed[0], out, batch, blocks]
    kernels.launch("halving_forward", blocks, _FORWARD_THREADS, _SHARED_BYTES, arguments, long=True)
    return out, packed


class _HalvingConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        rows = pixels(x.detach().to(torch.bfloat16))
        if rows.shape[1] < LARGE:
            packed = _packed(weight, rows.shape[1])
            own = weight.detach().to(dtype=torch.bfloat16, memory_format=torch.channels_last)
            out = functional.conv2d(rows.permute(0, 3, 1, 2), own, None, 2, 1)
        else:
            made, packed = launch_forward(rows, weight)
            out = made.permute(0, 3, 1, 2)
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
            arguments: list[nvrtc.Argument] = [d_rows, packed[1], d_x, len(rows), blocks]
            threads = _BACKWARD_THREADS // 2 if small else _BACKWARD_THREADS
            kernels = _compiled_for(rows.shape[1], rows.device)
            kernels.launch("halving_backward", blocks, threads, _SHARED_BYTES, arguments, long=True)
            d_x = d_x.permute(0, 3, 1, 2).to(ctx.dtype)
        if ctx.needs_input_grad[1]:
            d_weight = weight_gradient(rows, d_rows, weight)
        return d_x, d_weight


def weight_gradient(x: Float[Tensor, "N H W C"], d_out: Float[Tensor, "N P Q C"], weight: Tensor) -> Tensor:
    """Torch's, from factors in bfloat16."""
    shaped = torch.empty_like(weight, dtype=x.dtype, memory_format=torch.channels_last)
    factors = (d_out.permute(0, 3, 1, 2), x.permute(0, 3, 1, 2), shaped)
    settings: tuple[Any, ...] = ([2, 2], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    d_weight = torch.ops.aten.convolution_backward(*factors, None, *settings)[1]
    return d_weight.to(torch.float32, memory_format=torch.contiguous_format)
