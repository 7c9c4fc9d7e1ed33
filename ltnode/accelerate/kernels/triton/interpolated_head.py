# mypy: ignore-errors
"""States at the end-times, GroupNorm, ReLU and the mean over positions in one kernel: the states never reach the memory.

For end-time s, sample b, position p and channel c

    ``y[s, b, p, c] = base[b, p, c] + sum_j w[s, b, j] k[j, b, p, c]``
    ``out[s, b, c] = mean over p of relu(n * scale[c] + shift[c])``, ``n = (y - mean) / sqrt(var + eps)`` over p and a group of c.

A program has one sample and BLOCK channels, which are whole groups; it holds ENDS end-times of its states in registers while it
goes over the stages, so that each is read once for them all. The backward kernel computes the states again and returns
``d_k[j, b] = sum_s w[s, b, j] d_y[s, b]`` and ``d_base[b] = sum_s d_y[s, b]``.

A state is a tile (ROWS, ENDS, 32): the last axis, a warp's lanes, is ``32 / BLOCK`` positions by BLOCK channels, and the rows are
the rest of the positions. So the sums over positions stay within a warp, and what belongs to (end-time, channel) takes few
registers.
"""

import triton
import triton.language as tl

LANES = tl.constexpr(32)
PADDING = tl.constexpr(16)
"""The weights of a stage are padded to a multiple of this many end-times, so that they can be read as vectors."""
PREFETCH = tl.constexpr(4)
"""Stages on their way from the memory while one is worked on."""


