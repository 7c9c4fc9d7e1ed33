// All Runge-Kutta stages of the convolutional neural ODE on a given grid, and their gradients, in one kernel per direction.
//
// Formula, with GN GroupNorm of two channels per group and conv a 3x3 convolution of a time channel and the state channels:
//     f(t, y) = GN3(conv2[t, relu(GN2(conv1[t, relu(GN1(y))]))])
//     k_i = f(t_m + c_i h_m, y_m + h_m sum_{j<i} a_ij k_j) for stage i of step m with length h_m,
//     y_{m+1} = the argument of the last stage (FSAL),   error_m = h_m sum_j e_j k_j.
// The time channel contributes t times a map that does not depend on the state (`time_map` in conv_trajectory.py).
//
// Shapes: y0 (B, P, C) float32 with C = 64 and P = SIDE^2 positions; stages (J, B, P, C) float32 with J = steps (STAGES - 1) + 1,
// since the last stage of a step is the first of the next; saved activations and gradients of the convolutions in bfloat16.
//
// Work: a block handles two samples at a time, 128 threads each, and loops over further pairs. Samples never interact. A sample's
// state and stages are register tiles (conv_tile.cuh) in float32; earlier stages are read back from global memory.
// Shared memory: the weights of both convolutions (bfloat16, for the whole trajectory), two planes of activations per sample,
// which the taps read shifted (conv_product_*.cuh), one cached float32 tile per sample, and the time maps (forward) or a slot for
// saved tiles that are being fetched (backward).
//
// Synchronisation: a named barrier per sample separates writing a plane from reading it. The tensor cores alternate between the
// two samples (ping-pong): while one multiplies, the other does norms and Runge-Kutta sums.
//
// Defined by the host: SIDE (height = width, at most 7), STAGES of the method, SAVE (keep what the backward pass needs),
// WARPGROUPS (1 to use wgmma). Launched by conv_trajectory.py. Reference: ltnode.ode.replay with ltnode.models.images.ConvField;
// test: tests/accelerate/kernels/test_conv_trajectory.py.

#include "primitives.cuh"
#include "conv_tile.cuh"
#if WARPGROUPS
#include "warpgroup.cuh"
#include "warpgroup_rows.cuh"
#include "conv_product_group.cuh"
#else
#include "conv_product_warp.cuh"
#endif

namespace {

constexpr int SAMPLES = 2;                        // per block
constexpr int WEIGHT_BYTES = 9 * C * C * 2;       // one convolution
constexpr int BOTH_WEIGHT_BYTES = 2 * WEIGHT_BYTES;
constexpr int CACHE_AT = BOTH_WEIGHT_BYTES + SAMPLES * PLANES_BYTES;  // one float32 tile per sample
constexpr int REST_AT = CACHE_AT + SAMPLES * TILE_VECTORS * 16;       // time maps, or slots
constexpr int MAP_ROWS = 3;                       // first, inner and last image row; all inner rows of a time map are equal
constexpr int ERRORS = STAGES, TIMES = STAGES + 1;  // rows of `Coefficients` after those of the stages

// Named barriers of the ping-pong. A sample that is alone in its block does not wait.
struct PingPong {
    int own, other;
    bool both;
};

DEVICE int first_sample(const Place& p) { return SAMPLES * blockIdx.x + p.slot; }

// The first sample of the first pair begins; the turns then alternate from pair to pair.
DEVICE PingPong ping_pong(int sample, int batch, const Place& p) {
    PingPong turn = {1 + SAMPLES + p.slot, 1 + SAMPLES + 1 - p.slot, sample - p.slot + 1 < batch};
    if (turn.both && p.slot == 1 && sample == first_sample(p)) pass_turn(turn.other);
    return turn;
}

DEVICE void convolve_in_turn(Tile& acc, const char* plane, const char* weights, const PingPong& turn, const Place& p) {
    if (turn.both) wait_turn(turn.own);
    start_convolution(acc, plane, weights, p);
    if (turn.both) pass_turn(turn.other);
}

// Writes a tile to a plane of shared memory in bfloat16, with or without a ReLU.
template <bool RELU>
DEVICE void write_plane(char* plane, const Tile& x, const Place& p) {
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++)
            if (p.inside[e])
                *reinterpret_cast<u32*>(plane + plane_offset(r, p.column + e, p.channel / 8) + (p.channel % 8) * 2) =
                    RELU ? bf16_pair_relu(x.v[r][e], x.v[r][2 + e]) : bf16_pair(x.v[r][e], x.v[r][2 + e]);
    fence_plane();
}

