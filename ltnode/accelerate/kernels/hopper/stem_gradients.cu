// Gradients of the first layers of a stem, through the halving convolution that follows them, in one kernel.
//
// Formula: y = halving(relu(norm(W patch + bias))). The gradient of the halving convolution's input, one of the largest arrays of
// a training step, stays in registers: it is masked by the ReLU and multiplied by the patches at once. patch_norm.cu derives the
// gradients of W, bias, scale and shift from d^T patches, patches^T patches and the sums of both. Here each im2col patch has a 1
// appended, so that two GEMMs give everything: masked gradient x patches and patches x patches.
//
// Shapes: dy (B, OUT, OUT, C) bfloat16 with C = 64; images (B, CHANNELS, SIDE, SIDE) float32, SIDE = IN + FILTER - 1; W (C, K)
// with K = CHANNELS * FILTER^2; means, rstds (B, C / 2); gradients (B, C (3 + K)) float32, per sample those of scale, shift, bias
// and W.
//
// Work: a block of two warpgroups loops over images. For each of the four parities of row and column, a warpgroup computes 8 rows
// of 16 positions: the input gradients d (halving_tile.cuh) and the values before the ReLU, whose sign is the mask
// (relu_mask.cuh). The accumulators of d have the layout of a left operand in registers, so d^T patches needs no exchange between
// threads. Shared memory: weights of the halving convolution, a double buffer of dy, weights of the first layer, the patches of
// both warpgroups, one image in bfloat16.
//
// Synchronisation: a named barrier per warpgroup around its patches; block barriers around the epilogue, which adds the sums of
// the warpgroups in the buffer of dy. The products for d run while the patches are written.
//
// Defined by the host: IN (height = width after the first convolution, 16 to 30), CHANNELS, FILTER. Launched by
// stem_gradients.py. Reference: patch_norm followed by halving_conv; test: tests/accelerate/kernels/test_stem_gradients.py.

#include "primitives.cuh"

namespace {

constexpr int BUFFERS = 2;
constexpr int GROUPS = 2;  // warpgroups
constexpr int THREADS = 128 * GROUPS;
constexpr int ROWS = 8;  // per warpgroup

}  // namespace

#include "halving_tile.cuh"
#include "relu_mask.cuh"

namespace {

constexpr int SIDE = IN + FILTER - 1;          // of the images
constexpr int K = CHANNELS * FILTER * FILTER;  // values of a patch
constexpr int KS = K / 16 + 1;                 // k-steps of 16 values, with room for the appended 1
constexpr int ROW = 16 * KS;
constexpr int POSITIONS = ROWS * COLS;         // per warpgroup, one for each thread
constexpr int PATCH_CHUNK_BYTES = 16 * POSITIONS;
constexpr int OVERRUN_AT = WEIGHT_BYTES + BUFFERS * BUFFER_BYTES;  // a row of zeros, read for positions beyond the image
constexpr int LAYER_AT = OVERRUN_AT + 16 * COLS;
constexpr int PATCHES_AT = LAYER_AT + 2 * KS * WEIGHT_CHUNK_BYTES;
constexpr int IMAGE_AT = PATCHES_AT + GROUPS * 2 * KS * PATCH_CHUNK_BYTES;

static_assert(AT_ONCE == 1, "a block handles one image at a time");
static_assert(GROUPS * C * ROW * 4 <= BUFFER_BYTES, "the sums of all warpgroups replace the gradients of an image");
static_assert(ROW * 2 <= C && GROUPS * ROW * ROW * 4 <= GROUPS * 2 * KS * PATCH_CHUNK_BYTES, "products replace the patches");

// Packs the weights (C, K) of the first layer as an A operand, with the signs that relu_mask.cuh needs.
DEVICE void pack_layer(char* shared, const float* weight, const float* scale) {
    for (int word = threadIdx.x; word < 2 * KS * C * 4; word += THREADS) {
        const Origin from = origin(word);
        const float* row = weight + from.row * K + from.k;
        u32 pair = bf16_pair(from.k < K ? row[0] : 0.0f, from.k + 1 < K ? row[1] : 0.0f);
        reinterpret_cast<u32*>(shared + LAYER_AT)[word] = pair ^ sign_flip(scale[from.row]);
    }
}

// Copies an image (CHANNELS, SIDE, SIDE) to shared memory in bfloat16.
DEVICE void copy_image(u16* to, const float* from) {
#pragma unroll 12  // enough to have all loads of a 32x32 colour image in flight
    for (int first = 0; first < CHANNELS * SIDE * SIDE; first += THREADS) {
        int i = first + threadIdx.x;
        if (i < CHANNELS * SIDE * SIDE) to[i] = u16(bf16_pair(from[i], 0.0f));
    }
}

DEVICE void prefetch_image(const float* from) {
    for (int i = 32 * threadIdx.x; i < CHANNELS * SIDE * SIDE; i += 32 * THREADS) prefetch(from + i);
}

// Writes the patch of the thread's position and a 1; zeros beyond the image.
DEVICE void write_patch(char* patches, const u16* image, int first_row, int py, int px) {
    const int number = threadIdx.x % POSITIONS, row = 2 * (first_row + number / COLS) + py, column = 2 * (number % COLS) + px;
    const bool inside = row < IN && column < IN;
    const u16* corner = image + row * SIDE + column;
    u32 words[8 * KS];
    UNROLL for (int k = 0; k < ROW; k++) {
        u32 value = k == K && inside ? 0x3f80u : 0u;
        if (k < K && inside) value = corner[(k / (FILTER * FILTER) * SIDE + k / FILTER % FILTER) * SIDE + k % FILTER];
        words[k / 2] = k % 2 ? words[k / 2] | value << 16 : value;
    }
    UNROLL for (int v = 0; v < 2 * KS; v++)
        *reinterpret_cast<uint4*>(patches + 16 * number + v * PATCH_CHUNK_BYTES) =
            make_uint4(words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]);
}

