"""GroupNorm followed by ReLU, and by the mean over positions: one sample and some whole groups per program, channels last.

With ``v = x + bias`` of one sample and a group, ``n = (v - mean) / sqrt(var + eps)`` and ``a = relu(n * scale + shift)``; the
pooled form returns ``mean over positions of a``. A program holds its part of the sample in registers, so that x is read once;
the backward kernel recomputes n from x.
"""

import triton
import triton.language as tl


@triton.jit
def _per_group(x, BLOCK: tl.constexpr, PER_GROUP: tl.constexpr):
    """Sum of a per-channel vector within its group, spread back to the channels."""
    grouped = tl.sum(tl.reshape(x, (BLOCK // PER_GROUP, PER_GROUP)), axis=1)
    return tl.reshape(tl.broadcast_to(grouped[:, None], (BLOCK // PER_GROUP, PER_GROUP)), (BLOCK,))


@triton.jit
def norm_relu_forward(
    x,
    bias,
    scale,
    shift,
    out,
    means,
    rstds,
    positions,
    eps,
    POOL: tl.constexpr,
    BIAS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out`` is like x, or (N, C) when POOL. TILE is a power of two from ``positions``, BLOCK the channels of a program."""
    channel = tl.program_id(0) % (CHANNELS // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    sample = (tl.program_id(0) // (CHANNELS // BLOCK)).to(tl.int64)
    position = tl.arange(0, TILE)
    valid = (position < positions)[:, None]
    cell = sample * positions * CHANNELS + position[:, None] * CHANNELS + channel[None, :]
    v = tl.load(x + cell, mask=valid, other=0.0).to(tl.float32)
    if BIAS:
        v = tl.where(valid, v + tl.load(bias + channel)[None, :], 0.0)
    count = positions * PER_GROUP
    mean = _per_group(tl.sum(v, axis=0), BLOCK, PER_GROUP) / count
    v = tl.where(valid, v - mean[None, :], 0.0)
    rstd = 1.0 / tl.sqrt(_per_group(tl.sum(v * v, axis=0), BLOCK, PER_GROUP) / count + eps)
    tl.store(means + sample * CHANNELS + channel, mean)
    tl.store(rstds + sample * CHANNELS + channel, rstd)
    a = tl.maximum(v * (tl.load(scale + channel) * rstd)[None, :] + tl.load(shift + channel)[None, :], 0.0)
    if POOL:
        tl.store(out + sample * CHANNELS + channel, tl.sum(tl.where(valid, a, 0.0), axis=0) / positions)
    else:
        tl.store(out + cell, a.to(out.dtype.element_ty), mask=valid)


@triton.jit
def norm_relu_backward(
    x,
    bias,
    scale,
    shift,
    means,
    rstds,
    d_out,
    d_x,
    d_affine,
    positions,
    POOL: tl.constexpr,
    BIAS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PER_GROUP: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``d_affine`` (N, 2 or 3, C) receives every sample's gradients of scale, shift and, with BIAS, of the bias.

    Goes over the positions twice, TILE at a time: held in registers, x and its gradient would leave room for one program on a
    multiprocessor; the second time they come out of the cache.
    """
    channel = tl.program_id(0) % (CHANNELS // BLOCK) * BLOCK + tl.arange(0, BLOCK)
    sample = (tl.program_id(0) // (CHANNELS // BLOCK)).to(tl.int64)
    own = sample * positions * CHANNELS
    mean = tl.load(means + sample * CHANNELS + channel)
    rstd = tl.load(rstds + sample * CHANNELS + channel)
    if BIAS:
        mean -= tl.load(bias + channel)
    g = tl.load(scale + channel)
    b = tl.load(shift + channel)
    pooled = tl.zeros((BLOCK,), dtype=tl.float32)
    if POOL:
        pooled = tl.load(d_out + sample * CHANNELS + channel) / positions
    d_scales = tl.zeros((TILE, BLOCK), dtype=tl.float32)
    d_shifts = tl.zeros((TILE, BLOCK), dtype=tl.float32)
    for start in range(0, positions, TILE):
        position = start + tl.arange(0, TILE)
        valid = (position < positions)[:, None]
        cell = own + position[:, None] * CHANNELS + channel[None, :]
        n, d = _masked_gradient(x, d_out, pooled, cell, valid, mean, rstd, g, b, TILE, BLOCK, POOL)
        d_scales += d * n
        d_shifts += d
    d_scale = tl.sum(d_scales, axis=0)
    d_shift = tl.sum(d_shifts, axis=0)
    rows = d_affine + sample * (3 if BIAS else 2) * CHANNELS + channel
    tl.store(rows, d_scale)
    tl.store(rows + CHANNELS, d_shift)
    count = positions * PER_GROUP
    mean_d = _per_group(d_shift * g, BLOCK, PER_GROUP) / count
    mean_dn = _per_group(d_scale * g, BLOCK, PER_GROUP) / count
    d_biases = tl.zeros((TILE, BLOCK), dtype=tl.float32)
    for start in range(0, positions, TILE):
        position = start + tl.arange(0, TILE)
        valid = (position < positions)[:, None]
        cell = own + position[:, None] * CHANNELS + channel[None, :]
        n, d = _masked_gradient(x, d_out, pooled, cell, valid, mean, rstd, g, b, TILE, BLOCK, POOL)
        d = rstd[None, :] * (d * g[None, :] - mean_d[None, :] - n * mean_dn[None, :])
        tl.store(d_x + cell, d.to(d_x.dtype.element_ty), mask=valid)
        if BIAS:
            d_biases += tl.where(valid, d, 0.0)
    if BIAS:
        tl.store(rows + 2 * CHANNELS, tl.sum(d_biases, axis=0))


@triton.jit
def _masked_gradient(
    x, d_out, pooled, cell, valid, mean, rstd, g, b, TILE: tl.constexpr, BLOCK: tl.constexpr, POOL: tl.constexpr
):
    """The tile n and the gradient of ``n * scale + shift``, zero where the ReLU is closed."""
    n = (tl.load(x + cell, mask=valid, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
    d = tl.broadcast_to(pooled[None, :], (TILE, BLOCK))
    if not POOL:
        d = tl.load(d_out + cell, mask=valid, other=0.0).to(tl.float32)
    return n, tl.where((n * g[None, :] + b[None, :] > 0.0) & valid, d, 0.0)