// Starts to copy data that all samples of the block share. `finish_copies` comes before the first use.
DEVICE void start_copies(char* to, const uint4* from, int bytes) {
#pragma unroll 4
    for (int i = threadIdx.x; i < bytes / 16; i += SAMPLES * THREADS_PER_SAMPLE) start_copy_16(to + 16 * i, from + i);
}

DEVICE void finish_copies() {
    wait_copies();
    fence_plane();
    block_barrier();
}

DEVICE float4* sample_cache(char* shared, const Place& p) {
    return reinterpret_cast<float4*>(shared + CACHE_AT) + p.slot * TILE_VECTORS + p.thread;
}

// Sets both planes of a sample to zero, which is the padding of the convolutions.
DEVICE void clear(char* planes, const Place& p) {
    for (int i = p.thread; i < PLANES_BYTES / 16; i += THREADS_PER_SAMPLE)
        reinterpret_cast<uint4*>(planes)[i] = make_uint4(0u, 0u, 0u, 0u);
    warpgroup_barrier(1 + p.slot);
}

// Saves the normalised values and 1 / std of one of the three norms for the backward pass; layouts as in `forward`.
DEVICE void save_norm(uint4* normals, float* rstds, int norm, size_t evaluation, size_t evaluations, int batch, int sample,
                      const Tile& x, float rstd, const Place& p) {
    if (p.column == 0) rstds[((evaluation * batch + sample) * 3 + norm) * (C / 2) + p.pair] = rstd;
    save_bf16(normals + ((norm * evaluations + evaluation) * batch + sample) * TILE_VECTORS / 2, x, p);
}

// Initialises the accumulator of a convolution with its bias and t times its time map (MAP_ROWS, thread).
DEVICE void set_bias(Tile& x, const float2& bias, float t, const float4* map) {
    UNROLL for (int r = 0; r < SIDE; r++) {
        float4 q = map[(r == 0 ? 0 : r == SIDE - 1 ? 2 : 1) * THREADS_PER_SAMPLE];
        x.v[r][0] = bias.x + t * q.x;
        x.v[r][1] = bias.x + t * q.y;
        x.v[r][2] = bias.y + t * q.z;
        x.v[r][3] = bias.y + t * q.w;
    }
}

// Sum over the warp of (error / (atol + rtol max(|before|, |after|)))^2, where error = partial + factor * last.
DEVICE float squared_error(const Tile& partial, float factor, const Tile& last, const Tile& before, const Tile& after, float rtol,
                           float atol, const Place& p) {
    float squared = 0.0f;
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int q = 0; q < 4; q++) {
            float error = partial.v[r][q] + factor * last.v[r][q];
            float ratio = __fdividef(error, atol + rtol * fmaxf(fabsf(before.v[r][q]), fabsf(after.v[r][q])));
            squared += p.inside[q % 2] ? ratio * ratio : 0.0f;
        }
    for (int distance = 1; distance < 32; distance *= 2) squared += shuffle_xor(squared, distance);
    return squared;
}

}  // namespace

// Packs the weights (out, in, 3, 3) of both convolutions, given with strides, for both directions: (direction, convolution,
// WEIGHT_BYTES). Forward, a row of the matrix is an output channel and k an input channel; backward they are exchanged and the
// taps are flipped. Also packs the time maps (C, P) as rows of tiles (2, MAP_ROWS, thread, 4).
extern "C" __global__ void pack_weights(const float* w1, const float* w2, int stride_out, int stride_in, const float* map1,
                                        const float* map2, u32* packed, float* maps) {
    int word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word < 2 * MAP_ROWS * THREADS_PER_SAMPLE * 4) {
        int q = word % 4, owner = word / 4 % THREADS_PER_SAMPLE, kind = word / (4 * THREADS_PER_SAMPLE) % MAP_ROWS;
        int r = kind == 0 ? 0 : kind == 2 ? SIDE - 1 : SIDE / 2;
        int channel = 2 * (owner / 32 * 8 + owner % 32 / 4) + q / 2, column = 2 * (owner % 4) + q % 2;
        const float* map = word / (4 * THREADS_PER_SAMPLE * MAP_ROWS) ? map2 : map1;
        maps[word] = column < SIDE ? map[channel * P + r * SIDE + column] : 0.0f;
    }
    constexpr int WORDS = WEIGHT_BYTES / 4;
    if (word >= 2 * 2 * WORDS) return;
    const Origin from = origin(word % WORDS);
    const float* w = word / WORDS % 2 ? w2 : w1;
    bool backward = word / (2 * WORDS) == 1;
    int at = backward ? from.k * stride_out + from.row * stride_in + (8 - from.tap)
                      : from.row * stride_out + from.k * stride_in + from.tap;
    packed[word] = bf16_pair(w[at], w[at + (backward ? stride_out : stride_in)]);
}

