"""The whole trajectory of the convolutional field, one sample per program.

The field is ``f(t, h) = GN3(conv2[t, relu(GN2(conv1[t, relu(GN1(h))]))])``; every piece of it treats each sample on its own,
and on a given grid so does the Runge-Kutta method. One program therefore carries one sample through all steps and stages, and
one launch does the forward pass of a batch; a second one does the backward pass. Between two convolutions a sample's
activations go through memory (they are shifted by the taps), everything else stays in registers.

A tile is (positions padded to a power of two, channels); memory is (stage evaluation, sample, position, channel).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ltnode.accelerate.kernels.conv_trajectory import (
    ConvolutionGradients,
    Pair,
    Precision,
    Problem,
    Swept,
    SweptBack,
    storage,
    tables,
    torch_gradients,
)
from ltnode.typing import Tensor

_EPS = 1e-5
_WARPS = 4
_UNROLL = 1


@triton.jit
def _add_pairs(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@triton.jit
def _two_sums(a, b):
    """Sums of two tiles over their positions, in one reduction."""
    return tl.reduce((a, b), 0, _add_pairs)


@triton.jit
def _per_group(x, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Sum of a per-channel vector within its group, spread back to the channels."""
    grouped = tl.sum(tl.reshape(x, (GROUPS, CHANNELS // GROUPS)), axis=1)
    return tl.reshape(tl.broadcast_to(grouped[:, None], (GROUPS, CHANNELS // GROUPS)), (CHANNELS,))


@triton.jit
def _normalise(z, valid, count, eps, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Normalised values and 1/std per channel."""
    z = tl.where(valid, z, 0.0)
    total, squares = _two_sums(z, z * z)
    mean = _per_group(total, CHANNELS, GROUPS) / count
    variance = tl.maximum(_per_group(squares, CHANNELS, GROUPS) / count - mean * mean, 0.0)
    rstd = 1.0 / tl.sqrt(variance + eps)
    return tl.where(valid, (z - mean[None, :]) * rstd[None, :], 0.0), rstd


@triton.jit
def _normalise_backward(d, x, rstd, scale, count, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """From the gradient d of ``x * scale + shift`` (zero at padded positions): those of the input, of scale and of shift."""
    d_scale, d_shift = _two_sums(d * x, d)
    mean_d = _per_group(d_shift * scale, CHANNELS, GROUPS) / count
    mean_dx = _per_group(d_scale * scale, CHANNELS, GROUPS) / count
    return rstd[None, :] * (d * scale[None, :] - mean_d[None, :] - x * mean_dx[None, :]), d_scale, d_shift


@triton.jit
def _conv3x3(
    source,
    weight,
    SIGN: tl.constexpr,
    SIDE: tl.constexpr,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
    PRECISION: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Sum over the nine taps of the shifted sample times the tap's matrix (9, in, out); SIGN -1 shifts the other way."""
    position = tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    row = position // SIDE
    column = position % SIDE
    total = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
    matrix = channel[:, None] * CHANNELS + channel[None, :]
    for first in range(0, 9, UNROLL):
        # A few taps at a time, so that their loads are under way together.
        for u in tl.static_range(UNROLL):
            tap = first + u
            dr = SIGN * (tap // 3 - 1)
            dc = SIGN * (tap % 3 - 1)
            inside = (row + dr >= 0) & (row + dr < SIDE) & (column + dc >= 0) & (column + dc < SIDE) & (row < SIDE)
            cell = (position + dr * SIDE + dc)[:, None] * CHANNELS + channel[None, :]
            shifted = tl.load(source + cell, mask=inside[:, None], other=0.0)
            taps = tl.load(weight + tap * CHANNELS * CHANNELS + matrix)
            total = tl.dot(shifted, taps, total, input_precision=PRECISION)
    return total


@triton.jit
def forward_kernel(
    states,
    starts,
    lengths,
    n_steps,
    table_a,
    table_c,
    table_e,
    weight1,
    weight2,
    bias1,
    bias2,
    map1,
    map2,
    gamma1,
    beta1,
    gamma2,
    beta2,
    gamma3,
    beta3,
    stages,
    active1,
    active2,
    normal1,
    normal2,
    normal3,
    rstd1,
    rstd2,
    rstd3,
    error_squares,
    batch,
    rtol,
    atol,
    eps,
    SIDE: tl.constexpr,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    N_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    UNROLL: tl.constexpr,
    SAVE: tl.constexpr,
):
    """All steps of one sample.

    Stage evaluation j = m (N_STAGES - 1) + i is stage i of step m; the last stage of a step is the first of the next.
    ``states`` (n + 1, B, P, C) holds y0 in its first slice and receives the state at every edge.
    With SAVE the normalised values and 1/std of every norm are kept for the backward pass; the activations always are (the
    convolutions read them shifted), but without SAVE every evaluation uses the same place.
    """
    sample = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    size: tl.constexpr = SIDE * SIDE * CHANNELS
    count: tl.constexpr = SIDE * SIDE * (CHANNELS // GROUPS)
    valid = (position < SIDE * SIDE)[:, None]
    tile = position[:, None] * CHANNELS + channel[None, :]
    own = sample * size
    every = batch.to(tl.int64) * size
    g1 = tl.load(gamma1 + channel)
    b1 = tl.load(beta1 + channel)
    g2 = tl.load(gamma2 + channel)
    b2 = tl.load(beta2 + channel)
    g3 = tl.load(gamma3 + channel)
    b3 = tl.load(beta3 + channel)
    for m in range(0, n_steps):
        start = tl.load(starts + m)
        length = tl.load(lengths + m)
        first = tl.where(m == 0, 0, 1)
        for i in range(first, N_STAGES):
            # States live in memory, not in registers: the convolutions need those.
            argument = tl.load(states + m * every + own + tile, mask=valid, other=0.0)
            for j in range(0, i):
                a = tl.load(table_a + i * N_STAGES + j) * length
                k = tl.load(stages + (m * (N_STAGES - 1) + j) * every + own + tile, mask=valid, other=0.0)
                argument += a * k
            if i == N_STAGES - 1:
                tl.store(states + (m + 1) * every + own + tile, argument, mask=valid)
            t = start + tl.load(table_c + i) * length
            evaluation = m * (N_STAGES - 1) + i
            kept = evaluation * every if SAVE else 0
            kept_rows = (evaluation * batch + sample) * CHANNELS if SAVE else sample * CHANNELS

            x, r = _normalise(argument, valid, count, eps, CHANNELS, GROUPS)
            a1 = tl.where(valid, tl.maximum(x * g1[None, :] + b1[None, :], 0.0), 0.0)
            tl.store(active1 + kept + own + tile, a1.to(active1.dtype.element_ty), mask=valid)
            if SAVE:
                tl.store(normal1 + kept + own + tile, x.to(normal1.dtype.element_ty), mask=valid)
                tl.store(rstd1 + kept_rows + channel, r)
            tl.debug_barrier()
            z = _conv3x3(active1 + kept + own, weight1, 1, SIDE, TILE, CHANNELS, PRECISION, UNROLL)
            z += tl.load(bias1 + channel)[None, :] + t * tl.load(map1 + tile, mask=valid, other=0.0)

            x, r = _normalise(z, valid, count, eps, CHANNELS, GROUPS)
            a2 = tl.where(valid, tl.maximum(x * g2[None, :] + b2[None, :], 0.0), 0.0)
            tl.store(active2 + kept + own + tile, a2.to(active2.dtype.element_ty), mask=valid)
            if SAVE:
                tl.store(normal2 + kept + own + tile, x.to(normal2.dtype.element_ty), mask=valid)
                tl.store(rstd2 + kept_rows + channel, r)
            tl.debug_barrier()
            z = _conv3x3(active2 + kept + own, weight2, 1, SIDE, TILE, CHANNELS, PRECISION, UNROLL)
            z += tl.load(bias2 + channel)[None, :] + t * tl.load(map2 + tile, mask=valid, other=0.0)

            x, r = _normalise(z, valid, count, eps, CHANNELS, GROUPS)
            if SAVE:
                tl.store(normal3 + kept + own + tile, x.to(normal3.dtype.element_ty), mask=valid)
                tl.store(rstd3 + kept_rows + channel, r)
            k_new = x * g3[None, :] + b3[None, :]
            tl.store(stages + evaluation * every + own + tile, k_new, mask=valid)
            tl.debug_barrier()
        error = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
        for j in range(0, N_STAGES):
            e = tl.load(table_e + j) * length
            k = tl.load(stages + (m * (N_STAGES - 1) + j) * every + own + tile, mask=valid, other=0.0)
            error += e * k
        before = tl.load(states + m * every + own + tile, mask=valid, other=0.0)
        after = tl.load(states + (m + 1) * every + own + tile, mask=valid, other=0.0)
        ratio = error / (atol + rtol * tl.maximum(tl.abs(before), tl.abs(after)))
        ratio = tl.where(valid, ratio, 0.0)
        tl.store(error_squares + m * batch + sample, tl.sum(tl.sum(ratio * ratio, axis=1), axis=0))


@triton.jit
def backward_kernel(
    d_stages,
    d_state,
    carried,
    lengths,
    n_steps,
    table_a,
    weight1,
    weight2,
    gamma1,
    beta1,
    gamma2,
    beta2,
    gamma3,
    normal1,
    normal2,
    normal3,
    rstd1,
    rstd2,
    rstd3,
    d_conv1,
    d_conv2,
    d_argument,
    d_affine,
    batch,
    SIDE: tl.constexpr,
    TILE: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
    N_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Reverse sweep of one sample: from the gradients of all stages to those of the initial state and of the convolutions.

    ``weight1`` and ``weight2`` are (9, out, in) here. ``d_conv1``, ``d_conv2`` receive the gradients of the convolutions'
    outputs for every evaluation, from which the caller takes the weight gradients in one call over all of them; ``d_argument``
    is room for the stage arguments' gradients of the current step, ``d_state`` (zero at first, the initial state's gradient in
    the end) and ``carried`` (zero at first) for what one step hands to the one before; ``d_affine`` (B, 6, C)
    receives the gradients of the norms' scales and shifts.
    """
    sample = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    size: tl.constexpr = SIDE * SIDE * CHANNELS
    count: tl.constexpr = SIDE * SIDE * (CHANNELS // GROUPS)
    valid = (position < SIDE * SIDE)[:, None]
    tile = position[:, None] * CHANNELS + channel[None, :]
    own = sample * size
    every = batch.to(tl.int64) * size
    g1 = tl.load(gamma1 + channel)
    b1 = tl.load(beta1 + channel)
    g2 = tl.load(gamma2 + channel)
    b2 = tl.load(beta2 + channel)
    g3 = tl.load(gamma3 + channel)
    d_g1 = tl.zeros((CHANNELS,), dtype=tl.float32)
    d_b1 = tl.zeros((CHANNELS,), dtype=tl.float32)
    d_g2 = tl.zeros((CHANNELS,), dtype=tl.float32)
    d_b2 = tl.zeros((CHANNELS,), dtype=tl.float32)
    d_g3 = tl.zeros((CHANNELS,), dtype=tl.float32)
    d_b3 = tl.zeros((CHANNELS,), dtype=tl.float32)
    for back in range(0, n_steps):
        m = n_steps - 1 - back
        length = tl.load(lengths + m)
        last = tl.where(m == 0, N_STAGES, N_STAGES - 1)
        for back_i in range(0, last):
            i = N_STAGES - 1 - back_i
            evaluation = m * (N_STAGES - 1) + i
            kept = evaluation * every + own
            kept_rows = (evaluation * batch + sample) * CHANNELS
            d = tl.load(d_stages + kept + tile, mask=valid, other=0.0).to(tl.float32)
            if i == N_STAGES - 1:
                # The last stage of this step is the first of the next, whose share was left in ``carried``.
                d += tl.load(carried + own + tile, mask=valid, other=0.0)
            for later in range(i + 1, N_STAGES):
                a = tl.load(table_a + later * N_STAGES + i) * length
                d += a * tl.load(d_argument + later * every + own + tile, mask=valid, other=0.0)

            x = tl.load(normal3 + kept + tile, mask=valid, other=0.0).to(tl.float32)
            r = tl.load(rstd3 + kept_rows + channel)
            d, d_scale, d_shift = _normalise_backward(d, x, r, g3, count, CHANNELS, GROUPS)
            d_g3 += d_scale
            d_b3 += d_shift
            tl.store(d_conv2 + kept + tile, d.to(d_conv2.dtype.element_ty), mask=valid)
            tl.debug_barrier()
            d = _conv3x3(d_conv2 + kept, weight2, -1, SIDE, TILE, CHANNELS, PRECISION, UNROLL)

            x = tl.load(normal2 + kept + tile, mask=valid, other=0.0).to(tl.float32)
            r = tl.load(rstd2 + kept_rows + channel)
            d = tl.where((x * g2[None, :] + b2[None, :] > 0.0) & valid, d, 0.0)
            d, d_scale, d_shift = _normalise_backward(d, x, r, g2, count, CHANNELS, GROUPS)
            d_g2 += d_scale
            d_b2 += d_shift
            tl.store(d_conv1 + kept + tile, d.to(d_conv1.dtype.element_ty), mask=valid)
            tl.debug_barrier()
            d = _conv3x3(d_conv1 + kept, weight1, -1, SIDE, TILE, CHANNELS, PRECISION, UNROLL)

            x = tl.load(normal1 + kept + tile, mask=valid, other=0.0).to(tl.float32)
            r = tl.load(rstd1 + kept_rows + channel)
            d = tl.where((x * g1[None, :] + b1[None, :] > 0.0) & valid, d, 0.0)
            d, d_scale, d_shift = _normalise_backward(d, x, r, g1, count, CHANNELS, GROUPS)
            d_g1 += d_scale
            d_b1 += d_shift
            if i == N_STAGES - 1:
                # The last stage's argument is the state at the end of the step.
                d += tl.load(d_state + own + tile, mask=valid, other=0.0)
            tl.store(d_argument + i * every + own + tile, d, mask=valid)
            tl.debug_barrier()
        total = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
        share = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
        for i in range(tl.where(m == 0, 0, 1), N_STAGES):
            d = tl.load(d_argument + i * every + own + tile, mask=valid, other=0.0)
            total += d
            share += tl.load(table_a + i * N_STAGES) * length * d
        tl.store(d_state + own + tile, total, mask=valid)
        tl.store(carried + own + tile, share, mask=valid)
        tl.debug_barrier()
    rows = d_affine + sample * 6 * CHANNELS + channel
    tl.store(rows, d_g1)
    tl.store(rows + CHANNELS, d_b1)
    tl.store(rows + 2 * CHANNELS, d_g2)
    tl.store(rows + 3 * CHANNELS, d_b2)
    tl.store(rows + 4 * CHANNELS, d_g3)
    tl.store(rows + 5 * CHANNELS, d_b3)


@dataclass(frozen=True)
class TritonTrajectory:
    """`conv_trajectory.Kernels` for every precision, power-of-two widths from 32, and up to 64 positions."""

    def sweep(self, y0: Tensor, field: Sequence[Tensor], starts: Tensor, lengths: Tensor, problem: Problem) -> Swept:
        """All steps from y0 (B, H, W, C)."""
        w1, w2, bias1, bias2, map1, map2, g1, g2, g3, b1, b2, b3 = field
        batch, side, _, channels = y0.shape
        steps, stages_per_step = lengths.shape[0], problem.tableau.stages
        device, dtype = y0.device, storage(problem.precision)
        evaluations = steps * (stages_per_step - 1) + 1
        cells = (evaluations if problem.save else 1, batch, side, side, channels)
        stages = torch.empty((evaluations, *cells[1:]), device=device)
        states = torch.empty((steps + 1, *cells[1:]), device=device)
        states[0].copy_(y0)
        active1, active2 = (torch.empty(cells, device=device, dtype=dtype) for _ in range(2))
        normal = [torch.empty(cells if problem.save else (1,), device=device, dtype=dtype) for _ in range(3)]
        rstd = [torch.empty((cells[0], batch, channels) if problem.save else (1,), device=device) for _ in range(3)]
        squares = torch.empty(steps, batch, device=device)
        forward_kernel[(batch,)](
            states,
            starts,
            lengths,
            steps,
            *tables(problem.tableau, device),
            _taps(w1, dtype),
            _taps(w2, dtype),
            bias1,
            bias2,
            map1.permute(1, 2, 0).contiguous(),
            map2.permute(1, 2, 0).contiguous(),
            g1,
            b1,
            g2,
            b2,
            g3,
            b3,
            stages,
            active1,
            active2,
            *normal,
            *rstd,
            squares,
            batch,
            problem.rtol,
            problem.atol,
            _EPS,
            SIDE=side,
            TILE=_tile(side),
            CHANNELS=channels,
            GROUPS=problem.groups,
            N_STAGES=stages_per_step,
            PRECISION=_dot_precision(problem.precision),
            UNROLL=_UNROLL,
            SAVE=problem.save,
            num_warps=_WARPS,
        )
        return Swept(stages, squares, (active1, active2), (*normal, *rstd))

    def sweep_back(
        self, d_stages: Tensor, field: Sequence[Tensor], lengths: Tensor, problem: Problem, saved: Sequence[Tensor]
    ) -> SweptBack:
        """From the gradients of all stages (J, B, H, W, C)."""
        w1, w2, _, _, _, _, g1, g2, g3, b1, b2, _ = field
        normal1 = saved[0]
        _, batch, side, _, channels = d_stages.shape
        device, dtype, stages_per_step = d_stages.device, storage(problem.precision), problem.tableau.stages
        d_conv1, d_conv2 = torch.empty_like(normal1), torch.empty_like(normal1)
        d_argument = torch.empty((stages_per_step, batch, side, side, channels), device=device)
        d_state, carried = torch.zeros((2, batch, side, side, channels), device=device)
        d_norms = torch.empty((batch, 6, channels), device=device)
        backward_kernel[(batch,)](
            d_stages,
            d_state,
            carried,
            lengths,
            lengths.shape[0],
            tables(problem.tableau, device)[0],
            _taps(w1, dtype, transposed=True),
            _taps(w2, dtype, transposed=True),
            g1,
            b1,
            g2,
            b2,
            g3,
            *saved,
            d_conv1,
            d_conv2,
            d_argument,
            d_norms,
            batch,
            SIDE=side,
            TILE=_tile(side),
            CHANNELS=channels,
            GROUPS=problem.groups,
            N_STAGES=stages_per_step,
            PRECISION=_dot_precision(problem.precision),
            UNROLL=_UNROLL,
            num_warps=_WARPS,
        )
        return SweptBack(d_state, (d_conv1, d_conv2), d_norms)

    def convolution_gradients(self, active: Pair, d_conv: Pair, weights: Pair, times: Tensor) -> ConvolutionGradients:
        """Torch's: one call for each kernel's."""
        return torch_gradients(active, d_conv, weights, times)


def _taps(weight: Tensor, dtype: torch.dtype, transposed: bool = False) -> Tensor:
    """(9, in, out) from (out, in, 3, 3); (9, out, in) when transposed."""
    order = (2, 3, 0, 1) if transposed else (2, 3, 1, 0)
    return weight.permute(order).reshape(9, weight.shape[0], weight.shape[1]).to(dtype).contiguous()


def _tile(side: int) -> int:
    return max(16, 1 << (side * side - 1).bit_length())


def _dot_precision(precision: Precision) -> str:
    return "ieee" if precision == "fp32" else "tf32"
