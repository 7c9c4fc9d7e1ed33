// GroupNorm followed by ReLU, as in norm_relu_triton.py, for bfloat16 and two channels a group. A block has 16 channels of one
// sample, 32 bytes of every position: lane % 4 is four channels (two groups), the rest of the thread's number a position of
// AT_ONCE, and a thread goes over ROWS of these. It keeps all of them in registers, in pairs as they came: memory is read once.
//
// Defined by the host: THREADS, POSITIONS, CHANNELS, BIAS (whether one is added to x).

namespace {

constexpr int FOURS = 4;
constexpr int WARPS = THREADS / 32;
constexpr int AT_ONCE = THREADS / FOURS;  // positions
constexpr int ROWS = (POSITIONS + AT_ONCE - 1) / AT_ONCE;
constexpr int BLOCKS = CHANNELS / (4 * FOURS);  // of a sample
constexpr int COUNT = 2 * POSITIONS;            // numbers of a group

struct alignas(8) Four {
    u32 pair[2];  // channels 0 and 1, 2 and 3
};

struct Cell {
    int four, position, channel, sample;
    size_t offset;  // of the pair in a (N, P, C) array
    DEVICE bool valid(int row) const { return row < ROWS - 1 || position + row * AT_ONCE < POSITIONS; }
    DEVICE size_t at(int row) const { return offset + row * (AT_ONCE * CHANNELS / 2); }
};

DEVICE Cell cell() {
    Cell c;
    c.four = threadIdx.x % FOURS;
    c.position = threadIdx.x / FOURS;
    c.sample = blockIdx.x / BLOCKS;
    c.channel = (blockIdx.x % BLOCKS) * 4 * FOURS + 4 * c.four;
    c.offset = ((size_t(c.sample) * POSITIONS + c.position) * CHANNELS + c.channel) / 2;
    return c;
}

DEVICE void load(Four (&to)[ROWS], const u32* from, const Cell& c) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        to[r] = Four();
        if (c.valid(r)) to[r] = *reinterpret_cast<const Four*>(from + c.at(r));
    }
}

// Four numbers, one per channel, of a (C,) array and in shared memory.
DEVICE void load(float (&to)[4], const float* from) {
    float4 v = *reinterpret_cast<const float4*>(from);
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

DEVICE void store(float* to, const float (&v)[4]) { *reinterpret_cast<float4*>(to) = make_float4(v[0], v[1], v[2], v[3]); }

// A sum over the positions of each channel, in two halves with a barrier between them: number n of the memory, then its value.
DEVICE void deposit(float (&v)[4], float* shared, int n, const Cell& c) {
#pragma unroll
    for (int distance = FOURS; distance < 32; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] += shuffle_xor(v[i], distance);
    if (threadIdx.x % 32 < FOURS) store(shared + ((n * WARPS + threadIdx.x / 32) * FOURS + c.four) * 4, v);
}

DEVICE void total(float (&sum)[4], const float* shared, int n, const Cell& c) {
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        float part[4];
        load(part, shared + ((n * WARPS + w) * FOURS + c.four) * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] += part[i];
    }
}

// Lets the compiler forget what it has computed from them: kept unpacked, they would need twice the registers.
DEVICE void forget(Four (&v)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) asm volatile("" : "+r"(v[r].pair[0]), "+r"(v[r].pair[1]));
}

}  // namespace

// out like x; means and rstds (N, C).
extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 128 ? 3 : 6)
    norm_relu_forward(const u32* x, const float* bias, const float* scale, const float* shift, float eps, u32* out, float* means,
                      float* rstds) {
    SHARED_MEMORY(memory);
    float* shared = reinterpret_cast<float*>(memory);
    const Cell c = cell();
    Four v[ROWS];
    load(v, x, c);
    float b[4] = {}, sum[4] = {}, mean[4], centre[4], rstd[4];
    if (BIAS) load(b, bias + c.channel);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            sum[2 * p] += low(v[r].pair[p]);
            sum[2 * p + 1] += high(v[r].pair[p]);
        }
    deposit(sum, shared, 0, c);
    block_barrier();
    total(sum, shared, 0, c);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        mean[i] = (sum[i] + sum[i ^ 1]) * (1.0f / COUNT) + 0.5f * (b[i] + b[i ^ 1]);
        centre[i] = mean[i] - b[i];
    }
    forget(v);
    float square[4] = {};
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (c.valid(r))
#pragma unroll
            for (int p = 0; p < 2; p++) {
                float v0 = low(v[r].pair[p]) - centre[2 * p], v1 = high(v[r].pair[p]) - centre[2 * p + 1];
                square[2 * p] += v0 * v0;
                square[2 * p + 1] += v1 * v1;
            }
    deposit(square, shared, 1, c);
    block_barrier();
    total(square, shared, 1, c);
    float slope[4], level[4];
    load(slope, scale + c.channel);
    load(level, shift + c.channel);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        rstd[i] = rsqrtf((square[i] + square[i ^ 1]) * (1.0f / COUNT) + eps);
        slope[i] *= rstd[i];
    }
    if (c.position == 0) {
        store(means + size_t(c.sample) * CHANNELS + c.channel, mean);
        store(rstds + size_t(c.sample) * CHANNELS + c.channel, rstd);
    }
    forget(v);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        Four a;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            float v0 = low(v[r].pair[p]) - centre[2 * p], v1 = high(v[r].pair[p]) - centre[2 * p + 1];
            a.pair[p] = bf16_pair_relu(v0 * slope[2 * p] + level[2 * p], v1 * slope[2 * p + 1] + level[2 * p + 1]);
        }
        if (c.valid(r)) *reinterpret_cast<Four*>(out + c.at(r)) = a;
    }
}

