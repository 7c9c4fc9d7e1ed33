"""All Runge-Kutta stages of the convolutional neural ODE on a given grid, and their gradients, in one kernel per direction.

Formula, with GN GroupNorm and conv a 3x3 convolution of a time channel and the state channels:

    f(t, y) = GN3(conv2[t, relu(GN2(conv1[t, relu(GN1(y))]))])
    k_i = f(t_m + c_i h_m, y_m + h_m sum_{j<i} a_ij k_j) for stage i of step m with length h_m
    y_{m+1} = the argument of the last stage (FSAL),  error_m = h_m sum_j e_j k_j

The time channel contributes t times a map (P, C) that does not depend on the state.

Shapes: memory is (stage evaluation, sample, position, channel). A tile in registers is (positions padded to a power of two,
channels). States, stages and norms are float32; the inputs of the convolutions have the storage type of the precision.

Work: one program per sample carries it through all steps and stages, since neither the field nor the method on a given grid mixes
samples. Between norm and convolution, the activations go through memory, because the taps read them shifted; everything else
stays in registers. A convolution is nine `tl.dot` products, one per tap.

Synchronisation: `tl.debug_barrier` between the store of a tile and the loads by other threads of the same program.

The launches are in conv_trajectory.py. Reference: `ltnode.ode.replay` with `ltnode.models.images.ConvField`; test:
tests/accelerate/kernels/test_triton.py.
"""

import triton
import triton.language as tl


@triton.jit
def _add_pairs(a0, b0, a1, b1):
    return a0 + a1, b0 + b1


@triton.jit
def _two_sums(a, b):
    """Sum two tiles over their positions in one reduction."""
    return tl.reduce((a, b), 0, _add_pairs)


