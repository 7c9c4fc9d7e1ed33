"""Dense output at the end-times, GroupNorm, ReLU and mean over positions: the launches of interpolated_head.cu.

``interpolated_head(stages, base, weights, norm)`` equals

    ``states = base + einsum("sbj,jbchw->sbchw", weights, stages)``
    ``relu(norm(states)).mean(dim=(3, 4))``

without the states in memory; the tests compare it with these operations. The end-times are constants, so the weights get no
gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import devices
from ltnode.accelerate.kernels.devices import Argument, CompiledModule, Defines
from ltnode.typing import Float, Tensor

_CHANNELS_PER_BLOCK, _LARGEST_IMAGE = 16, 64
_WARPS, _BLOCKS_PER_MULTIPROCESSOR = 4, 4
_STAGES, _ENDS, _EXTRA_ENDS = 8, 8, 2
"""Stages and end-times of one product, and extra end-times at a time if that saves a pass."""
_PADDING = 16
"""The weights of an evaluation are padded to a multiple of this many end-times."""


def unsupported_reason(norm: nn.GroupNorm, stages: Float[Tensor, "J B C H W"]) -> str | None:
    """Return why the kernels cannot compute the head with this norm on these stages, or None."""
    if not norm.affine or norm.num_channels != 2 * norm.num_groups or norm.num_channels % _CHANNELS_PER_BLOCK:
        return f"the norm must have scale and shift, two channels per group and a multiple of {_CHANNELS_PER_BLOCK} channels"
    if math.prod(stages.shape[3:]) > _LARGEST_IMAGE:
        return f"the images have {math.prod(stages.shape[3:])} positions, and the kernels hold {_LARGEST_IMAGE}"
    return devices.unsupported_reason(stages.device, capability=(8, 0))


def padded_ends(weights: Float[Tensor, "S *rest"]) -> Float[Tensor, "S *rest"]:
    """Return weights (S, J) or (S, B, J) in float32 with the kernels' memory layout, ([B,] J, S padded to a multiple of 16)."""
    if _is_padded(weights):
        return weights
    rows = weights.movedim(0, -1)
    ends = rows.shape[-1]
    padded = torch.zeros((*rows.shape[:-1], _row(ends)), device=weights.device)
    padded[..., :ends].copy_(rows)
    return padded[..., :ends].movedim(-1, 0)


def interpolated_head(
    stages: Float[Tensor, "J B C H W"],
    base: Float[Tensor, "B C H W"],
    weights: Float[Tensor, "S *rest"],
    norm: nn.GroupNorm,
) -> Float[Tensor, "S B C"]:
    """Return the mean over positions of ``relu(norm(y(T_s)))`` with ``y(T_s) = base + sum_j weights[s, (b,) j] stages[j]``.

    Args:
        stages: Float32, in memory (J, B, H, W, C) as `conv_trajectory` returns them; the gradient has the same layout.
        base: Initial state; float32, channels last.
        weights: (S, J), or (S, B, J) if each sample has its own end-times; constants. `padded_ends` avoids a copy here.
        norm: A norm for which `unsupported_reason` returns None.
    """
    rows = padded_ends(weights.detach())
    return _InterpolatedHead.apply(stages, base, rows, norm.weight, norm.bias, norm.eps)


def _row(ends: int) -> int:
    return math.ceil(ends / _PADDING) * _PADDING


def _is_padded(weights: Tensor) -> bool:
    row, evaluations = _row(weights.shape[0]), weights.shape[-1]
    strides = (1, row) if weights.ndim == 2 else (1, evaluations * row, row)
    room = weights.untyped_storage().nbytes() // weights.element_size() - weights.storage_offset()
    return weights.dtype == torch.float32 and weights.stride() == strides and room >= math.prod(weights.shape[1:]) * row


def _extra_ends(ends: int) -> int:
    """End-times that a block handles in addition to the eight of a product: two, if that saves a pass."""
    return _EXTRA_ENDS if math.ceil(ends / (_ENDS + _EXTRA_ENDS)) < math.ceil(ends / _ENDS) else 0


def _compiled(evaluations: int, ends: int, positions: int, channels: int, device: torch.device) -> CompiledModule:
    extra = _extra_ends(ends)
    defines: Defines = (("EVALUATIONS", evaluations), ("EXTRA", extra), ("CHUNKED", int(ends > _ENDS + extra)))
    return devices.compiled("interpolated_head", (*defines, ("POSITIONS", positions), ("CHANNELS", channels)), device)


def _shared_bytes(evaluations: int, ends: int, positions: int) -> tuple[int, int]:
    """Shared memory of a block, forward and backward: stages, two weight buffers, sums of the warps; two statistics buffers."""
    chunk, sums = _ENDS + _extra_ends(ends), 16 * 32 * _WARPS
    stages = _STAGES * (positions * 4 * _CHANNELS_PER_BLOCK + 32)
    both = stages + 2 * 4 * chunk * (evaluations // _STAGES + 1) * _STAGES
    return both + 4 * sums, both + 3 * sums + 16 * (2 * chunk + 1) * _CHANNELS_PER_BLOCK // 2


class _InterpolatedHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, stages: Tensor, base: Tensor, weights: Tensor, scale: Tensor, shift: Tensor, eps: float) -> Tensor:
        evaluations, batch, channels, height, width = stages.shape
        ends, device = weights.shape[0], stages.device
        rows = stages.detach().permute(0, 1, 3, 4, 2).contiguous()
        start = base.detach().permute(0, 2, 3, 1).contiguous()
        pieces, threads = channels // _CHANNELS_PER_BLOCK, 32 * _WARPS
        limit = max(_BLOCKS_PER_MULTIPROCESSOR * devices.multiprocessors(device) // pieces, 1)
        blocks = pieces * devices.even_blocks(batch, limit)
        shared_bytes, shared_bytes_back = _shared_bytes(evaluations, ends, height * width)
        ctx.launch = (blocks, threads, shared_bytes_back)
        ctx.numbers = (ends, batch, _row(ends), weights.stride(1) if weights.ndim == 3 else 0)
        ctx.module = _compiled(evaluations, ends, height * width, channels, device)
        pooled = torch.empty((ends, batch, channels), device=device)
        means, rstds = (torch.empty((ends, batch, channels // 2), device=device) for _ in range(2))
        inputs = (rows, start, weights, scale.detach(), shift.detach())
        arguments: list[Argument] = [*inputs, *ctx.numbers, float(eps), pooled, means, rstds]
        ctx.module.launch("head_forward", blocks, threads, shared_bytes, arguments, long=True)
        ctx.save_for_backward(*inputs, means, rstds)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_pooled: Tensor) -> tuple[Tensor | None, ...]:
        rows, start, _, scale, *_ = ctx.saved_tensors
        d_rows, d_start = torch.empty_like(rows), torch.empty_like(start)
        blocks_per_piece = ctx.launch[0] * _CHANNELS_PER_BLOCK // scale.shape[0]
        d_affine = torch.empty((blocks_per_piece, 2, scale.shape[0]), device=rows.device)
        arguments = [*ctx.saved_tensors, d_pooled.contiguous(), *ctx.numbers, d_rows, d_start, d_affine]
        ctx.module.launch("head_backward", *ctx.launch, arguments, long=True)
        d_scale, d_shift = d_affine.sum(dim=0)
        return d_rows.permute(0, 1, 4, 2, 3), d_start.permute(0, 3, 1, 2), None, d_scale, d_shift, None
