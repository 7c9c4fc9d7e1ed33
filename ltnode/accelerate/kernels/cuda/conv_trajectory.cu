// The whole trajectory of the convolutional field in bfloat16, two samples per block at a time; see conv_trajectory_triton.py for
// the mathematics, which is the same, and conv_trajectory_cuda.py for the launches.
//
// A sample belongs to four warps, in whose registers it is a tile (conv_tile.cuh), and never meets another one. The kernels of
// both convolutions stay in shared memory for the whole trajectory; activations pass through planes of shared memory, where the
// taps read them shifted.
//
// Defined by the host: SIDE (height = width, at most 7), STAGES of the Runge-Kutta method, SAVE (keep what backward needs),
// WARPGROUPS (whether the card has their products).

#include "conv_tile.cuh"
#if WARPGROUPS
#include "warpgroup.cuh"
#include "warpgroup_rows.cuh"
#include "conv_product_group.cuh"
#else
#include "conv_product_warp.cuh"
#endif

namespace {

constexpr int SAMPLES = 2;                   // of a block
constexpr int KERNEL_BYTES = 9 * C * C * 2;  // of one convolution
constexpr int WEIGHT_BYTES = 2 * KERNEL_BYTES;
constexpr int ACTIVE_BYTES = SAMPLES * PLANES_BYTES;
constexpr int CACHE = WEIGHT_BYTES + ACTIVE_BYTES;  // where a tile of each sample begins
constexpr int REST = CACHE + SAMPLES * KEPT * 16;   // where time maps or slots begin
constexpr int MAP_ROWS = 3;                         // the first, one between, the last
constexpr int ERRORS = STAGES, TIMES = STAGES + 1;  // rows of coefficients after those of the stages

// The products of one sample, then those of the other, which does something else meanwhile: two at a time would take each twice
// as long. A sample alone in its block does not wait.
struct Turns {
    int own, other;
    bool both;
};

DEVICE int first_sample(const Place& p) { return SAMPLES * blockIdx.x + p.slot; }

// The second sample's first turn comes after one of the first; after their last ones it is the next pair's turn.
DEVICE Turns turns(int sample, int batch, const Place& p) {
    Turns t = {1 + SAMPLES + p.slot, 1 + SAMPLES + 1 - p.slot, sample - p.slot + 1 < batch};
    if (t.both && p.slot == 1 && sample == first_sample(p)) pass_turn(t.other);
    return t;
}

DEVICE void convolve_in_turn(Tile& acc, const char* plane, const char* kernel, const Turns& t, const Place& p) {
    if (t.both) wait_for_turn(t.own);
    start_convolution(acc, plane, kernel, p);
    if (t.both) pass_turn(t.other);
}

// Into a plane of shared memory, gradients as they are, or activations: the positive part.
template <bool RELU>
DEVICE void expose(char* plane, const Tile& x, const Place& p) {
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (p.ok[e])
                *reinterpret_cast<u32*>(plane + piece_of(r, p.column + e, p.channel / 8) + (p.channel % 8) * 2) =
                    RELU ? bf16_pair_relu(x.v[r][e], x.v[r][2 + e]) : bf16_pair(x.v[r][e], x.v[r][2 + e]);
    publish();
}

// Begin to copy what all samples of a block share; `copies_done` and a barrier of the block come before its first use.
DEVICE void start_copies(char* to, const uint4* from, int bytes) {
#pragma unroll 4
    for (int i = threadIdx.x; i < bytes / 16; i += SAMPLES * LANES) start_copy(to + 16 * i, from + i);
}

DEVICE void all_copied() {
    copies_done();
    publish();
    block_barrier();
}

DEVICE float4* own_cache(char* shared, const Place& p) {
    return reinterpret_cast<float4*>(shared + CACHE) + p.slot * KEPT + p.thread;
}

// Both planes of a sample zero.
DEVICE void clear(char* planes, const Place& p) {
    for (int i = p.thread; i < PLANES_BYTES / 16; i += LANES)
        reinterpret_cast<uint4*>(planes)[i] = make_uint4(0u, 0u, 0u, 0u);
    sample_barrier(1 + p.slot);
}

}  // namespace

