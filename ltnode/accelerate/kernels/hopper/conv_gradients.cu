// Gradients of the field's two 3x3 convolutions over all evaluations of a trajectory, in bfloat16 as products of warpgroups
// (compute capability 9.0); the launches are in conv_gradients.py.
//
// The gradient of a tap is the product of the gradients of the convolution's output and the activations, shifted by it, over the
// positions of all samples and evaluations. A block has one of the convolutions and goes over some of them, two at a time, whose
// factors come to shared memory as they lie in memory: planes of positions of 16 bytes (8 channels), in rows of 8. Around the
// activations are zeros, and a shift is the same plane read from another position on. Three warpgroups have three taps each in
// their registers; the fourth fetches, and sums what bias and time's kernel need: the gradients themselves, and t times them. A
// second kernel adds what the blocks have.
//
// Defined by the host: SIDE (height = width, at most 7).

#include "warpgroup.cuh"

namespace {

constexpr int C = 64;
constexpr int P = SIDE * SIDE;
constexpr int PARTS = C / 8;  // pieces of a position
constexpr int THREADS = 512, FETCHING = 128;
constexpr int TAPS = 3;  // of a warpgroup
constexpr int LINES = 8 * SIDE;  // positions of a sample
constexpr int BORDER = 9;
constexpr int ACTIVE_LINES = (3 * BORDER + 2 * LINES) | 1;  // odd: pieces of one position never meet in a bank
constexpr int GRADIENT_LINES = (2 * LINES) | 1;
constexpr int ACTIVE_BYTES = 16 * PARTS * ACTIVE_LINES;
constexpr int BUFFER_BYTES = ACTIVE_BYTES + 16 * PARTS * GRADIENT_LINES;
constexpr int BUFFERS = 3;
constexpr int SUMS_AT = BUFFERS * BUFFER_BYTES;  // of four warps, (4, C)
constexpr int GATES_AT = SUMS_AT + 4 * 4 * C;    // those of buffers that are full, then of those that are free
constexpr int OWN = (P * PARTS + FETCHING - 1) / FETCHING;  // pieces of a fetching thread: it has the same 8 channels of all
constexpr int AT_ONCE = 4;  // of the SIDE products of 16 positions that two samples have
// What a block leaves: taps (9, out, in), t's sums (P, C), sums (C).
constexpr int MAPS_AT = 9 * C * C;
constexpr int BIAS_AT = MAPS_AT + P * C;
constexpr int LEFT = BIAS_AT + C;

// Lines of a sample's first position; row r of both samples together is row r - SIDE of the second from SIDE on.
DEVICE int active_line(int sample) { return BORDER + sample * (LINES + BORDER); }
DEVICE int active_row(int row) { return active_line(row / SIDE) + 8 * (row % SIDE); }

struct Buffers {
    char* shared;
    DEVICE char* of(int number) const { return shared + number % BUFFERS * BUFFER_BYTES; }
    DEVICE Gate* full(int number) const { return reinterpret_cast<Gate*>(shared + GATES_AT) + number % BUFFERS; }
    DEVICE Gate* free(int number) const { return full(number) + BUFFERS; }
    // A warp has finished with a buffer.
    DEVICE void leave(int number) const {
        warp_barrier();
        if (threadIdx.x % 32 == 0) arrive(free(number));
    }
};

// The samples of all evaluations that a block has: two of them at a time.
struct Items {
    int first, apart, count;
    DEVICE int pairs() const { return (count + 1) / 2; }
    DEVICE int item(int number) const { return first + number * apart; }
    DEVICE bool second(int pair) const { return 2 * pair + 1 < count; }
};

// One thread of each fetching warp: its pieces of both factors of a pair, (PARTS, LINES, 8) each.
DEVICE void fetch(const Buffers& buffers, const u16* active, const u16* d_conv, const Items& items, int pair) {
    if (pair >= items.pairs()) return;
    if (pair >= BUFFERS) wait_for(buffers.free(pair), pair / BUFFERS - 1);
    const int samples = items.second(pair) ? 2 : 1, own = PARTS / (FETCHING / 32);
    expect(buffers.full(pair), samples * own * 2 * 16 * LINES);
    for (int s = 0; s < samples; s++)
        for (int k = 0; k < own; k++) {
            const int part = threadIdx.x % FETCHING / 32 * own + k;
            const size_t from = (size_t(items.item(2 * pair + s)) * PARTS + part) * LINES * 8;
            char* to = buffers.of(pair);
            start_load(to + 16 * (part * ACTIVE_LINES + active_line(s)), active + from, 16 * LINES, buffers.full(pair));
            start_load(to + ACTIVE_BYTES + 16 * (part * GRADIENT_LINES + s * LINES), d_conv + from, 16 * LINES,
                       buffers.full(pair));
        }
}

DEVICE void add_piece(float (&sum)[8], float factor, const uint4& piece) {
    const u32 pairs[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[2 * i] += factor * low(pairs[i]);
        sum[2 * i + 1] += factor * high(pairs[i]);
    }
}

DEVICE void store_eight(float* to, const float (&v)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(v[0], v[1], v[2], v[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

// The fetching warpgroup.
DEVICE void fetch_and_sum(const Buffers& buffers, const u16* active, const u16* d_conv, const float* times, float* left,
                          const Items& items, int batch) {
    const int thread = threadIdx.x % FETCHING;
    float maps[OWN][8], bias[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bias[i] = 0.0f;
#pragma unroll
        for (int k = 0; k < OWN; k++) maps[k][i] = 0.0f;
    }
    if (thread % 32 == 0)
        for (int pair = 0; pair + 1 < BUFFERS; pair++) fetch(buffers, active, d_conv, items, pair);
    for (int pair = 0; pair < items.pairs(); pair++) {
        const int samples = items.second(pair) ? 2 : 1;
        float t[2] = {times[items.item(2 * pair) / batch], times[items.item(2 * pair + samples - 1) / batch]};
        if (thread % 32 == 0) fetch(buffers, active, d_conv, items, pair + BUFFERS - 1);
        wait_for(buffers.full(pair), pair / BUFFERS);
        for (int s = 0; s < samples; s++) {
            const char* gradients = buffers.of(pair) + ACTIVE_BYTES + 16 * s * LINES;
#pragma unroll
            for (int k = 0; k < OWN; k++) {
                const int i = k * FETCHING + thread, position = i / PARTS;
                if (i < P * PARTS) {
                    const int line = i % PARTS * GRADIENT_LINES + position / SIDE * 8 + position % SIDE;
                    const uint4 piece = *reinterpret_cast<const uint4*>(gradients + 16 * line);
                    add_piece(maps[k], s ? t[1] : t[0], piece);
                    add_piece(bias, 1.0f, piece);
                }
            }
        }
        buffers.leave(pair);
    }
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        int i = k * FETCHING + thread;
        if (i < P * PARTS) store_eight(left + MAPS_AT + 8 * i, maps[k]);
    }
    float* of_warps = reinterpret_cast<float*>(buffers.shared + SUMS_AT);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bias[i] += shuffle_xor(bias[i], 8);
        bias[i] += shuffle_xor(bias[i], 16);
    }
    if (thread % 32 < PARTS) store_eight(of_warps + thread / 32 * C + 8 * (thread % PARTS), bias);
    sample_barrier(1);
    if (thread < C)
        left[BIAS_AT + thread] =
            (of_warps[thread] + of_warps[C + thread]) + (of_warps[2 * C + thread] + of_warps[3 * C + thread]);
}

typedef float Sums[TAPS][PARTS][4];  // [tap][8 inputs][2 (output of two, 8 apart) + (input of two)]

// Some of a pair's products, the rows of positions 2 step and 2 step + 1 each, of one row of taps.
DEVICE void multiply(Sums& sums, const char* buffer, int begin, bool second, int row_of_taps) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    // Lane 8 m + i: position i of row m / 2, the warp's first or second eight channels.
    const char* piece = buffer + ACTIVE_BYTES + 16 * ((2 * warp + lane / 8 % 2) * GRADIENT_LINES + lane / 16 * 8 + lane % 8);
    u32 gradients[AT_ONCE][4];
#pragma unroll
    for (int step = begin; step < begin + AT_ONCE && step < SIDE; step++) {
        load_matrices_transposed(gradients[step - begin], piece + 16 * 16 * step);
        if (second) continue;
#pragma unroll
        for (int i = 0; i < 4; i++)  // what an earlier pair has left there
            if (2 * step + i / 2 >= SIDE) gradients[step - begin][i] = 0u;
    }
    begin_products();
#pragma unroll
    for (int step = begin; step < begin + AT_ONCE && step < SIDE; step++) {
        const int line = active_row(2 * step);
        const Matrix active = matrix_across(buffer + 16 * (line + 8 * (row_of_taps - 1)), 16 * ACTIVE_LINES,
                                            16 * (active_row(2 * step + 1) - line));
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++)
            start_product_across(sums[tap], gradients[step - begin], moved(active, 16 * (tap - 1)));
    }
    commit_products();
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++) products_done(sums[tap]);
}

}  // namespace

