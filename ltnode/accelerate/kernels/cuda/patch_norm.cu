// First layers of a stem in one kernel per direction: convolution of few channels without padding, GroupNorm with two channels
// per group, ReLU.
//
// Formula: x = W patch + bias,  x' = x - mean,  y = relu(slope x' + shift)  with slope = rstd scale, where mean and rstd are
// those of a sample and group. With d the gradient of y where y > 0, the gradient of x is
//     dx = slope d + by_x x' + level,   by_x = -rstd^3 mean(scale d x'),   level = -rstd mean(scale d),   means over the group.
// The gradients of shift, scale, bias and W are the sums over positions of d, rstd d x', dx and dx patch^T. As x' is linear in
// the patch, two GEMMs suffice for all of them: d^T patches and patches^T patches, and the sums of d and of the patches.
//
// Shapes: images (N, CHANNELS, HEIGHT, WIDTH) float32; W (OUT, K) float32, rounded to bfloat16; y (N, POSITIONS, OUT) bfloat16.
//
// Work: one block of eight warps per sample. Shared memory holds the im2col matrix of the image (patch_tile.cuh). The convolution
// is cheap enough to be computed again in every pass over the positions, so x never reaches memory. Forward: a pass for the
// statistics, a pass for the output. Backward: one pass for d^T patches, with the gradients of y prefetched into registers two
// tiles ahead, one for patches^T patches, and an epilogue that combines them.
//
// Synchronisation: block barriers between passes and around every reuse of shared memory.
//
// Defined by the host: see patch_tile.cuh. Launched by patch_norm.py. Reference: the layers of torch.nn; test:
// tests/accelerate/kernels/test_patch_norm.py.

#include "primitives.cuh"
#include "relu_mask.cuh"
#include "patch_tile.cuh"

// Outputs: out; means and rstds (N, GROUPS) for the backward pass.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    patch_norm_forward(const float* images, const float* weight, const float* bias, const float* scale, const float* shift,
                       float eps, u32* out, float* means, float* rstds) {
    SHARED_MEMORY(shared);
    float* sums = reinterpret_cast<float*>(shared + SUMS_AT);
    const Cell c = cell();
    const int group = c.channel / 2;
    const Layer layer = load_layer(weight, bias, c);
    write_patches(shared, images);

    // Sum x - near and its square, where ``near`` is a value of the group: this avoids cancellation if the mean is large.
    float near[2], start[4], sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f}, count = 0.0f;
    {
        Values x;
        convolve(x, layer, layer.bias, shared, c.share % TILES, c);
        UNROLL for (int m = 0; m < 2; m++) near[m] = c.valid(c.share % TILES, 0, 0) ? x[0][m][0] : 0.0f;
    }
    UNROLL for (int i = 0; i < 4; i++) start[i] = layer.bias[i] - near[i / 2];
    for (int tile = c.share; tile < TILES; tile += SHARES) {
        Values x;
        convolve(x, layer, start, shared, tile, c);
        const bool whole = tile < POSITIONS / 16;
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int e = 0; e < 2; e++) {
                const bool counts = whole || c.valid(tile, half, e);
                UNROLL for (int m = 0; m < 2; m++) {
                    if (!counts) x[half][m][e] = x[half][m][2 + e] = 0.0f;
                    sum[m] += x[half][m][e] + x[half][m][2 + e];
                    squares[m] += x[half][m][e] * x[half][m][e];
                    squares[m] += x[half][m][2 + e] * x[half][m][2 + e];
                }
                count += counts ? 2.0f : 0.0f;
            }
    }
    UNROLL for (int m = 0; m < 2; m++) partial_sum(count * near[m] + sum[m], sums, 0, group + m, c);
    block_barrier();
    float mean[2], rstd[2];
    UNROLL for (int m = 0; m < 2; m++) {
        mean[m] = total(sums, 0, group + m, c) * (1.0f / COUNT);
        float off = mean[m] - near[m];
        partial_sum(squares[m] + off * (count * off - 2.0f * sum[m]), sums, 1, group + m, c);
    }
    block_barrier();
    UNROLL for (int m = 0; m < 2; m++) {
        rstd[m] = rsqrtf(total(sums, 1, group + m, c) * (1.0f / COUNT) + eps);
        if (c.share == 0 && c.lane % 4 == 0) {
            means[c.sample * GROUPS + group + m] = mean[m];
            rstds[c.sample * GROUPS + group + m] = rstd[m];
        }
    }

    float slope[4], level[4];  // y = relu(slope x + level)
    UNROLL for (int i = 0; i < 4; i++) {
        slope[i] = rstd[i / 2] * scale[c.channel + i];
        level[i] = shift[c.channel + i] - mean[i / 2] * slope[i];
    }
    for (int tile = c.share; tile < TILES; tile += SHARES) {
        Values x;
        convolve(x, layer, layer.bias, shared, tile, c);
        const bool whole = tile < POSITIONS / 16;
        UNROLL for (int half = 0; half < 2; half++)
            UNROLL for (int e = 0; e < 2; e++) {
                Four y;
                UNROLL for (int m = 0; m < 2; m++)
                    y.pair[m] = bf16_pair_relu(slope[2 * m] * x[half][m][e] + level[2 * m],
                                               slope[2 * m + 1] * x[half][m][2 + e] + level[2 * m + 1]);
                if (whole || c.valid(tile, half, e)) *reinterpret_cast<Four*>(out + c.at(tile, half, e)) = y;
            }
    }
}

