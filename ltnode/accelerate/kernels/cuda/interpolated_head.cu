// Dense output at the end-times, GroupNorm of two channels per group, ReLU and mean over positions, without the states in memory.
//
// Formula, for end-time s, sample b, position p and channel c:
//     y[s, b, p, c] = base[b, p, c] + sum_j weights[s, (b,) j] stages[j, b, p, c]
//     pooled[s, b, c] = mean over p of relu(scale[c] (y - mean) rstd + shift[c]),   mean and rstd over p and the group of c.
// The backward kernel computes y again and returns d_stages[j] = sum_s weights[s, j] d_y[s] and d_base = sum_s d_y[s].
//
// Shapes: stages (J, B, P, C) with J = EVALUATIONS; base (B, P, C); weights[b * stride + j * row + s], where stride is 0 if all
// samples share the end-times; pooled (S, B, C). Everything is float32; products are split TF32 (head_tile.cuh).
//
// Work: a block handles 16 channels of one sample after another, at up to CHUNK end-times at a time. Registers hold the states.
// Shared memory holds eight stages at a time, the weights and (backward) statistics, both double-buffered, and the warps' sums.
// The base is one more stage with weight 1.
//
// Synchronisation: a block barrier at the start of each unit of work and one in each sum over the block. The copies of the next
// unit start as soon as `interpolate` has read the stages, and overlap the norm.
//
// Defined by the host: EVALUATIONS; EXTRA (0 or 2 end-times in addition to eight at a time); CHUNKED (1 if there are more
// end-times than 8 + EXTRA); POSITIONS; CHANNELS. Launched by interpolated_head.py, which also names the reference; test:
// tests/accelerate/kernels/test_interpolated_head.py.

#include "primitives.cuh"
#include "head_tile.cuh"

// means and rstds (S, B, C / 2) are outputs for the backward pass.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    head_forward(const float* stages, const float* base, const float* weights, const float* scale, const float* shift, int ends,
                 int batch, int row, int stride, float eps, float* pooled, float* means, float* rstds) {
    SHARED_MEMORY(memory);
    float* weight_buffers = reinterpret_cast<float*>(memory + STAGES_BYTES);
    float4* shared = reinterpret_cast<float4*>(memory + STAGES_BYTES + 2 * WEIGHTS);
    const Cell c = cell();
    const Inputs inputs = {stages, base, weights, ends, batch, row, stride};
    const int channel = piece() * 2 * GROUPS + 2 * c.group;
    const float2 g = *reinterpret_cast<const float2*>(scale + channel), b = *reinterpret_cast<const float2*>(shift + channel);
    const int other = CHUNKED || stride > 0 ? WEIGHTS / 4 : 0;  // of the second weight buffer; 0 if weights never change
    Work work = first_work();
    start_stages(memory, inputs, work, 0, c);
    start_weights(weight_buffers, inputs, work);
    set_weights(weight_buffers);
    set_weights(weight_buffers + WEIGHTS / 4);
    for (int odd = 0; work.sample < batch; odd ^= 1) {
        const Work next = work.next(ends);
        wait_copies();
        block_barrier();
        States x;
        interpolate(x, memory, weight_buffers + odd * other, inputs, work, c);
        if (next.sample < batch) {
            start_stages(memory, inputs, next, 0, c);
            if (other > 0) start_weights(weight_buffers + (1 - odd) * other, inputs, next);
        }
        float mean[1][4] = {}, rstd[1][4] = {}, sums[2][4] = {};  // sums: of both channels
        UNROLL for (int e = 0; e < ENDS; e++) {
            UNROLL for (int i = 0; i < positions(e); i++) mean[0][e] += x.at(e, 0, i) + x.at(e, 1, i);
            mean[0][e] = sum_over_warp(e, mean[0][e]);
        }
        sum_over_block(shared, mean);
        UNROLL for (int e = 0; e < ENDS; e++) {
            mean[0][e] *= 1.0f / COUNT;
            UNROLL for (int i = 0; i < positions(e); i++) {
                float &dx = x.at(e, 0, i), &dy = x.at(e, 1, i);
                dx -= mean[0][e];
                dy -= mean[0][e];
                rstd[0][e] += inside(e, i, c) ? dx * dx + dy * dy : 0.0f;
            }
            rstd[0][e] = sum_over_warp(e, rstd[0][e]);
        }
        sum_over_block(shared + THREADS, rstd);
        UNROLL for (int e = 0; e < ENDS; e++) {
            rstd[0][e] = rsqrtf(rstd[0][e] * (1.0f / COUNT) + eps);
            const float2 slope = make_float2(rstd[0][e] * g.x, rstd[0][e] * g.y);
            UNROLL for (int i = 0; i < positions(e); i++) {
                const float active_x = fmaxf(x.at(e, 0, i) * slope.x + b.x, 0.0f);
                const float active_y = fmaxf(x.at(e, 1, i) * slope.y + b.y, 0.0f);
                sums[0][e] += inside(e, i, c) ? active_x : 0.0f;
                sums[1][e] += inside(e, i, c) ? active_y : 0.0f;
            }
            sums[0][e] = sum_over_warp(e, sums[0][e]);
            sums[1][e] = sum_over_warp(e, sums[1][e]);
        }
        sum_over_block(shared + 2 * THREADS, sums);
        UNROLL for (int e = 0; e < ENDS; e++) {
            const int end = end_time(e, c);
            if (work.first + end >= ends || c.warp != e || (e >= 2 && c.quarter != 0)) continue;
            const size_t at = inputs.groups(work, end) + c.group;
            *reinterpret_cast<float2*>(pooled + 2 * at) =
                make_float2(sums[0][e] * (1.0f / POSITIONS), sums[1][e] * (1.0f / POSITIONS));
            means[at] = mean[0][e];
            rstds[at] = rstd[0][e];
        }
        work = next;
    }
}