// Stores a warpgroup's accumulators as a matrix (rows, ROW). The thread has rows ``row`` and ``row + next``.
DEVICE void store_sums(float* to, const float (&sums)[2 * KS][4], int row, int next) {
    UNROLL for (int n = 0; n < 2 * KS; n++)
        UNROLL for (int i = 0; i < 2; i++)
            *reinterpret_cast<float2*>(to + (row + i * next) * ROW + 8 * n + 2 * (threadIdx.x % 4)) =
                make_float2(sums[n][2 * i], sums[n][2 * i + 1]);
}

constexpr int LANES = THREADS / C;  // threads per channel in the epilogue
constexpr int OWN = ROW / LANES;    // columns per thread

DEVICE float sum_over_channel(float v) {
    UNROLL for (int distance = 1; distance < LANES; distance *= 2) v += shuffle_xor(v, distance);
    return v;
}

DEVICE void load(float (&to)[OWN], const float* from) {
    UNROLL for (int k = 0; k < OWN; k += 2) {
        const float2 two = *reinterpret_cast<const float2*>(from + k);
        to[k] = two.x;
        to[k + 1] = two.y;
    }
}

// Epilogue: the gradients of a sample (scale C, shift C, bias C, W C K), computed as in `patch_norm_backward` from the
// warpgroups' d^T patches in ``parts`` and patches^T patches, which has replaced the patches.
DEVICE void finish(char* shared, const float* parts, const float* bias, const float* scale, const float* means,
                   const float* rstds, float* to) {
    const float* patch_parts = reinterpret_cast<const float*>(shared + PATCHES_AT);
    float* products = reinterpret_cast<float*>(shared + IMAGE_AT);  // (ROW, ROW)
    for (int i = threadIdx.x; i < ROW * ROW; i += THREADS) {
        float sum = 0.0f;
        UNROLL for (int g = 0; g < GROUPS; g++) sum += patch_parts[g * (2 * KS * PATCH_CHUNK_BYTES / 4) + i];
        products[i] = sum;
    }
    const int channel = threadIdx.x / LANES, first = threadIdx.x % LANES * OWN;
    const int row = channel / 16 * 16 + channel % 16 / 2 + channel % 2 * 8;  // where `origin` puts it
    u32 pairs[8 * KS];  // weights of the channel, rounded and with the sign of `sign_flip`
    UNROLL for (int v = 0; v < 2 * KS; v++)
        unpack(pairs + 4 * v, *reinterpret_cast<const uint4*>(shared + LAYER_AT + v * WEIGHT_CHUNK_BYTES + 16 * row));
    float d_patch[OWN], patch[OWN], x_patch[OWN];  // sums of d, 1 and x' times the patch
    load(d_patch, parts + channel * ROW + first);
    UNROLL for (int g = 1; g < GROUPS; g++) {
        float part[OWN];
        load(part, parts + (g * C + channel) * ROW + first);
        UNROLL for (int k = 0; k < OWN; k++) d_patch[k] += part[k];
    }
    UNROLL for (int k = 0; k < OWN; k++) x_patch[k] = 0.0f;
    float d_x = 0.0f, sum_d = 0.0f, sum_x = 0.0f;
    block_barrier();
    UNROLL for (int j = 0; j < K; j++) {
        const float weight = j % 2 ? high(pairs[j / 2]) : low(pairs[j / 2]);
        float with_j[OWN];
        load(with_j, products + j * ROW + first);
        UNROLL for (int k = 0; k < OWN; k++) x_patch[k] += weight * with_j[k];
        if (j / OWN == threadIdx.x % LANES) d_x += weight * d_patch[j % OWN];
    }
    load(patch, products + K * ROW + first);
    if (K / OWN == threadIdx.x % LANES) {
        sum_d = d_patch[K % OWN];
        sum_x = x_patch[K % OWN];
    }
    const float rstd = rstds[channel / 2], slope = rstd * scale[channel], centre = bias[channel] - means[channel / 2];
    const float sign = scale[channel] > 0.0f ? -1.0f : 1.0f;
    sum_d = sum_over_channel(sum_d);
    d_x = sign * sum_over_channel(d_x) + centre * sum_d;
    sum_x = sign * sum_over_channel(sum_x) + IN * IN * centre;
    // dx = slope d + by_x x' + level; the shuffles add both channels of the group, which has 2 IN^2 values.
    float level = -slope * sum_d / (2 * IN * IN), by_x = -slope * d_x * rstd * rstd / (2 * IN * IN);
    level += shuffle_xor(level, LANES);
    by_x += shuffle_xor(by_x, LANES);
    if (first == 0) {
        to[channel] = rstd * d_x;
        to[C + channel] = sum_d;
        to[2 * C + channel] = slope * sum_d + by_x * sum_x + level * (IN * IN);
    }
    UNROLL for (int k = 0; k < OWN; k++)
        if (first + k < K)
            to[3 * C + channel * K + first + k] =
                slope * d_patch[k] + by_x * (sign * x_patch[k] + centre * patch[k]) + level * patch[k];
}

}  // namespace

