"""The first two convolutions of a stem in bfloat16, with their gradients in one kernel: the launch of stem_gradients.cu.

``stem(x, conv, norm, halving)`` is ``halving(relu(norm(conv(x))))`` under bfloat16 autocast, without the last bias and without a
gradient in x. The forward pass is `patch_norm` followed by `halving_conv`, which are also the reference. In the backward pass,
the gradient between them, one of the largest arrays of a training step, is never written to memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.cuda import patch_norm
from ltnode.accelerate.kernels.hopper import halving_conv
from ltnode.typing import Float, Tensor

_CHANNELS, _WARPGROUPS, _BUFFERS = 64, 2, 2


def unsupported_reason(conv: nn.Conv2d, norm: nn.GroupNorm, halving: nn.Conv2d, x: Tensor) -> str | None:
    """Return why the kernels cannot replace these layers on an input x (N, C, H, W), or None."""
    sides = (side - size + 1 for side, size in zip(x.shape[2:], conv.kernel_size, strict=True))
    between = torch.empty((1, conv.out_channels, *sides), device=x.device)
    reason = patch_norm.unsupported_reason(conv, norm, x) or halving_conv.unsupported_reason(halving, between)
    if reason is not None:
        return reason
    if conv.weight[0].numel() % 16 == 0:
        return f"a patch of {conv.weight[0].numel()} values leaves no room to append a 1"
    if between.shape[-1] < halving_conv.LARGE:
        return f"the images are too small: after the first convolution they must have {halving_conv.LARGE} rows"
    return devices.unsupported_reason(
        x.device, shared_bytes=_shared_bytes(between.shape[-1], conv.in_channels, conv.kernel_size[0])
    )


def stem(x: Float[Tensor, "N C H W"], conv: nn.Conv2d, norm: nn.GroupNorm, halving: nn.Conv2d) -> Float[Tensor, "N O P Q"]:
    """Run the layers in bfloat16, channels last; `unsupported_reason` must return None."""
    return _Stem.apply(x, conv.weight, conv.bias, norm.weight, norm.bias, halving.weight, norm.eps)


def _shared_bytes(side: int, channels: int, size: int) -> int:
    """Shared memory of a block: what `halving_conv` has with two buffers; first layer, patches of both warpgroups, one image.

    A product of patches has 64 rows and reads beyond the patches, into the image.
    """
    chunks, chunk = 2 * (channels * size**2 // 16 + 1), 16 * 256 // _WARPGROUPS
    buffers = halving_conv.WEIGHT_BYTES + _BUFFERS * halving_conv.BUFFER_BYTES + halving_conv.OVERRUN_BYTES
    image = 2 * channels * (side + size - 1) ** 2
    return buffers + chunks * 16 * _CHANNELS + _WARPGROUPS * chunks * chunk + max(image, (_CHANNELS // 8 - chunks) * chunk)


class _Stem(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters_and_eps: Any) -> Tensor:
        *parameters, halving, eps = parameters_and_eps
        first = patch_norm.launch_forward(x, parameters, eps)
        out, packed = halving_conv.launch_forward(first.out, halving)
        ctx.save_for_backward(*first.inputs, first.out, first.means, first.rstds, packed[1], halving)
        return out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, rows, means, rstds, packed, halving = ctx.saved_tensors
        d_rows = patch_norm.pixels(d_out.to(torch.bfloat16))
        _, channels, size, _ = inputs[1].shape
        batch, side = rows.shape[:2]
        gradients = patch_norm.sample_gradients(batch, inputs[1])
        blocks = halving_conv.blocks_for(batch, rows.device)
        arguments: list[devices.Argument] = [d_rows, packed, *inputs, means, rstds, gradients, batch, blocks]
        module = devices.compiled("stem_gradients", (("IN", side), ("CHANNELS", channels), ("FILTER", size)), rows.device)
        shared_bytes = _shared_bytes(side, channels, size)
        module.launch("stem_gradients", blocks, 128 * _WARPGROUPS, shared_bytes, arguments, long=True)
        return None, *patch_norm.summed(gradients, inputs[1]), halving_conv.weight_gradient(rows, d_rows, halving), None
