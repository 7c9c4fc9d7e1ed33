"""The first layers of a network on images, convolution, GroupNorm and ReLU, in bfloat16: the launches of patch_norm.cu.

``patch_norm(x, conv, norm)`` is ``relu(norm(conv(x)))`` under bfloat16 autocast, without a gradient in x. Images have few
channels, so the convolution is cheap: the kernels compute it again wherever its result is needed, and neither the result nor its
gradient is written to memory. The reference is the same layers of `torch.nn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.devices import Argument, Defines
from ltnode.typing import Float, Tensor

_THREADS = 256
_LARGEST_PATCH = 32
_WIDTHS = (32, 64, 128, 256)
_MAX_SHARED_BYTES = 113_000
"""Largest shared memory of a block of which two fit on a multiprocessor."""


def unsupported_reason(conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> str | None:
    """Return why the kernels cannot replace these layers on an input x (N, C, H, W), or None."""
    if x.requires_grad:
        return "the input needs a gradient"
    if math.prod(conv.weight.shape[1:]) > _LARGEST_PATCH:
        return f"a patch has {math.prod(conv.weight.shape[1:])} values, and the kernels support {_LARGEST_PATCH}"
    regular = conv.kernel_size[0] == conv.kernel_size[1] and conv.groups == 1 and conv.padding_mode == "zeros"
    if not regular or {*conv.stride, *conv.dilation} != {1} or conv.padding not in (0, (0, 0)):
        return "the filter must be square, without stride, dilation, padding or groups"
    if conv.out_channels not in _WIDTHS or norm.num_channels != 2 * norm.num_groups or norm.num_channels != conv.out_channels:
        return f"there must be {', '.join(map(str, _WIDTHS))} channels, two in a group of the norm"
    if conv.bias is None or not norm.affine:
        return "the convolution must have a bias, and the norm scale and shift"
    if any(p.dtype != torch.float32 or not p.is_contiguous() for p in (*conv.parameters(), *norm.parameters())):
        return "the parameters must be float32 and contiguous"
    if _shared_bytes(x.shape, conv.kernel_size[0], conv.out_channels) > _MAX_SHARED_BYTES:
        return f"the images are too large: {x.shape[2]} x {x.shape[3]}"
    return devices.unsupported_reason(x.device, capability=(8, 0), shared_bytes=_MAX_SHARED_BYTES)


def patch_norm(x: Float[Tensor, "N C H W"], conv: nn.Conv2d, norm: nn.GroupNorm) -> Float[Tensor, "N O P Q"]:
    """Return ``relu(norm(conv(x)))`` in bfloat16 and channels last; `unsupported_reason` must return None."""
    return _PatchNorm.apply(x, conv.weight, conv.bias, norm.weight, norm.bias, norm.eps)


def pixels(x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N H W C"]:
    """Return the tensor in channels-last order, aligned to 16 bytes for vector loads."""
    rows = x.permute(0, 2, 3, 1).contiguous()
    return rows if rows.data_ptr() % 16 == 0 else rows.clone()


def _shared_bytes(shape: Sequence[int], size: int, outputs: int) -> int:
    """Shared memory of a block: patches, which the weight gradient replaces at the end; sums; the image."""
    _, channels, height, width = shape
    steps = math.ceil(channels * size**2 / 16)
    tiles = math.ceil((height - size + 1) * (width - size + 1) / 16)
    shares = 8 * 32 // outputs
    rows = max(tiles * 16 * (2 * steps + 1) * 16, shares * outputs * steps * 16 * 4)
    return rows + 8 * shares * outputs * 4 + 2 * channels * height * width


def _launch(name: str, x: Tensor, weight: Tensor, arguments: Sequence[Argument]) -> None:
    """Launch a kernel with one block per image."""
    samples, channels, height, width = x.shape
    outputs, _, size, _ = weight.shape
    defines: Defines = (("HEIGHT", height), ("WIDTH", width), ("CHANNELS", channels), ("FILTER", size), ("OUT", outputs))
    module = devices.compiled("patch_norm", defines, x.device)
    module.launch(name, samples, _THREADS, _shared_bytes(x.shape, size, outputs), arguments, long=True)


@dataclass(frozen=True)
class ForwardPass:
    """Inputs and results of the forward kernel.

    Attributes:
        inputs: Images, weight, bias, scale and shift.
        out: (N, H, W, C) in bfloat16.
        means, rstds: (N, C / 2), statistics of the norm.
    """

    inputs: tuple[Tensor, ...]
    out: Tensor
    means: Tensor
    rstds: Tensor


def launch_forward(x: Tensor, parameters: Sequence[Tensor], eps: float) -> ForwardPass:
    """Run the three layers on x without a graph."""
    inputs = (x.detach().float().contiguous(), *(p.detach() for p in parameters))
    samples, _, height, width = x.shape
    outputs, _, size, _ = parameters[0].shape
    out = torch.empty((samples, height - size + 1, width - size + 1, outputs), device=x.device, dtype=torch.bfloat16)
    means, rstds = torch.empty((2, samples, outputs // 2), device=x.device)
    _launch("patch_norm_forward", x, parameters[0], [*inputs, float(eps), out, means, rstds])
    return ForwardPass(inputs, out, means, rstds)


def sample_gradients(samples: int, weight: Tensor) -> Tensor:
    """Allocate the gradients per sample that the backward kernels write: of scale, shift, bias and weight."""
    return torch.empty((samples, 3 * weight.shape[0] + weight.numel()), device=weight.device)


def summed(gradients: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Sum `sample_gradients` over the samples and return the gradients of weight, bias, scale and shift."""
    d_scale, d_shift, d_bias, d_weight = gradients.sum(dim=0).split([weight.shape[0]] * 3 + [weight.numel()])
    return d_weight.view_as(weight), d_bias, d_scale, d_shift


class _PatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        result = launch_forward(x, (weight, bias, scale, shift), eps)
        ctx.save_for_backward(*result.inputs, result.means, result.rstds)
        return result.out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors[:2]
        rows, gradients = pixels(d_out.to(torch.bfloat16)), sample_gradients(len(x), weight)
        _launch("patch_norm_backward", x, weight, [*ctx.saved_tensors, rows, gradients])
        return None, *summed(gradients, weight), None
