"""Autograd around the fused interpolation, GroupNorm, ReLU and mean over positions of the states at the end-times.

``interpolated_head(stages, base, weights, norm)`` is, without the states in memory,

    ``states = base + einsum("sbj,jbchw->sbchw", weights, stages)``
    ``relu(norm(states)).mean over positions``

which is also what the tests compare it with. The end-times are constants: the weights get no gradient.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable

from ltnode.accelerate.kernels import nvrtc
from ltnode.accelerate.kernels.norm_relu import power_of_two
from ltnode.typing import Float, Tensor

_LANES, _PADDING = 32, 16
_ENDS = 16
"""End-times that a program has in registers at a time."""
_LARGEST_TILE = 8192
"""Numbers that it has in registers at a time."""
_REGISTERS = 128
"""Per thread: sixteen warps on a multiprocessor, and nothing spilled at the sizes of the paper's network."""


_CUDA_BLOCK, _CUDA_POSITIONS = 16, 64
"""Channels of a block at a time, and most positions, of interpolated_head.cu."""
_CUDA_WARPS, _CUDA_BLOCKS = 4, 4
"""Of a block, and blocks of a multiprocessor."""
_CUDA_STAGES, _CUDA_ENDS, _CUDA_LAST = 8, 8, 2
"""Stages and end-times of a product, and the end-times beside these at a time where that saves a turn."""


def head_fits(norm: nn.GroupNorm, positions: int) -> bool:
    """Whether the kernels can take this norm on images of so many positions."""
    per_group = norm.num_channels // norm.num_groups
    block = _channel_block(norm.num_channels, norm.num_groups)
    regular = norm.affine and per_group & (per_group - 1) == 0
    return regular and block <= _LANES and norm.num_channels % block == 0 and positions * block <= _LARGEST_TILE


def padded_ends(weights: Float[Tensor, "S *rest"]) -> Float[Tensor, "S *rest"]:
    """The same weights (S, J) or (S, B, J) in float32, laid out in memory as ([B,] J, S padded to 16): the kernels' order."""
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
    """Mean over positions of ``relu(norm(y(T_s)))`` with ``y(T_s) = base + sum_j weights[s, (b,) j] stages[j]``.

    Args:
        stages: Float32, in memory (J, B, H, W, C), as `conv_trajectory` returns them; so is their gradient.
        base: State that the weights start from; float32, channels last.
        weights: (S, J), or (S, B, J) where each sample has its own end-times; no gradient. `padded_ends` saves a copy here.
        norm: One that `head_fits` accepts.
    """
    rows = padded_ends(weights.detach())
    kernels = _cuda_kernels(stages, norm.num_groups, len(rows))
    if kernels is not None:
        return _CudaHead.apply(stages, base, rows, norm.weight, norm.bias, norm.eps, kernels)
    return _InterpolatedHead.apply(stages, base, rows, norm.weight, norm.bias, norm.num_groups, norm.eps)