// What every block leaves, (blocks, LEFT); even ones of the first convolution. active and d_conv (items = J B, PARTS, LINES, 8)
// with zeros beyond SIDE in the rows of 8 lines, times (J).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    field_gradients(const u16* active1, const u16* active2, const u16* d_conv1, const u16* d_conv2, const float* times,
                    float* parts, int batch, int all_items, int blocks) {
    SHARED_MEMORY(shared);
    const Buffers buffers = {shared};
    for (int i = threadIdx.x; i < SUMS_AT / 16; i += THREADS) reinterpret_cast<uint4*>(shared)[i] = make_uint4(0u, 0u, 0u, 0u);
    if (threadIdx.x < BUFFERS) {
        make_gate(buffers.full(threadIdx.x), FETCHING / 32);
        make_gate(buffers.free(threadIdx.x), THREADS / 32);
    }
    writes_to_products();
    block_barrier();
    const int group = same_in_warp(threadIdx.x / 128), first = blockIdx.x / 2, apart = blocks / 2;
    const Items items = {first, apart, (all_items - 1 - first) / apart + 1};
    float* left = parts + size_t(blockIdx.x) * LEFT;
    if (group == 3) {
        REGISTERS(dec, 80);
        fetch_and_sum(buffers, blockIdx.x % 2 ? active2 : active1, blockIdx.x % 2 ? d_conv2 : d_conv1, times, left, items, batch);
        return;
    }
    REGISTERS(inc, 144);
    Sums sums;
#pragma unroll
    for (int i = 0; i < TAPS * PARTS * 4; i++) sums[i / (4 * PARTS)][i / 4 % PARTS][i % 4] = 0.0f;
#pragma unroll 1
    for (int pair = 0; pair < items.pairs(); pair++) {
        wait_for(buffers.full(pair), pair / BUFFERS);
#pragma unroll
        for (int begin = 0; begin < SIDE; begin += AT_ONCE) multiply(sums, buffers.of(pair), begin, items.second(pair), group);
        buffers.leave(pair);
    }
    const int lane = threadIdx.x % 32, output = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int n = 0; n < PARTS; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *reinterpret_cast<float2*>(left + ((group * TAPS + tap) * C + output + 8 * i) * C + 8 * n + 2 * (lane % 4)) =
                    make_float2(sums[tap][n][2 * i], sums[tap][n][2 * i + 1]);
}

// The sums over the blocks: d_weights (2, out, in, 9), d_maps (2, C, P), d_biases (2, C).
extern "C" __global__ void add_parts(const float* parts, float* d_weights, float* d_maps, float* d_biases, int blocks) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x, convolution = at / LEFT, i = at % LEFT;
    if (convolution > 1) return;
    float sum = 0.0f;
#pragma unroll 16
    for (int block = convolution; block < blocks; block += 2) sum += parts[size_t(block) * LEFT + i];
    if (i < MAPS_AT)
        d_weights[(convolution * C * C + i % (C * C)) * 9 + i / (C * C)] = sum;
    else if (i < BIAS_AT)
        d_maps[(convolution * C + i % C) * P + (i - MAPS_AT) / C] = sum;
    else
        d_biases[convolution * C + i - BIAS_AT] = sum;
}
