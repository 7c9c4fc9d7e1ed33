// GroupNorm with two channels per group, followed by ReLU, in one kernel per direction.
//
// Formula, with means over the positions of a sample and the channels of a group:
//     v = x + bias - mean,   y = relu(slope v + shift),   slope = rstd scale,   rstd = 1 / sqrt(mean(v^2) + eps).
// With d the gradient of y where y > 0:   d_x = slope d - mean(slope d) - v rstd^2 mean(slope d v).
//
// Shapes: x, y (N, POSITIONS, CHANNELS), channels last, in bfloat16 or float32; bias, scale, shift (CHANNELS,) in float32.
//
// Work: a block handles 16 channels of one sample. lane % 4 selects four channels (two groups), the rest of the thread index one
// of AT_ONCE positions, and a thread loops over ROWS of these. It keeps all its values in registers, in their storage type, so
// that x is read once. Shared memory holds the partial sums of the warps.
//
// Synchronisation: sums over the block in two steps with a block barrier in between (`partial_sum`, `total`).
//
// Defined by the host: THREADS, POSITIONS, CHANNELS, BIAS (0: x has no bias), FLOAT32 (storage type of x and y). Launched by
// norm_relu.py. Reference: the layers of torch.nn; test: tests/accelerate/kernels/test_norm_relu.py.

#include "primitives.cuh"

namespace {

constexpr int FOURS = 4;
constexpr int WARPS = THREADS / 32;
constexpr int AT_ONCE = THREADS / FOURS;  // positions
constexpr int ROWS = (POSITIONS + AT_ONCE - 1) / AT_ONCE;
constexpr int BLOCKS = CHANNELS / (4 * FOURS);  // per sample
constexpr int COUNT = 2 * POSITIONS;            // values of a group
constexpr int PER_WORD = FLOAT32 ? 1 : 2;       // values of x in 32 bits
// Blocks per multiprocessor, which limit the registers of a thread. Values in float32 need twice as many registers.
constexpr int FORWARD_BLOCKS = (THREADS > 128 ? 3 : 6) / (FLOAT32 ? 2 : 1);
constexpr int BACKWARD_BLOCKS = (THREADS > 128 ? 2 : 5) / (FLOAT32 ? 2 : 1);

// Four neighbouring channels in their storage type.
#if FLOAT32
struct alignas(16) Four {
    float v[4];
    DEVICE float operator[](int i) const { return v[i]; }
    DEVICE void set(int p, float first, float second) { v[2 * p] = first, v[2 * p + 1] = second; }
    DEVICE void set_relu(int p, float first, float second) { set(p, fmaxf(first, 0.0f), fmaxf(second, 0.0f)); }
    DEVICE void keep_active(int p, float v0, float v1, const float (&slope)[4], const float (&level)[4]) {
        if (!(v0 * slope[2 * p] + level[2 * p] > 0.0f)) v[2 * p] = 0.0f;
        if (!(v1 * slope[2 * p + 1] + level[2 * p + 1] > 0.0f)) v[2 * p + 1] = 0.0f;
    }
    DEVICE void forget() {}
};
#else
struct alignas(8) Four {
    u32 pair[2];
    DEVICE float operator[](int i) const { return i % 2 ? high(pair[i / 2]) : low(pair[i / 2]); }
    DEVICE void set(int p, float first, float second) { pair[p] = bf16_pair(first, second); }
    DEVICE void set_relu(int p, float first, float second) { pair[p] = bf16_pair_relu(first, second); }
    DEVICE void keep_active(int p, float v0, float v1, const float (&slope)[4], const float (&level)[4]) {
        u32 mask = v0 * slope[2 * p] + level[2 * p] > 0.0f ? 0x0000ffffu : 0u;
        mask |= v1 * slope[2 * p + 1] + level[2 * p + 1] > 0.0f ? 0xffff0000u : 0u;
        pair[p] &= mask;
    }
    DEVICE void forget() { asm volatile("" : "+r"(pair[0]), "+r"(pair[1])); }
};
#endif

struct Cell {
    int four, position, channel, sample;
    size_t offset;  // of the first value in a (N, P, C) array, in 32-bit words
    DEVICE bool valid(int row) const { return row < ROWS - 1 || position + row * AT_ONCE < POSITIONS; }
    DEVICE size_t at(int row) const { return offset + row * (AT_ONCE * CHANNELS / PER_WORD); }
};

DEVICE Cell cell() {
    Cell c;
    c.four = threadIdx.x % FOURS;
    c.position = threadIdx.x / FOURS;
    c.sample = blockIdx.x / BLOCKS;
    c.channel = (blockIdx.x % BLOCKS) * 4 * FOURS + 4 * c.four;
    c.offset = ((size_t(c.sample) * POSITIONS + c.position) * CHANNELS + c.channel) / PER_WORD;
    return c;
}

DEVICE void load(Four (&to)[ROWS], const u32* from, const Cell& c) {
    UNROLL for (int r = 0; r < ROWS; r++) {
        to[r] = Four();
        if (c.valid(r)) to[r] = *reinterpret_cast<const Four*>(from + c.at(r));
    }
}

// Loads and stores of one float32 value per channel.
DEVICE void load(float (&to)[4], const float* from) { unpack(to, *reinterpret_cast<const float4*>(from)); }
DEVICE void store(float* to, const float (&v)[4]) { *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]); }