// d_x like x; d_affine (N, 2 or 3, C): of scale, shift and, with BIAS, of the bias, per sample.
extern "C" __global__ void __launch_bounds__(THREADS, THREADS > 128 ? 2 : 5)
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
#pragma unroll
        for (int i = 0; i < 4; i++) centre[i] -= b[i];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) slope[i] *= rstd[i & 2];
    float level[4], sum_d[4] = {}, sum_dv[4] = {}, sum_v[4] = {};  // v: x + bias - mean
    load(level, shift + c.channel);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int p = 0; p < 2; p++) {
            float v0 = low(v[r].pair[p]) - centre[2 * p], v1 = high(v[r].pair[p]) - centre[2 * p + 1];
            u32 open = v0 * slope[2 * p] + level[2 * p] > 0.0f ? 0x0000ffffu : 0u;
            open |= v1 * slope[2 * p + 1] + level[2 * p + 1] > 0.0f ? 0xffff0000u : 0u;
            d[r].pair[p] &= open;
            float d0 = low(d[r].pair[p]), d1 = high(d[r].pair[p]);
            sum_d[2 * p] += d0;
            sum_d[2 * p + 1] += d1;
            sum_dv[2 * p] += d0 * v0;
            sum_dv[2 * p + 1] += d1 * v1;
            if (BIAS && c.valid(r)) {
                sum_v[2 * p] += v0;
                sum_v[2 * p + 1] += v1;
            }
        }
    deposit(sum_d, shared, 0, c);
    deposit(sum_dv, shared, 1, c);
    if (BIAS) deposit(sum_v, shared, 2, c);
    block_barrier();
    total(sum_d, shared, 0, c);
    total(sum_dv, shared, 1, c);
    // d_x = d slope - (mean of d scale) rstd - v (mean of d scale n) rstd^2, means over the group
    float constant[4], linear[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        constant[i] = (sum_d[i] * slope[i] + sum_d[i ^ 1] * slope[i ^ 1]) * (1.0f / COUNT);
        linear[i] = (sum_dv[i] * slope[i] + sum_dv[i ^ 1] * slope[i ^ 1]) * rstd[i & 2] * rstd[i & 2] * (1.0f / COUNT);
    }
    forget(v);
    forget(d);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        Four to;
#pragma unroll
        for (int p = 0; p < 2; p++) {
            float v0 = low(v[r].pair[p]) - centre[2 * p], v1 = high(v[r].pair[p]) - centre[2 * p + 1];
            to.pair[p] = bf16_pair(low(d[r].pair[p]) * slope[2 * p] - constant[2 * p] - v0 * linear[2 * p],
                                   high(d[r].pair[p]) * slope[2 * p + 1] - constant[2 * p + 1] - v1 * linear[2 * p + 1]);
        }
        if (c.valid(r)) *reinterpret_cast<Four*>(d_x + c.at(r)) = to;
    }
    if (c.position == 0) {
        float* rows = d_affine + size_t(c.sample) * (BIAS ? 3 : 2) * CHANNELS + c.channel;
        float d_scale[4];
#pragma unroll
        for (int i = 0; i < 4; i++) d_scale[i] = sum_dv[i] * rstd[i & 2];
        store(rows, d_scale);
        store(rows + CHANNELS, sum_d);
        if (BIAS) {
            float d_bias[4];
            total(sum_v, shared, 2, c);
#pragma unroll
            for (int i = 0; i < 4; i++) d_bias[i] = slope[i] * sum_d[i] - POSITIONS * constant[i] - linear[i] * sum_v[i];
            store(rows + 2 * CHANNELS, d_bias);
        }
    }
}
