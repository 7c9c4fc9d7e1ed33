// Gradients of the weights, biases and time maps of the field's two 3x3 convolutions, summed over all evaluations of a
// trajectory.
//
// Formula, for a convolution with input a and output gradient d (items are samples of all evaluations, J B in all):
//     d_weight[tap, o, i] = sum over items and positions p of d[p, o] a[p + tap, i]     (a GEMM with K = items x positions)
//     d_bias[o] = sum of d[p, o],    d_map[p, o] = sum over items of t d[p, o]  with t the time of the evaluation.
//
// Shapes: a and d (items, C / 8, LINES, 8) in bfloat16: chunks of 8 channels, LINES = 8 SIDE positions in rows of 8, with zeros
// in the columns from SIDE on. Outputs are float32.
//
// Work: split-K. Even blocks handle the first convolution, odd blocks the second. Each block loops over its items, two at a time,
// and writes partial sums, which `add_parts` adds. Of the four warpgroups, three multiply (wgmma): each has a row of three taps
// in its registers, 64 x 64 sums per tap. The fourth loads the data and accumulates d_bias and d_map. Shared memory: a triple
// buffer of both operands. The activations have padding of zeros around them, so a shift by a tap is the same plane read from
// another start position.
//
// Synchronisation: producer and consumers through two mbarriers per buffer, "full" (bytes of the bulk loads) and "free" (one
// arrival per warp).
//
// Defined by the host: SIDE (height = width, at most 7). Launched by conv_gradients.py. Reference: `torch_gradients` in
// trajectory_backend.py; test: tests/accelerate/kernels/test_conv_gradients.py.

#include "primitives.cuh"
#include "warpgroup.cuh"