// Stage evaluation j = m (STAGES - 1) + i is stage i of step m. ``norms``: scale 1, shift 1, ... shift 3, C values each.
// Outputs: stages; squares (steps, B, warp), sums over a warp of the squared error in units of the tolerance; with SAVE,
// active1 and active2 (the inputs of the convolutions), normals (3, J, B, SIDE, thread) and rstds (J, B, 3, C / 2) of the norms.
extern "C" __global__ void __launch_bounds__(SAMPLES * THREADS_PER_SAMPLE, 1)
    forward(const float* y0, const float* starts, const float* lengths, int steps, const __grid_constant__ Coefficients method,
            const uint4* packed, const float* bias1, const float* bias2, const uint4* packed_maps, const float* norms,
            float* stages, u16* active1, u16* active2, uint4* normals, float* rstds, float* squares, int batch, float rtol,
            float atol) {
    SHARED_MEMORY(shared);
    const Place p = place();
    start_copies(shared, packed, BOTH_WEIGHT_BYTES);
    start_copies(shared + REST_AT, packed_maps, 2 * MAP_ROWS * THREADS_PER_SAMPLE * 16);
    if (first_sample(p) >= batch) {
        finish_copies();
        return;
    }

    char* planes = shared + BOTH_WEIGHT_BYTES + p.slot * PLANES_BYTES;
    char *plane1 = plane_of(planes, 0), *plane2 = plane_of(planes, 1);
    clear(planes, p);
    const float4* maps = reinterpret_cast<const float4*>(shared + REST_AT) + p.thread;  // (2, MAP_ROWS, thread)
    float4* cached = sample_cache(shared, p);  // the first stage of a step, which all later stages read
    const char *weights1 = shared, *weights2 = shared + WEIGHT_BYTES;
    const float2 g1 = channel_pair(norms, p), b1 = channel_pair(norms + C, p), g2 = channel_pair(norms + 2 * C, p);
    const float2 b2 = channel_pair(norms + 3 * C, p), g3 = channel_pair(norms + 4 * C, p), b3 = channel_pair(norms + 5 * C, p);
    const float2 bias[2] = {channel_pair(bias1, p), channel_pair(bias2, p)};
    const size_t stage_stride = size_t(batch) * SAMPLE_SIZE;

    for (int sample = first_sample(p); sample < batch; sample += SAMPLES * gridDim.x) {
        const PingPong turn = ping_pong(sample, batch, p);
        const size_t own = size_t(sample) * SAMPLE_SIZE + tile_offset(p);
        Tile y = load(y0 + own, p);
        Tile x = y;  // argument of a stage, then its value
        for (int m = 0; m < steps; m++) {
            const float start = starts[m], length = lengths[m];
            const float* first = stages + size_t(m) * (STAGES - 1) * stage_stride + own;
            for (int i = m == 0 ? 0 : 1; i < STAGES; i++) {
                const size_t evaluation = size_t(m) * (STAGES - 1) + i;
                const bool last = i == STAGES - 1;
                // While the convolutions run, accumulate the argument of the next stage (after the last stage, the error) from
                // all stages before this one.
                const int row = last ? ERRORS : i + 1;
                Tile sum = last ? zeros() : y;
                if (i > 0) add_saved(sum, method.at(row, 0) * length, cached);
                if (last) save(cached, x);  // the first stage is no longer needed; keep the state at the end of the step
                const float t = start + method.at(TIMES, i) * length;
                UNROLL for (int part = 0; part < 3; part++) {
                    float rstd = normalise(x, p);
                    if (SAVE)
                        save_norm(normals, rstds, part, evaluation, size_t(steps) * (STAGES - 1) + 1, batch, sample, x, rstd, p);
                    if (part == 2) break;
                    affine(x, part == 0 ? g1 : g2, part == 0 ? b1 : b2);
                    char* plane = part == 0 ? plane1 : plane2;
                    write_plane<true>(plane, x, p);
                    if (part == 0 && evaluation == 0 && sample == first_sample(p)) finish_copies();
                    set_bias(x, bias[part], t, maps + part * MAP_ROWS * THREADS_PER_SAMPLE);
                    wait_plane_store(p);
                    warpgroup_barrier(1 + p.slot);
                    convolve_in_turn(x, plane, part == 0 ? weights1 : weights2, turn, p);
                    u16* active = (part == 0 ? active1 : active2) + (evaluation * batch + sample) * PLANE_VALUES;
                    if (SAVE) start_plane_store(active, plane, p);
                    const int half = 1 + i / 2;  // each convolution overlaps the sum over half of the earlier stages
                    add_tiles(sum, method, row, length, first, stage_stride, part == 0 ? 1 : half,
                              part == 0 && half < i ? half : i, p);
                    finish_convolution(x);
                }
                affine(x, g3, b3);
                store(stages + evaluation * stage_stride + own, x, p);
                if (last) {
                    const Tile next = saved(cached);
                    const float squared = squared_error(sum, method.at(ERRORS, i) * length, x, y, next, rtol, atol, p);
                    if (p.lane == 0) squares[(size_t(m) * batch + sample) * 4 + p.warp] = squared;
                    y = sum = next;
                }
                if (i == 0 || last) save(cached, x);  // the last stage is the first of the next step
                if (evaluation < size_t(steps) * (STAGES - 1)) {
                    scale(x, last ? method.at(1, 0) * lengths[m + 1] : method.at(row, i) * length);
                    add_scaled(x, 1.0f, sum);
                }
            }
        }
    }
    wait_plane_store(p);
}