// ``packed``: weights of the halving convolution for its backward pass.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    stem_gradients(const u16* dy, const uint4* packed, const float* images, const float* weight, const float* bias,
                   const float* scale, const float* shift, const float* means, const float* rstds, float* gradients, int batch,
                   int blocks) {
    SHARED_MEMORY(shared);
    begin(shared, packed, THREADS);
    if (threadIdx.x < COLS)  // it is multiplied by zeros, which NaN would survive
        reinterpret_cast<uint4*>(shared + OVERRUN_AT)[threadIdx.x] = make_uint4(0u, 0u, 0u, 0u);
    for (int n = 0; n < 2; n++) load_gradients<THREADS>(shared, dy, n, batch, blocks);
    pack_layer(shared, weight, scale);
    const int group = warp_uniform(threadIdx.x / 128), thread = threadIdx.x % 128, lane = thread % 32;
    const int channel = thread / 32 * 16 + 2 * (lane / 4);  // first of two
    u16* image = reinterpret_cast<u16*>(shared + IMAGE_AT);
    char* patches = shared + PATCHES_AT + group * 2 * KS * PATCH_CHUNK_BYTES;
    const Descriptor layer = descriptor(shared + LAYER_AT, WEIGHT_CHUNK_BYTES), columns = descriptor(patches, PATCH_CHUNK_BYTES);
    const Descriptor across = descriptor_transposed(patches, PATCH_CHUNK_BYTES, 128);
    int n = 0;
    for (int sample = blockIdx.x; sample < batch; sample += blocks, n++) {
        copy_image(image, images + size_t(sample) * CHANNELS * SIDE * SIDE);
        const float mean = means[sample * (C / 2) + channel / 2], rstd = rstds[sample * (C / 2) + channel / 2];
        float start[2];
        UNROLL for (int i = 0; i < 2; i++)
            start[i] = mask_start(bias[channel + i], mean, rstd, scale[channel + i], shift[channel + i]);
        wait_load();  // its barrier also covers the image
        if (sample + blocks < batch) prefetch_image(images + size_t(sample + blocks) * CHANNELS * SIDE * SIDE);
        float sums[2 * KS][4], products[2 * KS][4];  // d^T patches, patches^T patches (only the first ROW rows are used)
        UNROLL for (int i = 0; i < 8 * KS; i++) sums[i / 4][i % 4] = products[i / 4][i % 4] = 0.0f;
        u32 active[ROWS][4];  // masked gradients of 16 positions each
        UNROLL for (int i = 0; i < 4 * ROWS; i++) active[i / 4][i % 4] = 0u;
#pragma unroll 1
        for (int parities = 0; parities < 4; parities++) {
            const int py = parities / 2, px = parities % 2;
            float d[2 * ROWS][4], x[2 * ROWS][4];
            UNROLL for (int i = 0; i < 8 * ROWS; i++) d[i / 4][i % 4] = 0.0f;
            start_input_gradients(d, shared, buffer_of(shared, n), py, px, group * ROWS);
            wgmma_wait_but_last(sums);
            wgmma_wait_but_last(products);
            keep_registers(active);
            warpgroup_barrier(1 + group);  // the previous patches are no longer read
            write_patch(patches, image, group * ROWS, py, px);
            fence_async_proxy();
            warpgroup_barrier(1 + group);
            UNROLL for (int i = 0; i < 8 * ROWS; i++) x[i / 4][i % 4] = start[i % 4 / 2];
            wgmma_fence();
            UNROLL for (int step = 0; step < KS; step++)
                wgmma(x, advance(layer, 2 * step * WEIGHT_CHUNK_BYTES), advance(columns, 2 * step * PATCH_CHUNK_BYTES));
            wgmma_commit();
            UNROLL for (int r = 0; r < ROWS; r++)
                wgmma_transposed(products, advance(across, 16 * 16 * r), advance(across, 16 * 16 * r));
            wgmma_commit();
            wgmma_wait_but_last(d);
            wgmma_wait_but_last(x);
            UNROLL for (int r = 0; r < ROWS; r++)
                UNROLL for (int i = 0; i < 4; i++) {  // two positions of one channel
                    const float *two = &d[2 * r + i / 2][2 * (i % 2)], *mask = &x[2 * r + i / 2][2 * (i % 2)];
                    active[r][i] = where_negative(bf16_pair(two[0], two[1]), mask);
                }
            wgmma_fence();
            UNROLL for (int r = 0; r < ROWS; r++) wgmma_transposed(sums, active[r], advance(across, 16 * 16 * r));
            wgmma_commit();
        }
        wgmma_wait(sums);
        wgmma_wait(products);
        keep_registers(active);
        block_barrier();  // dy, the patches and the image are no longer read
        char* buffer = buffer_of(shared, n);
        store_sums(reinterpret_cast<float*>(buffer) + group * C * ROW, sums, channel, 1);
        if (thread < 2 * ROW) store_sums(reinterpret_cast<float*>(patches), products, thread / 32 * 16 + lane / 4, 8);
        block_barrier();
        finish(shared, reinterpret_cast<const float*>(buffer), bias, scale, means + sample * (C / 2), rstds + sample * (C / 2),
               gradients + size_t(sample) * C * (3 + K));
        block_barrier();
        for (int i = threadIdx.x; i < BUFFER_BYTES / 16; i += THREADS)
            reinterpret_cast<uint4*>(buffer)[i] = make_uint4(0u, 0u, 0u, 0u);
        block_barrier();
        load_gradients<THREADS>(shared, dy, n + 2, batch, blocks);
    }
    wait_copies();
}