namespace {

constexpr int C = 64;
constexpr int P = SIDE * SIDE;
constexpr int CHUNKS = C / 8;    // of 8 channels, 16 bytes per position
constexpr int THREADS = 512, PRODUCERS = 128;
constexpr int TAPS = 3;          // per warpgroup
constexpr int LINES = 8 * SIDE;  // positions of a sample
constexpr int PADDING = 9;
constexpr int ACTIVE_LINES = (3 * PADDING + 2 * LINES) | 1;  // odd, so that the chunks of a position lie in different banks
constexpr int GRADIENT_LINES = (2 * LINES) | 1;
constexpr int ACTIVE_BYTES = 16 * CHUNKS * ACTIVE_LINES;
constexpr int BUFFER_BYTES = ACTIVE_BYTES + 16 * CHUNKS * GRADIENT_LINES;
constexpr int BUFFERS = 3;
constexpr int SUMS_AT = BUFFERS * BUFFER_BYTES;   // bias sums of four warps, (4, C)
constexpr int BARRIERS_AT = SUMS_AT + 4 * 4 * C;  // "full" of all buffers, then "free"
constexpr int OWN = (P * CHUNKS + PRODUCERS - 1) / PRODUCERS;  // 16-byte vectors of a producer thread, all of the same chunk
constexpr int AT_ONCE = 4;       // of the SIDE k-steps (16 positions each) of two samples
// Partial sums of a block: weights (9, out, in), time maps (P, C), biases (C).
constexpr int MAPS_AT = 9 * C * C;
constexpr int BIAS_AT = MAPS_AT + P * C;
constexpr int PART_SIZE = BIAS_AT + C;

// Line of a sample's first position, and of image row r of both samples together (rows from SIDE on belong to the second).
DEVICE int active_line(int sample) { return PADDING + sample * (LINES + PADDING); }
DEVICE int active_row(int row) { return active_line(row / SIDE) + 8 * (row % SIDE); }

struct Buffers {
    char* shared;
    DEVICE char* of(int number) const { return shared + number % BUFFERS * BUFFER_BYTES; }
    DEVICE Mbarrier* full(int number) const { return reinterpret_cast<Mbarrier*>(shared + BARRIERS_AT) + number % BUFFERS; }
    DEVICE Mbarrier* free(int number) const { return full(number) + BUFFERS; }
    // Called by all threads of a warp when they have finished reading a buffer.
    DEVICE void release(int number) const {
        warp_barrier();
        if (threadIdx.x % 32 == 0) mbarrier_arrive(free(number));
    }
};

// The items of a block, processed in pairs.
struct Items {
    int first, stride, count;
    DEVICE int pairs() const { return (count + 1) / 2; }
    DEVICE int item(int number) const { return first + number * stride; }
    DEVICE bool has_second(int pair) const { return 2 * pair + 1 < count; }
};

// Loads a pair into its buffer. Called by one thread of each producer warp, for the chunks of that warp.
DEVICE void load_pair(const Buffers& buffers, const u16* active, const u16* d_conv, const Items& items, int pair) {
    if (pair >= items.pairs()) return;
    if (pair >= BUFFERS) mbarrier_wait(buffers.free(pair), pair / BUFFERS - 1);
    const int samples = items.has_second(pair) ? 2 : 1, own = CHUNKS / (PRODUCERS / 32);
    mbarrier_expect(buffers.full(pair), samples * own * 2 * 16 * LINES);
    for (int s = 0; s < samples; s++)
        for (int k = 0; k < own; k++) {
            const int chunk = threadIdx.x % PRODUCERS / 32 * own + k;
            const size_t from = (size_t(items.item(2 * pair + s)) * CHUNKS + chunk) * LINES * 8;
            char* to = buffers.of(pair);
            bulk_load(to + 16 * (chunk * ACTIVE_LINES + active_line(s)), active + from, 16 * LINES, buffers.full(pair));
            bulk_load(to + ACTIVE_BYTES + 16 * (chunk * GRADIENT_LINES + s * LINES), d_conv + from, 16 * LINES,
                      buffers.full(pair));
        }
}

DEVICE void add_eight(float (&sum)[8], float factor, const uint4& eight) {
    const u32 pairs[4] = {eight.x, eight.y, eight.z, eight.w};
    UNROLL for (int i = 0; i < 8; i++) sum[i] += factor * (i % 2 ? high(pairs[i / 2]) : low(pairs[i / 2]));
}

DEVICE void store_eight(float* to, const float (&v)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// The producer warpgroup: loads all pairs and accumulates the gradients of bias and time map.
DEVICE void produce(const Buffers& buffers, const u16* active, const u16* d_conv, const float* times, float* part,
                    const Items& items, int batch) {
    const int thread = threadIdx.x % PRODUCERS;
    float maps[OWN][8], bias[8];
    UNROLL for (int i = 0; i < 8; i++) {
        bias[i] = 0.0f;
        UNROLL for (int k = 0; k < OWN; k++) maps[k][i] = 0.0f;
    }
    if (thread % 32 == 0)
        for (int pair = 0; pair + 1 < BUFFERS; pair++) load_pair(buffers, active, d_conv, items, pair);
    for (int pair = 0; pair < items.pairs(); pair++) {
        const int samples = items.has_second(pair) ? 2 : 1;
        float t[2] = {times[items.item(2 * pair) / batch], times[items.item(2 * pair + samples - 1) / batch]};
        if (thread % 32 == 0) load_pair(buffers, active, d_conv, items, pair + BUFFERS - 1);
        mbarrier_wait(buffers.full(pair), pair / BUFFERS);
        for (int s = 0; s < samples; s++) {
            const char* gradients = buffers.of(pair) + ACTIVE_BYTES + 16 * s * LINES;
            UNROLL for (int k = 0; k < OWN; k++) {
                const int i = k * PRODUCERS + thread, position = i / CHUNKS;
                if (i < P * CHUNKS) {
                    const int line = i % CHUNKS * GRADIENT_LINES + position / SIDE * 8 + position % SIDE;
                    const uint4 eight = *reinterpret_cast<const uint4*>(gradients + 16 * line);
                    add_eight(maps[k], s ? t[1] : t[0], eight);
                    add_eight(bias, 1.0f, eight);
                }
            }
        }
        buffers.release(pair);
    }
    UNROLL for (int k = 0; k < OWN; k++) {
        int i = k * PRODUCERS + thread;
        if (i < P * CHUNKS) store_eight(part + MAPS_AT + 8 * i, maps[k]);
    }
    float* sums = reinterpret_cast<float*>(buffers.shared + SUMS_AT);
    UNROLL for (int i = 0; i < 8; i++) {
        bias[i] += shuffle_xor(bias[i], 8);
        bias[i] += shuffle_xor(bias[i], 16);
    }
    if (thread % 32 < CHUNKS) store_eight(sums + thread / 32 * C + 8 * (thread % CHUNKS), bias);
    warpgroup_barrier(1);
    if (thread < C) part[BIAS_AT + thread] = (sums[thread] + sums[C + thread]) + (sums[2 * C + thread] + sums[3 * C + thread]);
}

typedef float Sums[TAPS][CHUNKS][4];  // [tap][8 inputs][2 (output of two, 8 apart) + (input of two)]

// Adds AT_ONCE k-steps of a pair for one row of taps. A k-step is image rows 2 step and 2 step + 1 of both samples together. The
// gradients are the A operand, in registers; the activations the B operand, in shared memory.
DEVICE void multiply(Sums& sums, const char* buffer, int begin, bool has_second, int row_of_taps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    // Lane 8 m + i addresses position i of row m / 2 in the warp's first or second chunk.
    const char* from = buffer + ACTIVE_BYTES + 16 * ((2 * warp + lane / 8 % 2) * GRADIENT_LINES + lane / 16 * 8 + lane % 8);
    u32 gradients[AT_ONCE][4];
    UNROLL for (int step = begin; step < begin + AT_ONCE && step < SIDE; step++) {
        ldmatrix_transposed(gradients[step - begin], from + 16 * 16 * step);
        if (has_second) continue;
        UNROLL for (int i = 0; i < 4; i++)  // the buffer still holds the second sample of an earlier pair
            if (2 * step + i / 2 >= SIDE) gradients[step - begin][i] = 0u;
    }
    wgmma_fence();
    UNROLL for (int step = begin; step < begin + AT_ONCE && step < SIDE; step++) {
        const int line = active_row(2 * step);
        const Descriptor active = descriptor_transposed(buffer + 16 * (line + 8 * (row_of_taps - 1)), 16 * ACTIVE_LINES,
                                                        16 * (active_row(2 * step + 1) - line));
        UNROLL for (int tap = 0; tap < TAPS; tap++)
            wgmma_transposed(sums[tap], gradients[step - begin], advance(active, 16 * (tap - 1)));
    }
    wgmma_commit();
    UNROLL for (int tap = 0; tap < TAPS; tap++) wgmma_wait(sums[tap]);
}

}  // namespace

// Output: parts (blocks, PART_SIZE). ``all_items`` = J B; times (J).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    field_gradients(const u16* active1, const u16* active2, const u16* d_conv1, const u16* d_conv2, const float* times,
                    float* parts, int batch, int all_items, int blocks) {
    SHARED_MEMORY(shared);
    const Buffers buffers = {shared};
    for (int i = threadIdx.x; i < SUMS_AT / 16; i += THREADS) reinterpret_cast<uint4*>(shared)[i] = make_uint4(0u, 0u, 0u, 0u);
    if (threadIdx.x < BUFFERS) {
        mbarrier_init(buffers.full(threadIdx.x), PRODUCERS / 32);
        mbarrier_init(buffers.free(threadIdx.x), THREADS / 32);
    }
    fence_async_proxy();
    block_barrier();
    const int group = warp_uniform(threadIdx.x / 128), first = blockIdx.x / 2, stride = blocks / 2;
    const Items items = {first, stride, (all_items - 1 - first) / stride + 1};
    float* part = parts + size_t(blockIdx.x) * PART_SIZE;
    if (group == 3) {
        SET_REGISTERS(dec, 80);
        produce(buffers, blockIdx.x % 2 ? active2 : active1, blockIdx.x % 2 ? d_conv2 : d_conv1, times, part, items, batch);
        return;
    }
    SET_REGISTERS(inc, 144);
    Sums sums;
    UNROLL for (int i = 0; i < TAPS * CHUNKS * 4; i++) sums[i / (4 * CHUNKS)][i / 4 % CHUNKS][i % 4] = 0.0f;
#pragma unroll 1
    for (int pair = 0; pair < items.pairs(); pair++) {
        mbarrier_wait(buffers.full(pair), pair / BUFFERS);
        UNROLL for (int begin = 0; begin < SIDE; begin += AT_ONCE)
            multiply(sums, buffers.of(pair), begin, items.has_second(pair), group);
        buffers.release(pair);
    }
    const int lane = threadIdx.x % 32, output = threadIdx.x % 128 / 32 * 16 + lane / 4;
    UNROLL for (int tap = 0; tap < TAPS; tap++)
        UNROLL for (int n = 0; n < CHUNKS; n++)
            UNROLL for (int i = 0; i < 2; i++)
                *reinterpret_cast<float2*>(part + ((group * TAPS + tap) * C + output + 8 * i) * C + 8 * n + 2 * (lane % 4)) =
                    make_float2(sums[tap][n][2 * i], sums[tap][n][2 * i + 1]);
}

// Sums over the blocks. Outputs: d_weights (2, out, in, 9), d_maps (2, C, P), d_biases (2, C).
extern "C" __global__ void add_parts(const float* parts, float* d_weights, float* d_maps, float* d_biases, int blocks) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, convolution = at / PART_SIZE, i = at % PART_SIZE;
    if (convolution > 1) return;
    float sum = 0.0f;
#pragma unroll 16
    for (int block = convolution; block < blocks; block += 2) sum += parts[size_t(block) * PART_SIZE + i];
    if (i < MAPS_AT)
        d_weights[(convolution * C * C + i % (C * C)) * 9 + i / (C * C)] = sum;
    else if (i < BIAS_AT)
        d_maps[(convolution * C + i % C) * P + (i - MAPS_AT) / C] = sum;
    else
        d_biases[convolution * C + i - BIAS_AT] = sum;
}