// The reverse sweep, from the gradients of all stages (J, B, P, C) to those of y0 (B, P, C), of the convolutions' outputs (laid
// out like active1 and active2) and, per sample, of the norms' parameters (B, 6, C), ordered like ``norms``. ``normals`` and
// ``rstds`` are those of the forward pass; ``d_arguments`` (STAGES, B, SIDE, thread) is scratch for the gradients of the stage
// arguments of one step.
extern "C" __global__ void __launch_bounds__(SAMPLES * THREADS_PER_SAMPLE, 1)
    backward(const float* d_stages, const float* lengths, int steps, const __grid_constant__ Coefficients method,
             const uint4* packed, const float* norms, const uint4* normals, const float* rstds, u16* d_conv1, u16* d_conv2,
             float4* d_arguments, float* d_y0, float* d_norms, int batch) {
    SHARED_MEMORY(shared);
    const Place p = place();
    start_copies(shared, packed, BOTH_WEIGHT_BYTES);
    if (first_sample(p) >= batch) {
        finish_copies();
        return;
    }

    char* planes = shared + BOTH_WEIGHT_BYTES + p.slot * PLANES_BYTES;
    char *plane1 = plane_of(planes, 0), *plane2 = plane_of(planes, 1);
    clear(planes, p);
    float4* cached = sample_cache(shared, p);  // gradient of the last stage's argument, which all earlier stages read
    uint4* slot = reinterpret_cast<uint4*>(shared + REST_AT) + p.slot * TILE_VECTORS / 2;
    const char *weights1 = shared, *weights2 = shared + WEIGHT_BYTES;
    const float2 g1 = channel_pair(norms, p), b1 = channel_pair(norms + C, p), g2 = channel_pair(norms + 2 * C, p);
    const float2 b2 = channel_pair(norms + 3 * C, p), g3 = channel_pair(norms + 4 * C, p);
    const size_t stage_stride = size_t(batch) * SAMPLE_SIZE;
    // Strides of ``normals`` between evaluations and between norms, and of ``d_arguments`` between stages, in vectors.
    const size_t normals_stride = size_t(batch) * TILE_VECTORS / 2;
    const size_t norm_stride = normals_stride * (size_t(steps) * (STAGES - 1) + 1);
    const size_t argument_stride = size_t(batch) * TILE_VECTORS;

    bool first = true;
    for (int sample = first_sample(p); sample < batch; sample += SAMPLES * gridDim.x) {
        const PingPong turn = ping_pong(sample, batch, p);
        const size_t own = size_t(sample) * SAMPLE_SIZE + tile_offset(p);
        const uint4* sample_normals = normals + size_t(sample) * TILE_VECTORS / 2;
        float4* arguments = d_arguments + size_t(sample) * TILE_VECTORS + p.thread;
        AffineGradients sums[3];
        for (int k = 0; k < 3; k++) sums[k].scale = sums[k].shift = make_float2(0.0f, 0.0f);

        size_t here = size_t(steps) * (STAGES - 1) * stage_stride + own;
        start_fetch(slot, sample_normals + 3 * norm_stride - normals_stride, p);
        float rstd3 = rstds[((size_t(steps) * (STAGES - 1) * batch + sample) * 3 + 2) * (C / 2) + p.pair];
        Tile d = load(d_stages + here, p);  // gradient of a stage's value, then of its argument
        Tile state = zeros();               // gradient of the state at the end of the step, then at its start
        Tile share = zeros();               // gradient of the stage that this step shares with the one before
        for (int m = steps - 1; m >= 0; m--) {
            const float length = lengths[m];
            for (int i = STAGES - 1; i >= (m == 0 ? 0 : 1); i--, here -= stage_stride) {
                const size_t evaluation = size_t(m) * (STAGES - 1) + i;
                const uint4* own_normals = sample_normals + evaluation * normals_stride;
                const float* rstd = rstds + (evaluation * batch + sample) * 3 * (C / 2) + p.pair;
                const float rstd1 = rstd[0], rstd2 = rstd[C / 2];
                // Prefetch the next gradient, 128 bytes per thread: concurrent runs may have evicted it from L2.
                if (evaluation > 0 && 32 * p.thread < SAMPLE_SIZE)
                    prefetch(d_stages + here - tile_offset(p) - stage_stride + 32 * p.thread);
                Bf16Tile x = finish_fetch(slot, p);
                normalise_backward(d, x, rstd3, g3, sums[2], p);
                write_plane<false>(plane2, d, p);
                start_fetch(slot, own_normals + norm_stride, p);
                d = zeros();
                if (first) block_barrier();  // `finish_fetch` has also completed every thread's copies of the weights
                first = false;
                wait_plane_store(p);
                warpgroup_barrier(1 + p.slot);
                convolve_in_turn(d, plane2, weights2, turn, p);
                start_plane_store(d_conv2 + (evaluation * batch + sample) * PLANE_VALUES, plane2, p);
                finish_convolution(d);
                x = finish_fetch(slot, p);
                relu_backward(d, x, g2, b2, p);
                normalise_backward(d, x, rstd2, g2, sums[1], p);
                write_plane<false>(plane1, d, p);
                start_fetch(slot, own_normals, p);
                if (evaluation > 0) rstd3 = rstd[2 * (C / 2) - batch * 3 * (C / 2)];  // of the next evaluation in this sweep
                d = zeros();
                // While the products run, load the gradient of the stage before and add the parts of all later stages but this.
                Tile sum = zeros();
                if (evaluation > 0) sum = load(d_stages + here - stage_stride, p);
                wait_plane_store(p);
                warpgroup_barrier(1 + p.slot);
                convolve_in_turn(d, plane1, weights1, turn, p);
                start_plane_store(d_conv1 + (evaluation * batch + sample) * PLANE_VALUES, plane1, p);
                if (evaluation > 0) {
                    if (i == 1) {
                        add_scaled(sum, 1.0f, share);
                        share = zeros();
                    } else if (i < STAGES - 1) {
                        add_saved(sum, method.at(STAGES - 1, i - 1) * length, cached);
                        for (int j = i + 1; j < STAGES - 1; j++)
                            add_saved(sum, method.at(j, i - 1) * length, arguments + j * argument_stride);
                    }
                }
                finish_convolution(d);
                x = finish_fetch(slot, p);
                relu_backward(d, x, g1, b1, p);
                normalise_backward(d, x, rstd1, g1, sums[0], p);
                if (i == STAGES - 1) {  // the argument of the last stage is the state at the end of the step
                    add_scaled(d, 1.0f, state);
                    state = zeros();
                    save(cached, d);
                }
                add_scaled(state, 1.0f, d);
                if (evaluation > 0) {
                    start_fetch(slot, own_normals + 2 * norm_stride - normals_stride, p);
                    if (i > 1) add_scaled(share, method.at(i, 0) * length, d);
                    if (i > 2 && i < STAGES - 1) save(arguments + i * argument_stride, d);  // read by stages 1 to i - 2
                    scale(d, method.at(i, i - 1) * length);
                    add_scaled(d, 1.0f, sum);
                }
            }
        }
        store(d_y0 + own, state, p);
        if (p.column == 0)
            for (int k = 0; k < 3; k++) {
                float* rows = d_norms + (size_t(sample) * 6 + 2 * k) * C + p.channel;
                *reinterpret_cast<float2*>(rows) = sums[k].scale;
                *reinterpret_cast<float2*>(rows + C) = sums[k].shift;
            }
    }
    wait_plane_store(p);
}