// Sum over the positions of the block, per channel: `partial_sum` writes the warp's part to slot n, and after a barrier `total`
// adds the parts.
DEVICE void partial_sum(float (&v)[4], float* shared, int n, const Cell& c) {
    UNROLL for (int distance = FOURS; distance < 32; distance *= 2)
        UNROLL for (int i = 0; i < 4; i++) v[i] += shuffle_xor(v[i], distance);
    if (threadIdx.x % 32 < FOURS) store(shared + ((n * WARPS + threadIdx.x / 32) * FOURS + c.four) * 4, v);
}

DEVICE void total(float (&sum)[4], const float* shared, int n, const Cell& c) {
    UNROLL for (int i = 0; i < 4; i++) sum[i] = 0.0f;
    UNROLL for (int w = 0; w < WARPS; w++) {
        float part[4];
        load(part, shared + ((n * WARPS + w) * FOURS + c.four) * 4);
        UNROLL for (int i = 0; i < 4; i++) sum[i] += part[i];
    }
}

// Prevents the compiler from keeping unpacked copies of bfloat16 values, which would need twice the registers.
DEVICE void forget(Four (&v)[ROWS]) {
    UNROLL for (int r = 0; r < ROWS; r++) v[r].forget();
}

}  // namespace

// Outputs: out like x; means and rstds (N, C) for the backward pass.
extern "C" __global__ void __launch_bounds__(THREADS, FORWARD_BLOCKS)
    norm_relu_forward(const u32* x, const float* bias, const float* scale, const float* shift, float eps, u32* out,
                      float* means, float* rstds) {
    SHARED_MEMORY(memory);
    float* shared = reinterpret_cast<float*>(memory);
    const Cell c = cell();
    Four v[ROWS];
    load(v, x, c);
    float b[4] = {}, sum[4] = {}, mean[4], centre[4], rstd[4];
    if (BIAS) load(b, bias + c.channel);
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int i = 0; i < 4; i++) sum[i] += v[r][i];
    partial_sum(sum, shared, 0, c);
    block_barrier();
    total(sum, shared, 0, c);
    UNROLL for (int i = 0; i < 4; i++) {
        mean[i] = (sum[i] + sum[i ^ 1]) * (1.0f / COUNT) + 0.5f * (b[i] + b[i ^ 1]);
        centre[i] = mean[i] - b[i];
    }
    forget(v);
    float square[4] = {};
    UNROLL for (int r = 0; r < ROWS; r++)
        if (c.valid(r))
            UNROLL for (int p = 0; p < 2; p++) {
                float v0 = v[r][2 * p] - centre[2 * p], v1 = v[r][2 * p + 1] - centre[2 * p + 1];
                square[2 * p] += v0 * v0;
                square[2 * p + 1] += v1 * v1;
            }
    partial_sum(square, shared, 1, c);
    block_barrier();
    total(square, shared, 1, c);
    float slope[4], level[4];
    load(slope, scale + c.channel);
    load(level, shift + c.channel);
    UNROLL for (int i = 0; i < 4; i++) {
        rstd[i] = rsqrtf((square[i] + square[i ^ 1]) * (1.0f / COUNT) + eps);
        slope[i] *= rstd[i];
    }
    if (c.position == 0) {
        store(means + size_t(c.sample) * CHANNELS + c.channel, mean);
        store(rstds + size_t(c.sample) * CHANNELS + c.channel, rstd);
    }
    forget(v);
    UNROLL for (int r = 0; r < ROWS; r++) {
        Four y;
        UNROLL for (int p = 0; p < 2; p++) {
            float v0 = v[r][2 * p] - centre[2 * p], v1 = v[r][2 * p + 1] - centre[2 * p + 1];
            y.set_relu(p, v0 * slope[2 * p] + level[2 * p], v1 * slope[2 * p + 1] + level[2 * p + 1]);
        }
        if (c.valid(r)) *reinterpret_cast<Four*>(out + c.at(r)) = y;
    }
}