def _channel_block(channels: int, groups: int) -> int:
    """Channels of a program: whole groups, and 32 bytes of a row at least."""
    return max(channels // groups, 8)


def _row(ends: int) -> int:
    return math.ceil(ends / _PADDING) * _PADDING


def _is_padded(weights: Tensor) -> bool:
    row, evaluations = _row(weights.shape[0]), weights.shape[-1]
    strides = (1, row) if weights.ndim == 2 else (1, evaluations * row, row)
    room = weights.untyped_storage().nbytes() // weights.element_size() - weights.storage_offset()
    return weights.dtype == torch.float32 and weights.stride() == strides and room >= math.prod(weights.shape[1:]) * row


def _cuda_kernels(stages: Tensor, groups: int, ends: int) -> nvrtc.Kernels | None:
    """interpolated_head.cu for these sizes; None where it cannot serve, and Triton does."""
    evaluations, _, channels, height, width = stages.shape
    fits = channels == 2 * groups and channels % _CUDA_BLOCK == 0 and height * width <= _CUDA_POSITIONS
    if not fits or not stages.is_cuda or nvrtc.why_unavailable() is not None:
        return None
    if torch.cuda.get_device_capability(stages.device) < (8, 0):
        return None
    return nvrtc.compiled("interpolated_head", _cuda_sizes(evaluations, ends, height * width, channels), stages.device)


def _cuda_last(ends: int) -> int:
    """End-times that a block takes beside the eight of a product: two, where it gets through all of them in fewer turns."""
    return _CUDA_LAST if math.ceil(ends / (_CUDA_ENDS + _CUDA_LAST)) < math.ceil(ends / _CUDA_ENDS) else 0


def _cuda_sizes(evaluations: int, ends: int, positions: int, channels: int) -> tuple[tuple[str, int], ...]:
    last = _cuda_last(ends)
    many = int(ends > _CUDA_ENDS + last)
    return (("EVALUATIONS", evaluations), ("LAST", last), ("MANY", many), ("POSITIONS", positions), ("CHANNELS", channels))


def _cuda_shared_bytes(evaluations: int, ends: int, positions: int) -> tuple[int, int]:
    """Of a block, forward and backward: stages of a product, weights twice; its warps' sums; what is kept of each end, twice."""
    chunk, sums = _CUDA_ENDS + _cuda_last(ends), 16 * 32 * _CUDA_WARPS
    stages = _CUDA_STAGES * (positions * 4 * _CUDA_BLOCK + 32)
    both = stages + 2 * 4 * chunk * (evaluations // _CUDA_STAGES + 1) * _CUDA_STAGES
    return both + 4 * sums, both + 3 * sums + 16 * (2 * chunk + 1) * _CUDA_BLOCK // 2


class _CudaHead(torch.autograd.Function):
    """The launches of interpolated_head.cu."""

    @staticmethod
    def forward(
        ctx: Any, stages: Tensor, base: Tensor, weights: Tensor, scale: Tensor, shift: Tensor, eps: float, kernels: nvrtc.Kernels
    ) -> Tensor:
        evaluations, batch, channels, _, _ = stages.shape
        ends = weights.shape[0]
        rows = stages.detach().permute(0, 1, 3, 4, 2).contiguous()
        start = base.detach().permute(0, 2, 3, 1).contiguous()
        pieces, threads = channels // _CUDA_BLOCK, 32 * _CUDA_WARPS
        blocks = pieces * nvrtc.even_blocks(batch, max(_CUDA_BLOCKS * nvrtc.multiprocessors(stages.device) // pieces, 1))
        shared_bytes, shared_bytes_back = _cuda_shared_bytes(evaluations, ends, math.prod(stages.shape[3:]))
        ctx.launch = (blocks, threads, shared_bytes_back)
        ctx.numbers = (ends, batch, _row(ends), weights.stride(1) if weights.ndim == 3 else 0)
        pooled = torch.empty((ends, batch, channels), device=stages.device)
        means, rstds = (torch.empty((ends, batch, channels // 2), device=stages.device) for _ in range(2))
        given = (rows, start, weights, scale.detach(), shift.detach())
        numbers = [*given, *ctx.numbers, float(eps), pooled, means, rstds]
        kernels.launch("head_forward", blocks, threads, shared_bytes, numbers, long=True)
        ctx.save_for_backward(*given, means, rstds)
        ctx.kernels = kernels
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_pooled: Tensor) -> tuple[Tensor | None, ...]:
        rows, start, weights, scale, shift, means, rstds = ctx.saved_tensors
        d_rows, d_start = torch.empty_like(rows), torch.empty_like(start)
        d_affine = torch.empty((ctx.launch[0] * _CUDA_BLOCK // scale.shape[0], 2, scale.shape[0]), device=rows.device)
        given = (rows, start, weights, scale, shift, means, rstds, d_pooled.contiguous())
        ctx.kernels.launch("head_backward", *ctx.launch, [*given, *ctx.numbers, d_rows, d_start, d_affine], long=True)
        d_scale, d_shift = d_affine.sum(dim=0)
        return d_rows.permute(0, 1, 4, 2, 3), d_start.permute(0, 3, 1, 2), None, d_scale, d_shift, None, None


class _InterpolatedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, stages: Tensor, base: Tensor, weights: Tensor, scale: Tensor, shift: Tensor, groups: int, eps: float
    ) -> Tensor:
        from ltnode.accelerate.kernels.triton.interpolated_head import head_forward

        evaluations, batch, channels, height, width = stages.shape
        ends, positions = weights.shape[0], height * width
        rows = stages.detach().permute(0, 1, 3, 4, 2).contiguous()
        start = base.detach().permute(0, 2, 3, 1).contiguous()
        block = _channel_block(channels, groups)
        tile_rows = power_of_two(math.ceil(positions * block / _LANES))
        ctx.sizes = {
            "CHANNELS": channels,
            "PER_GROUP": channels // groups,
            "ROWS": tile_rows,
            "ENDS": min(power_of_two(ends), _ENDS, max(_LARGEST_TILE // (tile_rows * _LANES), 1)),
            "BLOCK": block,
        }
        ctx.numbers = (ends, evaluations, batch, positions, weights.stride(1) if weights.ndim == 3 else 0, eps)
        ctx.grid = (channels // block * batch,)
        tensors = (rows, start, weights, scale.detach(), shift.detach())
        out = torch.empty((ends, batch, channels), device=stages.device)
        head_forward[ctx.grid](*tensors, out, *ctx.numbers, **ctx.sizes, num_warps=_warps(ctx.sizes, 64, 4), maxnreg=_REGISTERS)
        ctx.save_for_backward(*tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        from ltnode.accelerate.kernels.triton.interpolated_head import head_backward

        rows, start, _, scale, _ = ctx.saved_tensors
        d_rows, d_start = torch.empty_like(rows), torch.empty_like(start)
        d_affine = torch.empty((rows.shape[1], 2, scale.shape[0]), device=rows.device)
        many = ctx.numbers[0] > ctx.sizes["ENDS"]
        head_backward[ctx.grid](
            *ctx.saved_tensors,
            d_out.contiguous(),
            d_rows,
            d_start,
            d_affine,
            *ctx.numbers,
            **ctx.sizes,
            MANY=many,
            num_warps=_warps(ctx.sizes, 32, 8),
            maxnreg=_REGISTERS,
        )
        d_scale, d_shift = d_affine.sum(dim=0)
        return d_rows.permute(0, 1, 4, 2, 3), d_start.permute(0, 3, 1, 2), None, d_scale, d_shift, None, None


def _warps(sizes: dict[str, int], per_thread: int, most: int) -> int:
    """So many that a thread has ``per_thread`` numbers of the tile, at most ``most``."""
    return min(max(sizes["ROWS"] * sizes["ENDS"] // per_thread, 1), most)