// d_out like out. Output: gradients (N, OUT (3 + K)), per sample those of scale, shift, bias and W.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    patch_norm_backward(const float* images, const float* weight, const float* bias, const float* scale, const float* shift,
                        const float* means, const float* rstds, const u32* d_out, float* gradients) {
    SHARED_MEMORY(shared);
    float* sums = reinterpret_cast<float*>(shared + SUMS_AT);
    const Cell c = cell();
    const Four* first = reinterpret_cast<const Four*>(d_out + c.at(0, 0, 0));
    Gradients d[STAGES];
    UNROLL for (int stage = 0; stage < STAGES; stage++) load_gradients(d[stage], first, c.share + stage * SHARES, c);
    Layer layer = load_layer(weight, bias, c);
    float start[4];
    UNROLL for (int i = 0; i < 4; i++) {
        const int group = c.sample * GROUPS + c.channel / 2 + i / 2;
        start[i] = mask_start(layer.bias[i], means[group], rstds[group], scale[c.channel + i], shift[c.channel + i]);
    }
    flip_signs(layer, scale, c);
    write_patches(shared, images);

    // d^T patches, and the sum of d (the same in all columns).
    float d_weight[2][2 * KS][4], sum_d[2][4];
    zero(d_weight[0]), zero(d_weight[1]), zero(sum_d);
    for (int base = c.share; base < TILES; base += STAGES * SHARES)
        UNROLL for (int stage = 0; stage < STAGES; stage++) {
            int tile = base + stage * SHARES;
            if (stage > 0 && tile >= TILES) break;
            Values mask;
            convolve(mask, layer, start, shared, tile, c);
            uint4 left[2] = {active_gradients(d[stage], mask, 0), active_gradients(d[stage], mask, 1)};
            load_gradients(d[stage], first, tile + STAGES * SHARES, c);
            Rights right;
            load_rights(right, shared, tile, c);
            UNROLL for (int m = 0; m < 2; m++) {
                UNROLL for (int n = 0; n < 2 * KS; n++) mma(d_weight[m][n], left[m], right[n][0], right[n][1]);
                mma(sum_d[m], left[m], ONES, ONES);
            }
        }

    // patches^T patches, and the sum of the patches. All warps share the tiles, whatever their channels.
    float products[KS][2 * KS][4], patch_sums[KS][4];
    zero(patch_sums);
    UNROLL for (int s = 0; s < KS; s++) zero(products[s]);
    const int warp = threadIdx.x / 32;
    for (int tile = warp; tile < TILES; tile += THREADS / 32) {
        Rights right;
        load_rights(right, shared, tile, c);
        UNROLL for (int s = 0; s < KS; s++) {
            uint4 left = make_uint4(right[2 * s][0], right[2 * s + 1][0], right[2 * s][1], right[2 * s + 1][1]);
            UNROLL for (int n = 0; n < 2 * KS; n++) mma(products[s][n], left, right[n][0], right[n][1]);
            mma(patch_sums[s], left, ONES, ONES);
        }
    }
    flip_signs(layer, scale, c);
    block_barrier();  // the patches are no longer read
    float* parts = reinterpret_cast<float*>(shared);  // patches^T patches of each warp: (THREADS / 32, ROW, ROW)
    UNROLL for (int i = 0; i < 2 * KS; i++) {
        int row = 8 * i + c.lane / 4;
        UNROLL for (int n = 0; n < 2 * KS; n++)
            pair_at(parts, warp * ROW + row, 8 * n + c.column, c) =
                make_float2(products[i / 2][n][2 * (i % 2)], products[i / 2][n][2 * (i % 2) + 1]);
        if (c.lane % 4 == 0) sums[PATCH_PARTS * THREADS + warp * ROW + row] = patch_sums[i / 2][2 * (i % 2)];
    }
    UNROLL for (int i = 0; i < 4; i++) {
        float sum = 0.0f;  // of d (W patch): d x' without the constant bias - mean
        UNROLL for (int k = 0; k < 4 * KS; k++) sum += layer.at(i, k / 2, k % 2) * d_weight[i / 2][k / 2][2 * (i % 2) + k % 2];
        partial_sum(sum, sums, DX, c.channel + i, c);
        if (c.lane % 4 == 0) sums[(D * SHARES + c.share) * OUT + c.channel + i] = sum_d[i / 2][2 * (i % 2)];
    }
    block_barrier();
    for (int i = 4 * threadIdx.x; i < ROW * ROW; i += 4 * THREADS) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        UNROLL for (int w = 0; w < THREADS / 32; w++) {
            float4 part = *reinterpret_cast<float4*>(parts + w * ROW * ROW + i);
            sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
        }
        *reinterpret_cast<float4*>(sums + i) = sum;
    }
    float* patch_sum = sums + PATCH_SUMS * THREADS;
    if (threadIdx.x < ROW) {
        float sum = 0.0f;
        UNROLL for (int w = 0; w < THREADS / 32; w++) sum += sums[PATCH_PARTS * THREADS + w * ROW + threadIdx.x];
        patch_sum[threadIdx.x] = sum;
    }
    block_barrier();  // ``parts`` is free again and now holds d^T patches: (SHARES, OUT, ROW)
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int n = 0; n < 2 * KS; n++)
            pair_at(parts, c.share * OUT + c.channel + i, 8 * n + c.column, c) =
                make_float2(d_weight[i / 2][n][2 * (i % 2)], d_weight[i / 2][n][2 * (i % 2) + 1]);
    float* own = gradients + size_t(c.sample) * OUT * (3 + K);
    // dx = slope d + by_x x' + level. Parameters are loaded again: the passes above have no registers to keep them.
    float slope[4], centre[4], by_x[2] = {0.0f, 0.0f}, level[2] = {0.0f, 0.0f};
    UNROLL for (int i = 0; i < 4; i++) {
        const int group = c.sample * GROUPS + c.channel / 2 + i / 2;
        const float rstd = rstds[group], sum_of_d = total(sums, D, c.channel + i, c);
        centre[i] = bias[c.channel + i] - means[group];
        float d_x = total(sums, DX, c.channel + i, c) + centre[i] * sum_of_d;
        slope[i] = rstd * scale[c.channel + i];
        level[i / 2] -= slope[i] * sum_of_d * (1.0f / COUNT);
        by_x[i / 2] -= slope[i] * d_x * rstd * rstd * (1.0f / COUNT);
        if (c.share == 0 && c.lane % 4 == 0) {
            own[c.channel + i] = rstd * d_x;
            own[OUT + c.channel + i] = sum_of_d;
        }
    }
    block_barrier();

    for (int n = c.share; n < 2 * KS; n += SHARES) {
        const float2 patch = make_float2(patch_sum[8 * n + c.column], patch_sum[8 * n + c.column + 1]);
        float x_patch[2][4];  // sum of x' patch^T = W (patches^T patches) + centre (sum of patches)
        UNROLL for (int i = 0; i < 8; i++) x_patch[i / 4][i % 4] = centre[i / 2] * (i % 2 ? patch.y : patch.x);
        UNROLL for (int s = 0; s < KS; s++) {
            u32 thirds[3][2];  // a float32 factor as the sum of three bfloat16 values
            UNROLL for (int half = 0; half < 2; half++) {
                float2 rest = pair_at(sums, 8 * n + c.lane / 4, 16 * s + 8 * half + c.column, c);
                UNROLL for (int third = 0; third < 3; third++) {
                    u32 pair = thirds[third][half] = bf16_pair(rest.x, rest.y);
                    rest = make_float2(rest.x - low(pair), rest.y - high(pair));
                }
            }
            UNROLL for (int third = 2; third >= 0; third--)
                UNROLL for (int m = 0; m < 2; m++) mma(x_patch[m], layer.left(m, s), thirds[third][0], thirds[third][1]);
        }
        UNROLL for (int i = 0; i < 4; i++) {
            float2 d_patch = make_float2(0.0f, 0.0f);
            UNROLL for (int s = 0; s < SHARES; s++) {
                float2 part = pair_at(parts, s * OUT + c.channel + i, 8 * n + c.column, c);
                d_patch = make_float2(d_patch.x + part.x, d_patch.y + part.y);
            }
            const float* x = &x_patch[i / 2][2 * (i % 2)];
            int k = 8 * n + c.column;
            float* to = own + 3 * OUT + (c.channel + i) * K + k;
            if (k < K) to[0] = slope[i] * d_patch.x + by_x[i / 2] * x[0] + level[i / 2] * patch.x;
            if (k + 1 < K) to[1] = slope[i] * d_patch.y + by_x[i / 2] * x[1] + level[i / 2] * patch.y;
        }
    }
    if (c.share == 0)
        UNROLL for (int i = 0; i < 4; i++) {
            float x = 0.0f;  // sum of x'
            UNROLL for (int k = 0; k < 4 * KS; k++) x += layer.at(i, k / 2, k % 2) * patch_sum[8 * (k / 2) + c.column + k % 2];
            x = sum_over_four(x) + POSITIONS * centre[i];
            if (c.lane % 4 == 0)
                own[2 * OUT + c.channel + i] =
                    slope[i] * total(sums, D, c.channel + i, c) + by_x[i / 2] * x + level[i / 2] * POSITIONS;
        }
}