// Two kernels (out, in, 3, 3) with strides as the products read them, (2 directions, 2 convolutions, KERNEL_BYTES). Forward, a
// row of the matrix is an output channel and k an input channel; backward the other way round with flipped taps.
// Also t's parts (C, P) of both convolutions as rows of tiles (2, MAP_ROWS, thread, 4): those between are alike.
extern "C" __global__ void pack_weights(const float* w1, const float* w2, int stride_out, int stride_in, const float* map1,
                                        const float* map2, u32* kernels, float* maps) {
    int word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word < 2 * MAP_ROWS * LANES * 4) {
        int q = word % 4, owner = word / 4 % LANES, kind = word / (4 * LANES) % MAP_ROWS;
        int r = kind == 0 ? 0 : kind == 2 ? SIDE - 1 : SIDE / 2;
        int channel = 2 * (owner / 32 * 8 + owner % 32 / 4) + q / 2, column = 2 * (owner % 4) + q % 2;
        const float* map = word / (4 * LANES * MAP_ROWS) ? map2 : map1;
        maps[word] = column < SIDE ? map[channel * P + r * SIDE + column] : 0.0f;
    }
    constexpr int WORDS = KERNEL_BYTES / 4;
    if (word >= 2 * 2 * WORDS) return;
    const Origin from = origin(word % WORDS);
    const float* w = word / WORDS % 2 ? w2 : w1;
    bool backward = word / (2 * WORDS) == 1;
    int at = backward ? from.k * stride_out + from.row * stride_in + (8 - from.tap)
                      : from.row * stride_out + from.k * stride_in + from.tap;
    kernels[word] = bf16_pair(w[at], w[at + (backward ? stride_out : stride_in)]);
}

// All steps of a batch from y0 (B, P, C). Stage evaluation j = m (STAGES - 1) + i is stage i of step m; the last stage of a step
// is the first of the next. Norms: scale 1, shift 1, scale 2, ... shift 3, C each.
// squares (n, B, 4): sums over the values of a warp of the squared error in units of the tolerance.
extern "C" __global__ void __launch_bounds__(SAMPLES * LANES, 1)
    forward(const float* y0, const float* starts, const float* lengths, int steps, const __grid_constant__ Coefficients method,
            const uint4* kernels, const float* bias1, const float* bias2, const uint4* packed_maps, const float* norms,
            float* stages, u16* active1, u16* active2, uint4* normals, float* rstds, float* squares, int batch, float rtol,
            float atol) {
    SHARED_MEMORY(shared);
    const Place p = place();
    start_copies(shared, kernels, WEIGHT_BYTES);
    start_copies(shared + REST, packed_maps, 2 * MAP_ROWS * LANES * 16);
    if (first_sample(p) >= batch) {
        all_copied();
        return;
    }

    char* planes = shared + WEIGHT_BYTES + p.slot * PLANES_BYTES;
    char *plane1 = plane_of(planes, 0), *plane2 = plane_of(planes, 1);
    clear(planes, p);
    const float4* maps = reinterpret_cast<const float4*>(shared + REST) + p.thread;  // (2, MAP_ROWS, LANES)
    float4* cached = own_cache(shared, p);  // a step's first stage, which all others read
    const char *kernel1 = shared, *kernel2 = shared + KERNEL_BYTES;
    const float2 g1 = pair_of(norms, p), b1 = pair_of(norms + C, p), g2 = pair_of(norms + 2 * C, p);
    const float2 b2 = pair_of(norms + 3 * C, p), g3 = pair_of(norms + 4 * C, p), b3 = pair_of(norms + 5 * C, p);
    const float2 bias[2] = {pair_of(bias1, p), pair_of(bias2, p)};
    const size_t every = size_t(batch) * SAMPLE;

    for (int sample = first_sample(p); sample < batch; sample += SAMPLES * gridDim.x) {
        const Turns turn = turns(sample, batch, p);
        const size_t own = size_t(sample) * SAMPLE + corner(p);
        Tile y = load(y0 + own, p);
        Tile x = y;  // a stage's argument, then its value
        for (int m = 0; m < steps; m++) {
            const float start = starts[m], length = lengths[m];
            const float* first = stages + size_t(m) * (STAGES - 1) * every + own;
            for (int i = m == 0 ? 0 : 1; i < STAGES; i++) {
                const size_t evaluation = size_t(m) * (STAGES - 1) + i;
                const bool last = i == STAGES - 1;
                // Beside the last products: the next stage's argument, or the error after the last one, but for this one's part.
                const int row = last ? ERRORS : i + 1;
                Tile sum = last ? zeros() : y;
                if (i > 0) add_kept(sum, method.at(row, 0) * length, cached);
                if (last) keep(cached, x);  // no stage reads the first one any more: the state at the end of the step
                const float t = start + method.at(TIMES, i) * length;
#pragma unroll
                for (int part = 0; part < 3; part++) {
                    float rstd = normalise(x, p);
                    if (SAVE) {
                        if (p.column == 0) rstds[((evaluation * batch + sample) * 3 + part) * (C / 2) + p.pair] = rstd;
                        size_t before = part * (size_t(steps) * (STAGES - 1) + 1) + evaluation;
                        keep_bf16(normals + (before * batch + sample) * KEPT / 2, x, p);
                    }
                    if (part == 2) break;
                    affine(x, part == 0 ? g1 : g2, part == 0 ? b1 : b2);
                    expose<true>(part == 0 ? plane1 : plane2, x, p);
                    if (part == 0 && evaluation == 0 && sample == first_sample(p)) all_copied();
#pragma unroll
                    for (int r = 0; r < SIDE; r++) {
                        const int kind = r == 0 ? 0 : r == SIDE - 1 ? 2 : 1;
                        float4 q = maps[(part * MAP_ROWS + kind) * LANES];
                        x.v[r][0] = bias[part].x + t * q.x;
                        x.v[r][1] = bias[part].x + t * q.y;
                        x.v[r][2] = bias[part].y + t * q.z;
                        x.v[r][3] = bias[part].y + t * q.w;
                    }
                    copied_out(p);
                    sample_barrier(1 + p.slot);
                    const char* plane = part == 0 ? plane1 : plane2;
                    convolve_in_turn(x, plane, part == 0 ? kernel1 : kernel2, turn, p);
                    if (SAVE) copy_out((part == 0 ? active1 : active2) + (evaluation * batch + sample) * COPIED, plane, p);
                    const int half = 1 + i / 2;  // of the earlier stages beside either convolution
                    add_tiles(sum, method, row, length, first, every, part == 0 ? 1 : half, part == 0 && half < i ? half : i, p);
                    finish_convolution(x);
                }
                affine(x, g3, b3);
                store(stages + evaluation * every + own, x, p);
                if (last) {
                    const Tile next = kept(cached);
                    float squared = 0.0f;
#pragma unroll
                    for (int r = 0; r < SIDE; r++)
#pragma unroll
                        for (int q = 0; q < 4; q++) {
                            float error = sum.v[r][q] + method.at(ERRORS, i) * length * x.v[r][q];
                            float ratio = __fdividef(error, atol + rtol * fmaxf(fabsf(y.v[r][q]), fabsf(next.v[r][q])));
                            squared += p.ok[q % 2] ? ratio * ratio : 0.0f;
                        }
                    for (int distance = 1; distance < 32; distance *= 2) squared += shuffle_xor(squared, distance);
                    if (p.lane == 0) squares[(size_t(m) * batch + sample) * 4 + p.warp] = squared;
                    y = sum = next;
                }
                if (i == 0 || last) keep(cached, x);
                // The last stage is the first of the next step.
                if (evaluation < size_t(steps) * (STAGES - 1)) {
                    scale(x, last ? method.at(1, 0) * lengths[m + 1] : method.at(row, i) * length);
                    add_scaled(x, 1.0f, sum);
                }
            }
        }
    }
    copied_out(p);
}