@triton.jit
def _over_group(x, ENDS: tl.constexpr, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr):
    """Sum of (end-time, lane) over the lanes of the same group, spread back to the lanes."""
    groups = tl.reshape(x, (ENDS, LANES // BLOCK, BLOCK // PER_GROUP, PER_GROUP))
    total = tl.sum(tl.sum(groups, axis=3), axis=1)
    spread = tl.broadcast_to(total[:, None, :, None], (ENDS, LANES // BLOCK, BLOCK // PER_GROUP, PER_GROUP))
    return tl.reshape(spread, (ENDS, LANES))


@triton.jit
def _normalised(
    stages,
    base,
    weights,
    row,
    known,
    cell,
    valid,
    sample,
    batch,
    size,
    evaluations,
    count,
    eps,
    ROWS: tl.constexpr,
    ENDS: tl.constexpr,
    BLOCK: tl.constexpr,
    PER_GROUP: tl.constexpr,
):
    """The tile n (ROWS, ENDS, LANES), zero beyond the positions, and 1 / sqrt(var + eps), (ENDS, LANES)."""
    start = tl.load(base + sample * size + cell, mask=valid, other=0.0).to(tl.float32)
    y = tl.broadcast_to(start[:, None, :], (ROWS, ENDS, LANES))
    for j in tl.range(evaluations, num_stages=PREFETCH):
        w = tl.where(known, tl.load(weights + j * row), 0.0)
        k = tl.load(stages + (j * batch + sample) * size + cell, mask=valid, other=0.0).to(tl.float32)
        y += w[None, :, None] * k[:, None, :]
    mean = _over_group(tl.sum(y, axis=0), ENDS, BLOCK, PER_GROUP) / count
    y = tl.where(valid[:, None, :], y - mean[None, :, :], 0.0)
    rstd = 1.0 / tl.sqrt(_over_group(tl.sum(y * y, axis=0), ENDS, BLOCK, PER_GROUP) / count + eps)
    return y * rstd[None, :, :], rstd


@triton.jit
def head_forward(
    stages,
    base,
    weights,
    scale,
    shift,
    out,
    ends,
    evaluations,
    batch,
    positions,
    sample_stride,
    eps,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    ENDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``stages`` (J, B, P, C), ``base`` (B, P, C), ``weights[b * sample_stride + j * row + s]``, ``out`` (S, B, C)."""
    sample = (tl.program_id(0) // (CHANNELS // BLOCK)).to(tl.int64)
    first_channel = tl.program_id(0) % (CHANNELS // BLOCK) * BLOCK
    lane = tl.arange(0, LANES)
    channel = first_channel + lane % BLOCK
    position = tl.arange(0, ROWS)[:, None] * (LANES // BLOCK) + lane[None, :] // BLOCK
    valid = position < positions
    cell = position * CHANNELS + channel[None, :]
    size = positions * CHANNELS
    own = weights + sample * sample_stride
    row = tl.cdiv(ends, PADDING) * PADDING
    count = positions * PER_GROUP
    g = tl.load(scale + channel)
    b = tl.load(shift + channel)
    for first in range(0, ends, ENDS):
        end = first + tl.arange(0, ENDS)
        known = end < ends
        n, _ = _normalised(
            stages,
            base,
            own + end,
            row,
            known,
            cell,
            valid,
            sample,
            batch,
            size,
            evaluations,
            count,
            eps,
            ROWS,
            ENDS,
            BLOCK,
            PER_GROUP,
        )
        a = tl.where(valid[:, None, :], tl.maximum(n * g[None, None, :] + b[None, None, :], 0.0), 0.0)
        pooled = tl.sum(tl.reshape(tl.sum(a, axis=0), (ENDS, LANES // BLOCK, BLOCK)), axis=1) / positions
        own_channel = first_channel + tl.arange(0, BLOCK)
        cells = (end[:, None] * batch + sample) * CHANNELS + own_channel[None, :]
        tl.store(out + cells, pooled, mask=tl.broadcast_to(known[:, None], (ENDS, BLOCK)))


@triton.jit
def head_backward(
    stages,
    base,
    weights,
    scale,
    shift,
    d_out,
    d_stages,
    d_base,
    d_affine,
    ends,
    evaluations,
    batch,
    positions,
    sample_stride,
    eps,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    ENDS: tl.constexpr,
    BLOCK: tl.constexpr,
    MANY: tl.constexpr,
):
    """``d_affine`` (B, 2, C) receives every sample's gradients of scale and shift; MANY says that ``ends`` is more than ENDS."""
    sample = (tl.program_id(0) // (CHANNELS // BLOCK)).to(tl.int64)
    first_channel = tl.program_id(0) % (CHANNELS // BLOCK) * BLOCK
    lane = tl.arange(0, LANES)
    channel = first_channel + lane % BLOCK
    position = tl.arange(0, ROWS)[:, None] * (LANES // BLOCK) + lane[None, :] // BLOCK
    valid = position < positions
    cell = position * CHANNELS + channel[None, :]
    size = positions * CHANNELS
    own = weights + sample * sample_stride
    row = tl.cdiv(ends, PADDING) * PADDING
    count = positions * PER_GROUP
    g = tl.load(scale + channel)
    b = tl.load(shift + channel)
    d_scale = tl.zeros((LANES,), dtype=tl.float32)
    d_shift = tl.zeros((LANES,), dtype=tl.float32)
    d_start = tl.zeros((ROWS, LANES), dtype=tl.float32)
    for first in range(0, ends, ENDS):
        end = first + tl.arange(0, ENDS)
        known = end < ends
        n, rstd = _normalised(
            stages,
            base,
            own + end,
            row,
            known,
            cell,
            valid,
            sample,
            batch,
            size,
            evaluations,
            count,
            eps,
            ROWS,
            ENDS,
            BLOCK,
            PER_GROUP,
        )
        cells = (end[:, None] * batch + sample) * CHANNELS + channel[None, :]
        mask = tl.broadcast_to(known[:, None], (ENDS, LANES))
        given = tl.load(d_out + cells, mask=mask, other=0.0) / positions
        active = (n * g[None, None, :] + b[None, None, :] > 0.0) & valid[:, None, :]
        d = tl.where(active, given[None, :, :], 0.0)
        d_n = tl.sum(d * n, axis=0)
        d_a = tl.sum(d, axis=0)
        d_scale += tl.sum(d_n, axis=0)
        d_shift += tl.sum(d_a, axis=0)
        mean_d = _over_group(d_a * g[None, :], ENDS, BLOCK, PER_GROUP) / count
        mean_dn = _over_group(d_n * g[None, :], ENDS, BLOCK, PER_GROUP) / count
        d_y = rstd[None, :, :] * (d * g[None, None, :] - mean_d[None, :, :] - n * mean_dn[None, :, :])
        # End-times first: the compiler then gives a thread all of them, and the sums below need no other thread.
        d_y = tl.permute(d_y, (1, 0, 2))
        d_start += tl.sum(d_y, axis=0)
        for j in range(evaluations):
            w = tl.where(known, tl.load(own + end + j * row), 0.0)
            d_k = tl.sum(w[:, None, None] * d_y, axis=0)
            target = d_stages + (j * batch + sample) * size + cell
            if MANY:
                d_k += tl.load(target, mask=valid & (first > 0), other=0.0)
            tl.store(target, d_k, mask=valid)
        if MANY:  # what this pass has stored is added to by the next, perhaps by other threads
            tl.debug_barrier()
    tl.store(d_base + sample * size + cell, d_start, mask=valid)
    own_channel = first_channel + tl.arange(0, BLOCK)
    affine = d_affine + sample * 2 * CHANNELS + own_channel
    tl.store(affine, tl.sum(tl.reshape(d_scale, (LANES // BLOCK, BLOCK)), axis=0))
    tl.store(affine + CHANNELS, tl.sum(tl.reshape(d_shift, (LANES // BLOCK, BLOCK)), axis=0))