// Outputs: d_x like x; d_affine (N, 2 or 3, C), per sample the gradients of scale, shift and, with BIAS, of the bias.
extern "C" __global__ void __launch_bounds__(THREADS, BACKWARD_BLOCKS)
    norm_relu_backward(const u32* x, const float* bias, const float* scale, const float* shift, const float* means,
                       const float* rstds, const u32* d_out, u32* d_x, float* d_affine) {
    SHARED_MEMORY(memory);
    float* shared = reinterpret_cast<float*>(memory);
    const Cell c = cell();
    Four v[ROWS], d[ROWS];
    load(v, x, c);
    load(d, d_out, c);
    float centre[4], rstd[4], slope[4];
    load(centre, means + size_t(c.sample) * CHANNELS + c.channel);
    load(rstd, rstds + size_t(c.sample) * CHANNELS + c.channel);
    load(slope, scale + c.channel);
    if (BIAS) {
        float b[4];
        load(b, bias + c.channel);
        UNROLL for (int i = 0; i < 4; i++) centre[i] -= b[i];
    }
    UNROLL for (int i = 0; i < 4; i++) slope[i] *= rstd[i & 2];
    float level[4], sum_d[4] = {}, sum_dv[4] = {}, sum_v[4] = {};
    load(level, shift + c.channel);
    UNROLL for (int r = 0; r < ROWS; r++)
        UNROLL for (int p = 0; p < 2; p++) {
            float v0 = v[r][2 * p] - centre[2 * p], v1 = v[r][2 * p + 1] - centre[2 * p + 1];
            d[r].keep_active(p, v0, v1, slope, level);
            float d0 = d[r][2 * p], d1 = d[r][2 * p + 1];
            sum_d[2 * p] += d0;
            sum_d[2 * p + 1] += d1;
            sum_dv[2 * p] += d0 * v0;
            sum_dv[2 * p + 1] += d1 * v1;
            if (BIAS && c.valid(r)) {
                sum_v[2 * p] += v0;
                sum_v[2 * p + 1] += v1;
            }
        }
    partial_sum(sum_d, shared, 0, c);
    partial_sum(sum_dv, shared, 1, c);
    if (BIAS) partial_sum(sum_v, shared, 2, c);
    block_barrier();
    total(sum_d, shared, 0, c);
    total(sum_dv, shared, 1, c);
    float constant[4], linear[4];  // d_x = slope d - constant - linear v
    UNROLL for (int i = 0; i < 4; i++) {
        constant[i] = (sum_d[i] * slope[i] + sum_d[i ^ 1] * slope[i ^ 1]) * (1.0f / COUNT);
        linear[i] = (sum_dv[i] * slope[i] + sum_dv[i ^ 1] * slope[i ^ 1]) * rstd[i & 2] * rstd[i & 2] * (1.0f / COUNT);
    }
    forget(v);
    forget(d);
    UNROLL for (int r = 0; r < ROWS; r++) {
        Four to;
        UNROLL for (int p = 0; p < 2; p++) {
            float v0 = v[r][2 * p] - centre[2 * p], v1 = v[r][2 * p + 1] - centre[2 * p + 1];
            to.set(p, d[r][2 * p] * slope[2 * p] - constant[2 * p] - v0 * linear[2 * p],
                   d[r][2 * p + 1] * slope[2 * p + 1] - constant[2 * p + 1] - v1 * linear[2 * p + 1]);
        }
        if (c.valid(r)) *reinterpret_cast<Four*>(d_x + c.at(r)) = to;
    }
    if (c.position == 0) {
        float* rows = d_affine + size_t(c.sample) * (BIAS ? 3 : 2) * CHANNELS + c.channel;
        float d_scale[4];
        UNROLL for (int i = 0; i < 4; i++) d_scale[i] = sum_dv[i] * rstd[i & 2];
        store(rows, d_scale);
        store(rows + CHANNELS, sum_d);
        if (BIAS) {
            float d_bias[4];
            total(sum_v, shared, 2, c);
            UNROLL for (int i = 0; i < 4; i++) d_bias[i] = slope[i] * sum_d[i] - POSITIONS * constant[i] - linear[i] * sum_v[i];
            store(rows + 2 * CHANNELS, d_bias);
        }
    }
}
