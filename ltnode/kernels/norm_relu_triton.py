"""GroupNorm followed by ReLU, and by the mean over positions: one sample per program, channels last.

With x of one sample and a group, ``n = (x - mean) / sqrt(var + eps)`` and ``a = relu(n * scale + shift)``; the pooled form
returns ``mean over positions of a``. The backward kernels recompute n from x.
"""

import triton
import triton.language as tl


@triton.jit
def _per_group(x, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Sum of a per-channel vector within its group, spread back to the channels."""
    grouped = tl.sum(tl.reshape(x, (GROUPS, CHANNELS // GROUPS)), axis=1)
    return tl.reshape(tl.broadcast_to(grouped[:, None], (GROUPS, CHANNELS // GROUPS)), (CHANNELS,))


@triton.jit
def norm_relu_forward(
    x,
    scale,
    shift,
    out,
    means,
    rstds,
    positions,
    eps,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """``out`` is like x, or (N, C) when POOL."""
    sample = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    own = x + sample * positions * CHANNELS
    total = tl.zeros((CHANNELS,), dtype=tl.float32)
    for start in range(0, positions, BLOCK):
        position = start + tl.arange(0, BLOCK)
        valid = (position < positions)[:, None]
        v = tl.load(own + position[:, None] * CHANNELS + channel[None, :], mask=valid, other=0.0).to(tl.float32)
        total += tl.sum(v, axis=0)
    count = positions * (CHANNELS // GROUPS)
    mean = _per_group(total, CHANNELS, GROUPS) / count
    squares = tl.zeros((CHANNELS,), dtype=tl.float32)
    for start in range(0, positions, BLOCK):
        position = start + tl.arange(0, BLOCK)
        valid = (position < positions)[:, None]
        v = tl.load(own + position[:, None] * CHANNELS + channel[None, :], mask=valid, other=0.0).to(tl.float32)
        v = tl.where(valid, v - mean[None, :], 0.0)
        squares += tl.sum(v * v, axis=0)
    rstd = 1.0 / tl.sqrt(_per_group(squares, CHANNELS, GROUPS) / count + eps)
    tl.store(means + sample * CHANNELS + channel, mean)
    tl.store(rstds + sample * CHANNELS + channel, rstd)
    g = tl.load(scale + channel) * rstd
    b = tl.load(shift + channel) - mean * g
    pooled = tl.zeros((CHANNELS,), dtype=tl.float32)
    for start in range(0, positions, BLOCK):
        position = start + tl.arange(0, BLOCK)
        valid = (position < positions)[:, None]
        cell = position[:, None] * CHANNELS + channel[None, :]
        v = tl.load(own + cell, mask=valid, other=0.0).to(tl.float32)
        a = tl.maximum(v * g[None, :] + b[None, :], 0.0)
        if POOL:
            pooled += tl.sum(tl.where(valid, a, 0.0), axis=0)
        else:
            tl.store(out + sample * positions * CHANNELS + cell, a.to(out.dtype.element_ty), mask=valid)
    if POOL:
        tl.store(out + sample * CHANNELS + channel, pooled / positions)


@triton.jit
def norm_relu_backward(
    x,
    scale,
    shift,
    means,
    rstds,
    d_out,
    d_x,
    d_affine,
    positions,
    POOL: tl.constexpr,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """``d_affine`` (N, 2, C) receives every sample's gradients of scale and shift."""
    sample = tl.program_id(0).to(tl.int64)
    channel = tl.arange(0, CHANNELS)
    own = sample * positions * CHANNELS
    g = tl.load(scale + channel)
    b = tl.load(shift + channel)
    mean = tl.load(means + sample * CHANNELS + channel)
    rstd = tl.load(rstds + sample * CHANNELS + channel)
    d_scale = tl.zeros((CHANNELS,), dtype=tl.float32)
    d_shift = tl.zeros((CHANNELS,), dtype=tl.float32)
    if POOL:
        d_row = tl.load(d_out + sample * CHANNELS + channel) / positions
    for start in range(0, positions, BLOCK):
        position = start + tl.arange(0, BLOCK)
        valid = (position < positions)[:, None]
        cell = own + position[:, None] * CHANNELS + channel[None, :]
        n = (tl.load(x + cell, mask=valid, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        if POOL:
            d = tl.broadcast_to(d_row[None, :], (BLOCK, CHANNELS))
        else:
            d = tl.load(d_out + cell, mask=valid, other=0.0).to(tl.float32)
        d = tl.where((n * g[None, :] + b[None, :] > 0.0) & valid, d, 0.0)
        d_scale += tl.sum(d * n, axis=0)
        d_shift += tl.sum(d, axis=0)
    rows = d_affine + sample * 2 * CHANNELS + channel
    tl.store(rows, d_scale)
    tl.store(rows + CHANNELS, d_shift)
    count = positions * (CHANNELS // GROUPS)
    mean_d = _per_group(d_shift * g, CHANNELS, GROUPS) / count
    mean_dn = _per_group(d_scale * g, CHANNELS, GROUPS) / count
    for start in range(0, positions, BLOCK):
        position = start + tl.arange(0, BLOCK)
        valid = (position < positions)[:, None]
        cell = own + position[:, None] * CHANNELS + channel[None, :]
        n = (tl.load(x + cell, mask=valid, other=0.0).to(tl.float32) - mean[None, :]) * rstd[None, :]
        if POOL:
            d = tl.broadcast_to(d_row[None, :], (BLOCK, CHANNELS))
        else:
            d = tl.load(d_out + cell, mask=valid, other=0.0).to(tl.float32)
        d = tl.where((n * g[None, :] + b[None, :] > 0.0) & valid, d, 0.0) * g[None, :]
        d = rstd[None, :] * (d - mean_d[None, :] - n * mean_dn[None, :])
        tl.store(d_x + cell, d.to(d_x.dtype.element_ty), mask=valid)