// The reverse sweep: from the gradients of all stages (J, B, P, C) to that of y0, those of the convolutions' outputs, and per
// sample those of the norms (B, 6, C) in the order of ``norms``. ``normals`` (3, J, B, SIDE, LANES) are forward's, and
// ``d_arguments`` (STAGES, B, SIDE, LANES) is scratch.
extern "C" __global__ void __launch_bounds__(SAMPLES * LANES, 1)
    backward(const float* d_stages, const float* lengths, int steps, const __grid_constant__ Coefficients method,
             const uint4* kernels, const float* norms, const uint4* normals, const float* rstds, u16* d_conv1, u16* d_conv2,
             float4* d_arguments, float* d_y0, float* d_norms, int batch) {
    SHARED_MEMORY(shared);
    const Place p = place();
    start_copies(shared, kernels, WEIGHT_BYTES);
    if (first_sample(p) >= batch) {
        all_copied();
        return;
    }

    char* planes = shared + WEIGHT_BYTES + p.slot * PLANES_BYTES;
    char *plane1 = plane_of(planes, 0), *plane2 = plane_of(planes, 1);
    clear(planes, p);
    float4* cached = own_cache(shared, p);  // the last stage's argument's gradient, which all others read
    uint4* slot = reinterpret_cast<uint4*>(shared + REST) + p.slot * KEPT / 2;
    const char *kernel1 = shared, *kernel2 = shared + KERNEL_BYTES;
    const float2 g1 = pair_of(norms, p), b1 = pair_of(norms + C, p), g2 = pair_of(norms + 2 * C, p);
    const float2 b2 = pair_of(norms + 3 * C, p), g3 = pair_of(norms + 4 * C, p);
    const size_t every = size_t(batch) * SAMPLE;
    // As `keep` has them: an evaluation's, all evaluations' of one norm, a stage's.
    const size_t next_normals = size_t(batch) * KEPT / 2;
    const size_t all_normals = next_normals * (size_t(steps) * (STAGES - 1) + 1);
    const size_t next_argument = size_t(batch) * KEPT;

    bool first = true;
    for (int sample = first_sample(p); sample < batch; sample += SAMPLES * gridDim.x) {
        const Turns turn = turns(sample, batch, p);
        const size_t own = size_t(sample) * SAMPLE + corner(p);
        const uint4* of_sample = normals + size_t(sample) * KEPT / 2;
        float4* arguments = d_arguments + size_t(sample) * KEPT + p.thread;
        Affine sums[3];
        for (int k = 0; k < 3; k++) sums[k].scale = sums[k].shift = make_float2(0.0f, 0.0f);

        size_t here = size_t(steps) * (STAGES - 1) * every + own;
        fetch(slot, of_sample + 3 * all_normals - next_normals, p);
        float rstd3 = rstds[((size_t(steps) * (STAGES - 1) * batch + sample) * 3 + 2) * (C / 2) + p.pair];
        Tile d = load(d_stages + here, p);  // of a stage's value, then of its argument
        Tile state = zeros();               // of the state at the right edge of the step, then of that at its left edge
        Tile share = zeros();               // of the stage that this step and the one before have in common
        for (int m = steps - 1; m >= 0; m--) {
            const float length = lengths[m];
            for (int i = STAGES - 1; i >= (m == 0 ? 0 : 1); i--, here -= every) {
                const size_t evaluation = size_t(m) * (STAGES - 1) + i;
                const uint4* own_normals = of_sample + evaluation * next_normals;
                const float* rstd = rstds + (evaluation * batch + sample) * 3 * (C / 2) + p.pair;
                const float rstd1 = rstd[0], rstd2 = rstd[C / 2];
                // The next one's, 128 bytes a thread: beside other runs it may have left the cache.
                if (evaluation > 0 && 32 * p.thread < SAMPLE) prefetch(d_stages + here - corner(p) - every + 32 * p.thread);
                Packed x = fetched(slot, p);
                normalise_backward(d, x, rstd3, g3, sums[2], p);
                expose<false>(plane2, d, p);
                fetch(slot, own_normals + all_normals, p);
                d = zeros();
                if (first) block_barrier();  // the kernels' copies have come to every thread with its first values
                first = false;
                copied_out(p);
                sample_barrier(1 + p.slot);
                convolve_in_turn(d, plane2, kernel2, turn, p);
                copy_out(d_conv2 + (evaluation * batch + sample) * COPIED, plane2, p);
                finish_convolution(d);
                x = fetched(slot, p);
                relu_backward(d, x, g2, b2, p);
                normalise_backward(d, x, rstd2, g2, sums[1], p);
                expose<false>(plane1, d, p);
                fetch(slot, own_normals, p);
                if (evaluation > 0) rstd3 = rstd[2 * (C / 2) - batch * 3 * (C / 2)];  // the next one's, which it needs first
                d = zeros();
                // The gradient of the stage before comes while the products run; added to it is all but this one's part.
                Tile sum = zeros();
                if (evaluation > 0) sum = load(d_stages + here - every, p);
                copied_out(p);
                sample_barrier(1 + p.slot);
                convolve_in_turn(d, plane1, kernel1, turn, p);
                copy_out(d_conv1 + (evaluation * batch + sample) * COPIED, plane1, p);
                if (evaluation > 0) {
                    if (i == 1) {
                        add_scaled(sum, 1.0f, share);
                        share = zeros();
                    } else if (i < STAGES - 1) {
                        add_kept(sum, method.at(STAGES - 1, i - 1) * length, cached);
                        for (int j = i + 1; j < STAGES - 1; j++)
                            add_kept(sum, method.at(j, i - 1) * length, arguments + j * next_argument);
                    }
                }
                finish_convolution(d);
                x = fetched(slot, p);
                relu_backward(d, x, g1, b1, p);
                normalise_backward(d, x, rstd1, g1, sums[0], p);
                if (i == STAGES - 1) {  // its argument is the state at the end of the step
                    add_scaled(d, 1.0f, state);
                    state = zeros();
                    keep(cached, d);
                }
                add_scaled(state, 1.0f, d);
                if (evaluation > 0) {
                    fetch(slot, own_normals + 2 * all_normals - next_normals, p);
                    if (i > 1) add_scaled(share, method.at(i, 0) * length, d);
                    if (i > 2 && i < STAGES - 1) keep(arguments + i * next_argument, d);  // for the stages from 1 to i - 2
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
    copied_out(p);
}
