// Gradients of the field's two 3x3 convolutions over all evaluations of a trajectory, in bfloat16 as products of warpgroups
// (compute capability 9.0); the launches are in conv_gradients.py.
//
// The gradient of a tap is the product of the activations, shifted by it, and the gradients of the convolution's output, over the
// positions of all samples and evaluations. A block has one of the convolutions and goes over some of them, whose two factors
// come to shared memory in planes: positions of 16 bytes (8 channels), in rows of 8, with zeros around them. Three warpgroups
// have three taps each in their registers; the fourth fetches, and sums what bias and time's kernel need: the gradients
// themselves, and t times them. A second kernel adds what the blocks have.
//
// Defined by the host: SIDE (height = width, at most 7).

#include "warpgroup.cuh"

namespace {

constexpr int C = 64;
constexpr int P = SIDE * SIDE;
constexpr int PARTS = C / 8;  // pieces of a position
constexpr int THREADS = 512, FETCHING = 128;
constexpr int TAPS = 3;  // of a warpgroup
constexpr int STEPS = (8 * SIDE + 15) / 16;  // of 16 positions
constexpr int BORDER = 9;
constexpr int ACTIVE_LINES = (2 * BORDER + 16 * STEPS) | 1;  // odd: pieces of one position never meet in a bank
constexpr int GRADIENT_LINES = (16 * STEPS) | 1;
constexpr int ACTIVE_BYTES = 16 * PARTS * ACTIVE_LINES;
constexpr int BUFFER_BYTES = ACTIVE_BYTES + 16 * PARTS * GRADIENT_LINES;
constexpr int BUFFERS = 3;
constexpr int OWN = (P * PARTS + FETCHING - 1) / FETCHING;  // pieces of a fetching thread: it has the same 8 channels of all
// What a block leaves: taps (9, in, out), t's sums (P, C), sums (C).
constexpr int MAPS_AT = 9 * C * C;
constexpr int BIAS_AT = MAPS_AT + P * C;
constexpr int LEFT = BIAS_AT + C;

DEVICE char* buffer_of(char* shared, int number) { return shared + number % BUFFERS * BUFFER_BYTES; }

DEVICE int active_piece(int position, int part) {
    return 16 * (part * ACTIVE_LINES + BORDER + position / SIDE * 8 + position % SIDE);
}

DEVICE int gradient_piece(int position, int part) {
    return ACTIVE_BYTES + 16 * (part * GRADIENT_LINES + position / SIDE * 8 + position % SIDE);
}

// Number of the samples of all evaluations that a block has at its turn.
DEVICE int item_of(int number, int blocks) { return blockIdx.x / 2 + number * (blocks / 2); }

// Both factors of one of them, a (P, C) array each.
DEVICE void fetch(char* shared, const u16* active, const u16* d_conv, int number, int items, int blocks) {
    const int item = item_of(number, blocks), thread = threadIdx.x % FETCHING;
    char* buffer = buffer_of(shared, number);
    if (item < items) {
        const uint4* from[2] = {reinterpret_cast<const uint4*>(active) + size_t(item) * P * PARTS,
                                reinterpret_cast<const uint4*>(d_conv) + size_t(item) * P * PARTS};
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            int i = k * FETCHING + thread;
            if (i < P * PARTS) {
                start_copy(buffer + active_piece(i / PARTS, i % PARTS), from[0] + i);
                start_copy(buffer + gradient_piece(i / PARTS, i % PARTS), from[1] + i);
            }
        }
    }
    close_copies();
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
DEVICE void fetch_and_sum(char* shared, const u16* active, const u16* d_conv, const float* times, float* left, int count,
                          int batch, int items, int blocks) {
    const int thread = threadIdx.x % FETCHING;
    float maps[OWN][8], bias[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bias[i] = 0.0f;
#pragma unroll
        for (int k = 0; k < OWN; k++) maps[k][i] = 0.0f;
    }
    for (int number = 0; number < 2; number++) fetch(shared, active, d_conv, number, items, blocks);
    for (int number = 0; number < count; number++) {
        earlier_copies_done();
        writes_to_products();
        block_barrier();  // all have finished with the buffer before this one
        fetch(shared, active, d_conv, number + 2, items, blocks);
        const float t = times[item_of(number, blocks) / batch];
        const char* buffer = buffer_of(shared, number);
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            int i = k * FETCHING + thread;
            if (i < P * PARTS) {
                const uint4 piece = *reinterpret_cast<const uint4*>(buffer + gradient_piece(i / PARTS, i % PARTS));
                add_piece(maps[k], t, piece);
                add_piece(bias, 1.0f, piece);
            }
        }
    }
#pragma unroll
    for (int k = 0; k < OWN; k++) {
        int i = k * FETCHING + thread;
        if (i < P * PARTS) store_eight(left + MAPS_AT + 8 * i, maps[k]);
    }
    float* of_warps = reinterpret_cast<float*>(shared + BUFFERS * BUFFER_BYTES);  // (4, C)
#pragma unroll
    for (int i = 0; i < 8; i++) {
        bias[i] += shuffle_xor(bias[i], 8);
        bias[i] += shuffle_xor(bias[i], 16);
    }
    if (thread % 32 < PARTS) store_eight(of_warps + thread / 32 * C + 8 * (thread % PARTS), bias);
    sample_barrier(1);
    if (thread < C)
        left[BIAS_AT + thread] = (of_warps[thread] + of_warps[C + thread]) + (of_warps[2 * C + thread] + of_warps[3 * C + thread]);
}

}  // namespace

