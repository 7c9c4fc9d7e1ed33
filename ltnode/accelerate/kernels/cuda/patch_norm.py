"""A network's first layers on images in one kernel per direction, in bfloat16: convolution, GroupNorm and ReLU.

``patch_norm(x, conv, norm)`` is ``relu(norm(conv(x)))`` under bfloat16 autocast, without a gradient in x. Images have few
channels, so the convolution costs next to nothing: it is made again wherever its result is needed, and neither that nor its
gradient is ever written to memory. The reference is the same layers of `torch.nn`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import nvrtc
from ltnode.typing import Float, Tensor

_THREADS = 256
_MOST_COLUMNS = 32
_WIDTHS = (32, 64, 128, 256)
_MOST_SHARED_BYTES = 113_000
"""Of a block: two of them fit on a multiprocessor."""


def why_not(conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> str | None:
    """Why the kernels cannot replace these layers on this input; None where they can."""
    if x.requires_grad:
        return "the input needs a gradient"
    if not x.is_cuda:
        return f"the input is on {x.device.type}"
    return why_not_layers(conv, norm, x) or nvrtc.why_unavailable() or _why_not_card(x.device)


def why_not_layers(conv: nn.Conv2d, norm: nn.GroupNorm, x: Tensor) -> str | None:
    """What is against these layers and the shape of x (N, C, H, W), whatever the device."""
    if math.prod(conv.weight.shape[1:]) > _MOST_COLUMNS:
        return f"a neighbourhood has more than {_MOST_COLUMNS} values"
    regular = conv.kernel_size[0] == conv.kernel_size[1] and conv.groups == 1 and conv.padding_mode == "zeros"
    if not regular or {*conv.stride, *conv.dilation} != {1} or conv.padding not in (0, (0, 0)):
        return "the kernel is not square, or there are strides, dilation, padding or groups"
    if conv.out_channels not in _WIDTHS or norm.num_channels != 2 * norm.num_groups or norm.num_channels != conv.out_channels:
        return f"there must be {', '.join(map(str, _WIDTHS))} channels, two in a group of the norm"
    if conv.bias is None or not norm.affine:
        return "the convolution has no bias, or the norm no scale and shift"
    if any(p.dtype != torch.float32 or not p.is_contiguous() for p in (*conv.parameters(), *norm.parameters())):
        return "the parameters must be float32 and contiguous"
    if _shared_bytes(x.shape, conv.kernel_size[0], conv.out_channels) > _MOST_SHARED_BYTES:
        return "the images are too large"
    return None


def _why_not_card(device: torch.device) -> str | None:
    card: Any = torch.cuda.get_device_properties(device)
    fits = (card.major, card.minor) >= (8, 0) and card.shared_memory_per_block_optin >= _MOST_SHARED_BYTES
    return None if fits else "the card has too little shared memory, or no products in bfloat16"


def patch_norm(x: Float[Tensor, "N C H W"], conv: nn.Conv2d, norm: nn.GroupNorm) -> Float[Tensor, "N O P Q"]:
    """``relu(norm(conv(x)))`` in bfloat16, channels last, for layers and input that `why_not` has nothing against."""
    return _PatchNorm.apply(x, conv.weight, conv.bias, norm.weight, norm.bias, norm.eps)


def pixels(x: Float[Tensor, "N C H W"]) -> Float[Tensor, "N H W C"]:
    """The tensor in this order in memory, from an address that several values can be read at."""
    rows = x.permute(0, 2, 3, 1).contiguous()
    return rows if rows.data_ptr() % 16 == 0 else rows.clone()


def defines(shape: tuple[int, ...], size: int, outputs: int) -> tuple[tuple[str, int], ...]:
    """What the kernels are compiled for, from the shape of x."""
    _, channels, height, width = shape
    return (("HEIGHT", height), ("WIDTH", width), ("CHANNELS", channels), ("SIZE", size), ("OUT", outputs))


def _shared_bytes(shape: tuple[int, ...], size: int, outputs: int) -> int:
    """Neighbourhoods, which the weight's gradient replaces at the end; sums; the image."""
    _, channels, height, width = shape
    steps = math.ceil(channels * size**2 / 16)
    tiles = math.ceil((height - size + 1) * (width - size + 1) / 16)
    shares = 8 * 32 // outputs
    rows = max(tiles * 16 * (2 * steps + 1) * 16, shares * outputs * steps * 16 * 4)
    return rows + 8 * shares * outputs * 4 + 2 * channels * height * width


def _compiled_for(shape: tuple[int, ...], size: int, outputs: int, device: torch.device) -> nvrtc.Kernels:
    return nvrtc.compiled("patch_norm", defines(shape, size, outputs), device)


@dataclass(frozen=True)
class Launched:
    """The forward kernel's inputs and results.

    Attributes:
        given: Images, and the parameters: weight, bias, scale, shift.
        out: (N, H, W, C) in bfloat16.
        means, rstds: (N, C / 2) of the norm.
    """

    given: tuple[Tensor, ...]
    out: Tensor
    means: Tensor
    rstds: Tensor


def launch_forward(x: Tensor, parameters: Sequence[Tensor], eps: float) -> Launched:
    """The three layers on x, without a graph."""
    given = (x.detach().float().contiguous(), *(p.detach() for p in parameters))
    samples, _, height, width = x.shape
    outputs, _, size, _ = parameters[0].shape
    out = torch.empty((samples, height - size + 1, width - size + 1, outputs), device=x.device, dtype=torch.bfloat16)
    means, rstds = torch.empty((2, samples, outputs // 2), device=x.device)
    kernels = _compiled_for(tuple(x.shape), size, outputs, x.device)
    shared = _shared_bytes(tuple(x.shape), size, outputs)
    kernels.launch("patch_norm_forward", samples, _THREADS, shared, [*given, float(eps), out, means, rstds], long=True)
    return Launched(given, out, means, rstds)


def samples_gradients(samples: int, weight: Tensor) -> Tensor:
    """Memory for what the backward kernels give per sample: gradients of scale, shift, bias and weight."""
    return torch.empty((samples, 3 * weight.shape[0] + weight.numel()), device=weight.device)


def summed(gradients: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Of weight, bias, scale and shift, over the samples."""
    d_scale, d_shift, d_bias, d_weight = gradients.sum(dim=0).split([weight.shape[0]] * 3 + [weight.numel()])
    return d_weight.view_as(weight), d_bias, d_scale, d_shift


class _PatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        launched = launch_forward(x, (weight, bias, scale, shift), eps)
        ctx.save_for_backward(*launched.given, launched.means, launched.rstds)
        return launched.out.permute(0, 3, 1, 2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors[:2]
        outputs, _, size, _ = weight.shape
        rows, gradients = pixels(d_out.to(torch.bfloat16)), samples_gradients(len(x), weight)
        kernels = _compiled_for(tuple(x.shape), size, outputs, x.device)
        shared = _shared_bytes(tuple(x.shape), size, outputs)
        kernels.launch("patch_norm_backward", len(x), _THREADS, shared, [*ctx.saved_tensors, rows, gradients], long=True)
        return None, *summed(gradients, weight), None