@triton.jit
def _per_group(x, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Sum a per-channel vector within its groups and broadcast the sums to the channels."""
    grouped = tl.sum(tl.reshape(x, (GROUPS, CHANNELS // GROUPS)), axis=1)
    return tl.reshape(tl.broadcast_to(grouped[:, None], (GROUPS, CHANNELS // GROUPS)), (CHANNELS,))


@triton.jit
def _normalise(z, valid, count, eps, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Return the normalised values and 1 / std per channel."""
    z = tl.where(valid, z, 0.0)
    total, squares = _two_sums(z, z * z)
    mean = _per_group(total, CHANNELS, GROUPS) / count
    variance = tl.maximum(_per_group(squares, CHANNELS, GROUPS) / count - mean * mean, 0.0)
    rstd = 1.0 / tl.sqrt(variance + eps)
    return tl.where(valid, (z - mean[None, :]) * rstd[None, :], 0.0), rstd


@triton.jit
def _normalise_backward(d, x, rstd, scale, count, CHANNELS: tl.constexpr, GROUPS: tl.constexpr):
    """Return the gradients of input, scale and shift from the gradient d of ``x * scale + shift`` (zero at padded positions)."""
    d_scale, d_shift = _two_sums(d * x, d)
    mean_d = _per_group(d_shift * scale, CHANNELS, GROUPS) / count
    mean_dx = _per_group(d_scale * scale, CHANNELS, GROUPS) / count
    return rstd[None, :] * (d * scale[None, :] - mean_d[None, :] - x * mean_dx[None, :]), d_scale, d_shift


@triton.jit
def _conv3x3(
    source, weight, SIGN: tl.constexpr, SIDE: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr, PRECISION: tl.constexpr
):
    """Sum over the nine taps the shifted sample times the tap's matrix (9, in, out). SIGN = -1 reverses the shifts."""
    position = tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    row = position // SIDE
    column = position % SIDE
    total = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
    matrix = channel[:, None] * CHANNELS + channel[None, :]
    for tap in range(0, 9):
        dr = SIGN * (tap // 3 - 1)
        dc = SIGN * (tap % 3 - 1)
        inside = (row + dr >= 0) & (row + dr < SIDE) & (column + dc >= 0) & (column + dc < SIDE) & (row < SIDE)
        cell = (position + dr * SIDE + dc)[:, None] * CHANNELS + channel[None, :]
        shifted = tl.load(source + cell, mask=inside[:, None], other=0.0)
        taps = tl.load(weight + tap * CHANNELS * CHANNELS + matrix)
        total = tl.dot(shifted, taps, total, input_precision=PRECISION)
    return total


@triton.jit(do_not_specialize=["batch"])  # a batch of 1 would be a Python number, which has no dtype
def forward_kernel(
    states, starts, lengths, n_steps,
    table_a, table_c, table_e,
    weight1, weight2, bias1, bias2, map1, map2,
    gamma1, beta1, gamma2, beta2, gamma3, beta3,
    stages, active1, active2, normal1, normal2, normal3, rstd1, rstd2, rstd3, error_squares,
    batch, rtol, atol, eps,
    SIDE: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, N_STAGES: tl.constexpr,
    PRECISION: tl.constexpr, SAVE: tl.constexpr,
):  # fmt: skip
    """Compute all steps of one sample.

    Stage evaluation j = m (N_STAGES - 1) + i is stage i of step m; the last stage of a step is the first of the next.

    Tensors:
        states: (n + 1, B, P, C); the first slice is y0, the others receive the states at the right edges of the steps.
        starts, lengths: Left edges and step sizes, (n,).
        table_a, table_c, table_e: Coefficients of the method: (stages, stages), (stages,), (stages,) for the error.
        weight1, weight2: (9, in, out), in the storage type.
        map1, map2: Time maps, (P, C).
        stages: Output (J, B, P, C).
        active1, active2: Inputs of the convolutions, (J, B, P, C); without SAVE all evaluations use the same memory.
        normal1, normal2, normal3: With SAVE, normalised values (J, B, P, C).
        rstd1, rstd2, rstd3: With SAVE, 1 / std (J, B, C).
        error_squares: Output (n, B), sums of the squared error in units of the tolerance.
    """
    sample = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    size: tl.constexpr = SIDE * SIDE * CHANNELS
    count: tl.constexpr = SIDE * SIDE * (CHANNELS // GROUPS)
    valid = (position < SIDE * SIDE)[:, None]
    tile = position[:, None] * CHANNELS + channel[None, :]
    sample_at = sample * size
    stage_stride = batch.to(tl.int64) * size
    g1, b1 = tl.load(gamma1 + channel), tl.load(beta1 + channel)
    g2, b2 = tl.load(gamma2 + channel), tl.load(beta2 + channel)
    g3, b3 = tl.load(gamma3 + channel), tl.load(beta3 + channel)
    for m in range(0, n_steps):
        start = tl.load(starts + m)
        length = tl.load(lengths + m)
        first = tl.where(m == 0, 0, 1)
        for i in range(first, N_STAGES):
            # The state stays in memory, since the convolutions need the registers.
            argument = tl.load(states + m * stage_stride + sample_at + tile, mask=valid, other=0.0)
            for j in range(0, i):
                a = tl.load(table_a + i * N_STAGES + j) * length
                k = tl.load(stages + (m * (N_STAGES - 1) + j) * stage_stride + sample_at + tile, mask=valid, other=0.0)
                argument += a * k
            if i == N_STAGES - 1:
                tl.store(states + (m + 1) * stage_stride + sample_at + tile, argument, mask=valid)
            t = start + tl.load(table_c + i) * length
            evaluation = m * (N_STAGES - 1) + i
            saved_at = evaluation * stage_stride if SAVE else 0
            rstd_at = (evaluation * batch + sample) * CHANNELS if SAVE else sample * CHANNELS

            x, r = _normalise(argument, valid, count, eps, CHANNELS, GROUPS)
            a1 = tl.where(valid, tl.maximum(x * g1[None, :] + b1[None, :], 0.0), 0.0)
            tl.store(active1 + saved_at + sample_at + tile, a1.to(active1.dtype.element_ty), mask=valid)
            if SAVE:
                tl.store(normal1 + saved_at + sample_at + tile, x.to(normal1.dtype.element_ty), mask=valid)
                tl.store(rstd1 + rstd_at + channel, r)
            tl.debug_barrier()
            z = _conv3x3(active1 + saved_at + sample_at, weight1, 1, SIDE, TILE, CHANNELS, PRECISION)
            z += tl.load(bias1 + channel)[None, :] + t * tl.load(map1 + tile, mask=valid, other=0.0)

            x, r = _normalise(z, valid, count, eps, CHANNELS, GROUPS)
            a2 = tl.where(valid, tl.maximum(x * g2[None, :] + b2[None, :], 0.0), 0.0)
            tl.store(active2 + saved_at + sample_at + tile, a2.to(active2.dtype.element_ty), mask=valid)
            if SAVE:
                tl.store(normal2 + saved_at + sample_at + tile, x.to(normal2.dtype.element_ty), mask=valid)
                tl.store(rstd2 + rstd_at + channel, r)
            tl.debug_barrier()
            z = _conv3x3(active2 + saved_at + sample_at, weight2, 1, SIDE, TILE, CHANNELS, PRECISION)
            z += tl.load(bias2 + channel)[None, :] + t * tl.load(map2 + tile, mask=valid, other=0.0)

            x, r = _normalise(z, valid, count, eps, CHANNELS, GROUPS)
            if SAVE:
                tl.store(normal3 + saved_at + sample_at + tile, x.to(normal3.dtype.element_ty), mask=valid)
                tl.store(rstd3 + rstd_at + channel, r)
            k_new = x * g3[None, :] + b3[None, :]
            tl.store(stages + evaluation * stage_stride + sample_at + tile, k_new, mask=valid)
            tl.debug_barrier()
        error = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
        for j in range(0, N_STAGES):
            e = tl.load(table_e + j) * length
            k = tl.load(stages + (m * (N_STAGES - 1) + j) * stage_stride + sample_at + tile, mask=valid, other=0.0)
            error += e * k
        before = tl.load(states + m * stage_stride + sample_at + tile, mask=valid, other=0.0)
        after = tl.load(states + (m + 1) * stage_stride + sample_at + tile, mask=valid, other=0.0)
        ratio = error / (atol + rtol * tl.maximum(tl.abs(before), tl.abs(after)))
        ratio = tl.where(valid, ratio, 0.0)
        tl.store(error_squares + m * batch + sample, tl.sum(tl.sum(ratio * ratio, axis=1), axis=0))


@triton.jit(do_not_specialize=["batch"])  # a batch of 1 would be a Python number, which has no dtype
def backward_kernel(
    d_stages, d_state, carried, lengths, n_steps,
    table_a, weight1, weight2, gamma1, beta1, gamma2, beta2, gamma3,
    normal1, normal2, normal3, rstd1, rstd2, rstd3,
    d_conv1, d_conv2, d_argument, d_affine,
    batch,
    SIDE: tl.constexpr, TILE: tl.constexpr, CHANNELS: tl.constexpr, GROUPS: tl.constexpr, N_STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Propagate the gradients of all stages of one sample back to its initial state, in reverse order.

    Tensors:
        d_stages: (J, B, P, C).
        d_state: (B, P, C), zero at the start; receives the gradient of y0.
        carried: (B, P, C), zero at the start; gradient of the stage that a step shares with the one before.
        weight1, weight2: (9, out, in), in the storage type.
        normal1, normal2, normal3, rstd1, rstd2, rstd3: Saved by the forward kernel.
        d_conv1, d_conv2: Outputs (J, B, P, C), gradients of the convolutions' outputs, for the weight gradients.
        d_argument: (stages, B, P, C), scratch for the gradients of the stage arguments of one step.
        d_affine: Output (B, 6, C), gradients of the norms' scales and shifts.
    """
    sample = tl.program_id(0).to(tl.int64)
    position = tl.arange(0, TILE)
    channel = tl.arange(0, CHANNELS)
    size: tl.constexpr = SIDE * SIDE * CHANNELS
    count: tl.constexpr = SIDE * SIDE * (CHANNELS // GROUPS)
    valid = (position < SIDE * SIDE)[:, None]
    tile = position[:, None] * CHANNELS + channel[None, :]
    sample_at = sample * size
    stage_stride = batch.to(tl.int64) * size
    g1, b1 = tl.load(gamma1 + channel), tl.load(beta1 + channel)
    g2, b2 = tl.load(gamma2 + channel), tl.load(beta2 + channel)
    g3 = tl.load(gamma3 + channel)
    d_g1, d_b1 = tl.zeros((CHANNELS,), dtype=tl.float32), tl.zeros((CHANNELS,), dtype=tl.float32)
    d_g2, d_b2 = tl.zeros((CHANNELS,), dtype=tl.float32), tl.zeros((CHANNELS,), dtype=tl.float32)
    d_g3, d_b3 = tl.zeros((CHANNELS,), dtype=tl.float32), tl.zeros((CHANNELS,), dtype=tl.float32)
    for back in range(0, n_steps):
        m = n_steps - 1 - back
        length = tl.load(lengths + m)
        last = tl.where(m == 0, N_STAGES, N_STAGES - 1)
        for back_i in range(0, last):
            i = N_STAGES - 1 - back_i
            evaluation = m * (N_STAGES - 1) + i
            saved_at = evaluation * stage_stride + sample_at
            rstd_at = (evaluation * batch + sample) * CHANNELS
            d = tl.load(d_stages + saved_at + tile, mask=valid, other=0.0).to(tl.float32)
            if i == N_STAGES - 1:
                # The last stage of this step is the first of the next, which has left its part in ``carried``.
                d += tl.load(carried + sample_at + tile, mask=valid, other=0.0)
            for later in range(i + 1, N_STAGES):
                a = tl.load(table_a + later * N_STAGES + i) * length
                d += a * tl.load(d_argument + later * stage_stride + sample_at + tile, mask=valid, other=0.0)

            x = tl.load(normal3 + saved_at + tile, mask=valid, other=0.0).to(tl.float32)
            r = tl.load(rstd3 + rstd_at + channel)
            d, d_scale, d_shift = _normalise_backward(d, x, r, g3, count, CHANNELS, GROUPS)
            d_g3 += d_scale
            d_b3 += d_shift
            tl.store(d_conv2 + saved_at + tile, d.to(d_conv2.dtype.element_ty), mask=valid)
            tl.debug_barrier()
            d = _conv3x3(d_conv2 + saved_at, weight2, -1, SIDE, TILE, CHANNELS, PRECISION)

            x = tl.load(normal2 + saved_at + tile, mask=valid, other=0.0).to(tl.float32)
            r = tl.load(rstd2 + rstd_at + channel)
            d = tl.where((x * g2[None, :] + b2[None, :] > 0.0) & valid, d, 0.0)
            d, d_scale, d_shift = _normalise_backward(d, x, r, g2, count, CHANNELS, GROUPS)
            d_g2 += d_scale
            d_b2 += d_shift
            tl.store(d_conv1 + saved_at + tile, d.to(d_conv1.dtype.element_ty), mask=valid)
            tl.debug_barrier()
            d = _conv3x3(d_conv1 + saved_at, weight1, -1, SIDE, TILE, CHANNELS, PRECISION)

            x = tl.load(normal1 + saved_at + tile, mask=valid, other=0.0).to(tl.float32)
            r = tl.load(rstd1 + rstd_at + channel)
            d = tl.where((x * g1[None, :] + b1[None, :] > 0.0) & valid, d, 0.0)
            d, d_scale, d_shift = _normalise_backward(d, x, r, g1, count, CHANNELS, GROUPS)
            d_g1 += d_scale
            d_b1 += d_shift
            if i == N_STAGES - 1:
                # The last stage's argument is the state at the end of the step.
                d += tl.load(d_state + sample_at + tile, mask=valid, other=0.0)
            tl.store(d_argument + i * stage_stride + sample_at + tile, d, mask=valid)
            tl.debug_barrier()
        total = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
        share = tl.zeros((TILE, CHANNELS), dtype=tl.float32)
        for i in range(tl.where(m == 0, 0, 1), N_STAGES):
            d = tl.load(d_argument + i * stage_stride + sample_at + tile, mask=valid, other=0.0)
            total += d
            share += tl.load(table_a + i * N_STAGES) * length * d
        tl.store(d_state + sample_at + tile, total, mask=valid)
        tl.store(carried + sample_at + tile, share, mask=valid)
        tl.debug_barrier()
    rows = d_affine + sample * 6 * CHANNELS + channel
    tl.store(rows, d_g1)
    tl.store(rows + CHANNELS, d_b1)
    tl.store(rows + 2 * CHANNELS, d_g2)
    tl.store(rows + 3 * CHANNELS, d_b2)
    tl.store(rows + 4 * CHANNELS, d_g3)
    tl.store(rows + 5 * CHANNELS, d_b3)