// What every block leaves, (blocks, LEFT); even ones of the first convolution. active and d_conv (items = J B, P, C), times (J).
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    field_gradients(const u16* active1, const u16* active2, const u16* d_conv1, const u16* d_conv2, const float* times,
                    float* parts, int batch, int items, int blocks) {
    SHARED_MEMORY(shared);
    for (int i = threadIdx.x; i < BUFFERS * BUFFER_BYTES / 16; i += THREADS)
        reinterpret_cast<uint4*>(shared)[i] = make_uint4(0u, 0u, 0u, 0u);
    writes_to_products();
    block_barrier();
    const int group = same_in_warp(threadIdx.x / 128);
    const int count = (items - 1 - int(blockIdx.x) / 2) / (blocks / 2) + 1;
    float* left = parts + size_t(blockIdx.x) * LEFT;
    if (group == 3) {
        fetch_and_sum(shared, blockIdx.x % 2 ? active2 : active1, blockIdx.x % 2 ? d_conv2 : d_conv1, times, left, count, batch,
                      items, blocks);
        return;
    }
    float sums[TAPS][PARTS][4];  // [tap][8 outputs][2 (input of two, 8 apart) + (output of two)]
#pragma unroll
    for (int i = 0; i < TAPS * PARTS * 4; i++) sums[i / (4 * PARTS)][i / 4 % PARTS][i % 4] = 0.0f;
    for (int number = 0; number < count; number++) {
        block_barrier();  // with that of `fetch_and_sum`
        const char* buffer = buffer_of(shared, number);
        const Matrix active = matrix_across(buffer + 16 * (BORDER + 8 * (group - 1)), 16 * ACTIVE_LINES);
        const Matrix gradients = matrix_across(buffer + ACTIVE_BYTES, 16 * GRADIENT_LINES);
        begin_products();
#pragma unroll
        for (int step = 0; step < STEPS; step++)
#pragma unroll
            for (int tap = 0; tap < TAPS; tap++)
                start_product_across(sums[tap], moved(active, 16 * (16 * step + tap - 1)), moved(gradients, 16 * 16 * step));
        commit_products();
#pragma unroll
        for (int tap = 0; tap < TAPS; tap++) products_done(sums[tap]);
    }
    const int lane = threadIdx.x % 32, input = threadIdx.x % 128 / 32 * 16 + lane / 4;
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
        for (int n = 0; n < PARTS; n++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                *reinterpret_cast<float2*>(left + ((group * TAPS + tap) * C + input + 8 * i) * C + 8 * n + 2 * (lane % 4)) =
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
        d_weights[((convolution * C + i % C) * C + i / C % C) * 9 + i / (C * C)] = sum;
    else if (i < BIAS_AT)
        d_maps[(convolution * C + i % C) * P + (i - MAPS_AT) / C] = sum;
    else
        d_biases[convolution * C + i - BIAS_AT] = sum;
}