// Outputs: d_stages and d_base like stages and base; d_affine (blocks that share a sample's channels, 2, C), the gradients of
// scale and shift.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    head_backward(const float* stages, const float* base, const float* weights, const float* scale, const float* shift,
                  const float* means, const float* rstds, const float* d_pooled, int ends, int batch, int row, int stride,
                  float* d_stages, float* d_base, float* d_affine) {
    SHARED_MEMORY(memory);
    float* weight_buffers = reinterpret_cast<float*>(memory + STAGES_BYTES);
    // Statistics (CHUNK, GROUPS): mean, 1 / std and the gradients of both channels' outputs.
    float4* statistics = reinterpret_cast<float4*>(memory + STAGES_BYTES + 2 * WEIGHTS);
    float4* affine = statistics + 2 * STATISTICS / 16;  // (GROUPS): both scales, both shifts
    float4* shared = affine + GROUPS;
    const Cell c = cell();
    const Inputs inputs = {stages, base, weights, ends, batch, row, stride};
    const int channel = piece() * 2 * GROUPS + 2 * c.group;
    const int other = CHUNKED || stride > 0 ? WEIGHTS / 4 : 0;  // of the second weight buffer; 0 if weights never change
    auto start_statistics = [&](const Work& work, int odd) {
        static_assert(CHUNK * GROUPS <= THREADS, "a thread for every group of every end-time");
        const int end = threadIdx.x / GROUPS;
        if (end >= CHUNK) return;
        float4* to = statistics + odd * STATISTICS / 16 + threadIdx.x;
        if (work.first + end < ends) {
            const size_t at = inputs.groups(work, end) + threadIdx.x % GROUPS;
            start_copy_4(&to->x, means + at);
            start_copy_4(&to->y, rstds + at);
            start_copy_8(&to->z, d_pooled + 2 * at);
        } else {
            *to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    };
    Work work = first_work();
    start_stages(memory, inputs, work, 0, c);
    start_weights(weight_buffers, inputs, work);
    start_statistics(work, 0);
    set_weights(weight_buffers);
    set_weights(weight_buffers + WEIGHTS / 4);
    if (c.warp == 0 && c.quarter == 0)
        affine[c.group] = make_float4(scale[channel], scale[channel + 1], shift[channel], shift[channel + 1]);
    float d_own[1][4] = {};  // gradients of both scales and both shifts, from the warp's positions
    for (int odd = 0; work.sample < batch; odd ^= 1) {
        const float* own_weights = weight_buffers + odd * other;
        const float4* own_statistics = statistics + odd * STATISTICS / 16 + c.group;
        const Work next = work.next(ends);
        wait_copies();
        block_barrier();
        States x;
        interpolate(x, memory, own_weights, inputs, work, c);
        if (next.sample < batch) {
            start_stages(memory, inputs, next, 0, c);
            if (other > 0) start_weights(weight_buffers + (1 - odd) * other, inputs, next);
            start_statistics(next, 1 - odd);
        }
        float4 a = affine[c.group];
        // Means over the group of d (the gradient of the normalised state n) and of d n.
        float means_d[2][4] = {};
        UNROLL for (int e = 0; e < ENDS; e++) {
            const float4 k = own_statistics[end_time(e, c) * GROUPS];
            // Sums over the active ReLUs of 1 and of n.
            float2 active = make_float2(0.0f, 0.0f), normals = make_float2(0.0f, 0.0f);
            UNROLL for (int i = 0; i < positions(e); i++) {
                float &nx = x.at(e, 0, i), &ny = x.at(e, 1, i);
                nx = nx * k.y - k.x * k.y;
                ny = ny * k.y - k.x * k.y;
                const float active_x = inside(e, i, c) ? is_positive(nx * a.x + a.z) : 0.0f;
                const float active_y = inside(e, i, c) ? is_positive(ny * a.y + a.w) : 0.0f;
                active.x += active_x;
                active.y += active_y;
                normals.x += active_x * nx;
                normals.y += active_y * ny;
            }
            const float2 d_scale = make_float2(normals.x * k.z, normals.y * k.w);
            const float2 d_shift = make_float2(active.x * k.z, active.y * k.w);
            d_own[0][0] += d_scale.x;
            d_own[0][1] += d_scale.y;
            d_own[0][2] += d_shift.x;
            d_own[0][3] += d_shift.y;
            means_d[0][e] = sum_over_warp(e, d_shift.x * a.x + d_shift.y * a.y);
            means_d[1][e] = sum_over_warp(e, d_scale.x * a.x + d_scale.y * a.y);
        }
        sum_over_block(shared, means_d);
        a = affine[c.group];  // reloaded so that the ReLU masks are computed again: there are too few registers to keep them
        float2 slope[4];
        UNROLL for (int e = 0; e < ENDS; e++) {
            const float4 k = own_statistics[end_time(e, c) * GROUPS];
            means_d[0][e] *= k.y * (1.0f / COUNT / POSITIONS);
            means_d[1][e] *= k.y * (1.0f / COUNT / POSITIONS);
            slope[e] = make_float2(k.y * k.z * a.x * (1.0f / POSITIONS), k.y * k.w * a.y * (1.0f / POSITIONS));
        }
        // Gradients of the states at end-times e and e + 1 as the left operand of a product.
        auto gradients = [&](const float(&n)[4], int e) {
            auto gradient = [&](float n, float g, float b, float slope, int e) {
                return is_positive(n * g + b) * slope - (means_d[0][e] + n * means_d[1][e]);
            };
            return left(gradient(n[0], a.x, a.z, slope[e].x, e), gradient(n[2], a.y, a.w, slope[e].y, e),
                        gradient(n[1], a.x, a.z, slope[e + 1].x, e + 1),
                        gradient(n[3], a.y, a.w, slope[e + 1].y, e + 1));
        };
        // Adds the gradients of eight stages at one position to those of earlier end-times.
        auto add_gradients = [&](int round, int i, const Left& main, const Left& extra) {
            // Rows q and 4 + q of the right operand are end-times 2 q and 2 q + 1, the order in which the thread holds them.
            const float* w = own_weights + (round * STAGES + c.group) * CHUNK;
            float d[4] = {};
            add_product(d, main, right(w[2 * c.quarter], w[2 * c.quarter + 1]));
            if (EXTRA) add_product(d, extra, right(w[CHUNK - 2], w[CHUNK - 1]).only_if(c.quarter == i % 4));
            UNROLL for (int n = 0; n < 2; n++) {
                const int stage = round * STAGES + 2 * c.quarter + n;
                if (stage > EVALUATIONS) continue;
                float* to = stage_at(d_stages, d_base, stage, batch) + inputs.offset(work, c) + 2 * c.group;
                float2* at = reinterpret_cast<float2*>(to + i * WARPS * CHANNELS);
                const float2 before = CHUNKED && work.first > 0 ? *at : make_float2(0.0f, 0.0f);
                *at = make_float2(before.x + d[n], before.y + d[2 + n]);
            }
        };
        UNROLL for (int f = 0; f < FOURS; f++) {
            Left extra;
            if (EXTRA) extra = gradients(x.extra[f], 2);
            UNROLL for (int i = 4 * f; i < 4 * f + 4 && i < OWN; i++) {
                if (!inside(i, c)) continue;
                const Left main = gradients(x.main[i], 0);
#pragma unroll 1
                for (int round = 0; round < ROUNDS; round++) add_gradients(round, i, main, extra);
            }
        }
        work = next;
    }
    // The quarters have different end-times, or different positions of the extra ones.
    UNROLL for (int n = 0; n < 4; n++) d_own[0][n] = sum_over_four(d_own[0][n]) * (1.0f / POSITIONS);
    sum_over_block(shared + 2 * THREADS, d_own);
    if (c.warp == 0 && c.quarter == 0) {
        float* rows = d_affine + size_t(blockIdx.x / PIECES) * 2 * CHANNELS + channel;
        *reinterpret_cast<float2*>(rows) = make_float2(d_own[0][0], d_own[0][1]);
        *reinterpret_cast<float2*>(rows + CHANNELS) = make_float2(d_own[0][2], d_own[0][3]);
    }
}
