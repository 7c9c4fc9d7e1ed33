"""A stem's first two convolutions in bfloat16 on warpgroups, with their gradients in one kernel.

``stem(x, conv, norm, halving)`` is ``halving(relu(norm(conv(x))))`` under bfloat16 autocast, without the last bias and without a
gradient in x. Forward it is `patch_norm` and `halving_conv`, which are also the reference: going back, the gradient between them,
one of the largest arrays of a training step, stays on the card's multiprocessors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import nvrtc
from ltnode.accelerate.kernels.cuda import patch_norm
from ltnode.accelerate.kernels.hopper import halving_conv
from ltnode.typing import Float, Tensor

_CHANNELS, _GROUPS, _BUFFERS = 64, 2, 2
_MOST_SHARED_BYTES = 227 * 1024
"""Of a block on compute capability 9.0."""


def why_not(conv: nn.Conv2d, norm: nn.GroupNorm, halving: nn.Conv2d, x: Tensor) -> str | None:
    """Why the kernels cannot replace these layers on this input; None where they can."""
    sides = (side - size + 1 for side, size in zip(x.shape[2:], conv.kernel_size, strict=True))
    between = torch.empty((1, conv.out_channels, *sides), device=x.device)
    return patch_norm.why_not(conv, norm, x) or why_not_layers(conv, halving, between) or halving_conv.why_not(halving, between)


def why_not_layers(conv: nn.Conv2d, halving: nn.Conv2d, between: Tensor) -> str | None:
    """What is against these layers, beside what is against each of them, and the shape between them, whatever the device."""
    if conv.weight[0].numel() % 16 == 0:
        return "a neighbourhood leaves no room for a one beside its values"
    if _shared_bytes(between.shape[-1], conv.in_channels, conv.kernel_size[0]) > _MOST_SHARED_BYTES:
        return "the images have too many channels"
    if between.shape[-1] < halving_conv.LARGE:
        return "the images are so small that the halving convolution takes two at a time"
    return halving_conv.why_not_layer(halving, between)


def stem(x: Float[Tensor, "N C H W"], conv: nn.Conv2d, norm: nn.GroupNorm, halving: nn.Conv2d) -> Float[Tensor, "N O P Q"]:
    """The layers in bfloat16, channels last, where `why_not` has nothing against them."""
    return _Stem.apply(x, conv.weight, conv.bias, norm.weight, norm.bias, halving.weight, norm.eps)


def _compiled_for(side: int, channels: int, size: int, device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("stem_gradients", (("IN", side), ("CHANNELS", channels), ("SIZE", size)), device)


def _row(values: int) -> int:
    """Of products with a neighbourhood of so many values and a one."""
    return 16 * (values // 16 + 1)


def _shared_bytes(side: int, channels: int, size: int) -> int:
    """Of a block: the halving convolution's kernel and two parts; the first layer's, both warpgroups' neighbourhoods, an image.

    A product of neighbourhoods has 64 rows and reads what lies behind them.
    """
    chunks, chunk = _row(channels * size**2) // 8, 16 * 256 // _GROUPS
    parts = halving_conv.KERNEL_BYTES + _BUFFERS * halving_conv.BUFFER_BYTES + halving_conv.UNUSED_BYTES
    image = 2 * channels * (side + size - 1) ** 2
    return parts + chunks * 16 * _CHANNELS + _GROUPS * chunks * chunk + max(image, (_CHANNELS // 8 - chunks) * chunk)


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters_and_eps: Any) -> Tensor:
        *parameters, halving, eps = parameters_and_eps
        first = patch_norm.launch_forward(x, parameters, eps)
        out, packed = halving_conv.launch_forward(first.out, halving)
        ctx.save_for_backward(*first.given, first.out, first.means, first.rstds, packed[1], halving)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *given, rows, means, rstds, packed, halving = ctx.saved_tensors
        d_rows = patch_norm.pixels(d_out.to(torch.bfloat16))
        _, channels, size, _ = given[1].shape
        batch, side = rows.shape[:2]
        gradients = patch_norm.samples_gradients(batch, given[1])
        blocks = halving_conv.blocks_for(batch, rows.device)
        arguments: list[nvrtc.Argument] = [d_rows, packed, *given, means, rstds, gradients, batch, blocks]
        kernels = _compiled_for(side, channels, size, rows.device)
        kernels.launch("stem_gradients", blocks, 128 * _GROUPS, _shared_bytes(side, channels, size), arguments, long=True)
        return None, *patch_norm.summed(gradients, given[1]), halving_conv.weight_gradient(rows, d_rows, halving), None
