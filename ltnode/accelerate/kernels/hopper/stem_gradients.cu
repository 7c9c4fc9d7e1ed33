// Gradients of a stem's first two convolutions together (compute capability 9.0): that of the input of the one that halves images
// never reaches memory. The launches are in stem_gradients.py.
//
// The first layers are a convolution of few channels, GroupNorm and ReLU (patch_norm.cu has the mathematics). What their
// gradients need of the positions are two products with the neighbourhoods, which have a one behind their values: of the gradient
// where ReLU was open, and of themselves. With the one they hold the sums, too.
// A warpgroup makes the gradients of some rows of one parity (halving_tile.cuh) in its registers, the values before the norm of
// the same positions beside them, and has the left factor of the first product: a result of products is arranged like one. The
// right factor, the neighbourhoods, is in shared memory, where the values before the norm have it too.
//
// Defined by the host: IN (height = width after the first convolution, 16 to 30), CHANNELS of the images, SIZE of the kernel.

namespace {

constexpr int BUFFERS = 2;
constexpr int GROUPS = 2;  // warpgroups
constexpr int THREADS = 128 * GROUPS;
constexpr int ROWS = 8;  // of a warpgroup

}  // namespace

#include "halving_tile.cuh"
#include "relu_mask.cuh"

namespace {

constexpr int SIDE = IN + SIZE - 1;        // of the images
constexpr int K = CHANNELS * SIZE * SIZE;  // values of a neighbourhood
constexpr int KS = K / 16 + 1;             // of 16 values, with room for the one
constexpr int ROW = 16 * KS;
constexpr int POSITIONS = ROWS * COLS;     // of a warpgroup, one for each thread
constexpr int PATCH_CHUNK_BYTES = 16 * POSITIONS;
constexpr int BEYOND = KERNEL_BYTES + BUFFERS * BUFFER_BYTES;  // a row that is read for positions beyond the image
constexpr int LAYER_AT = BEYOND + 16 * COLS;
constexpr int PATCHES_AT = LAYER_AT + 2 * KS * KERNEL_CHUNK_BYTES;
constexpr int IMAGE_AT = PATCHES_AT + GROUPS * 2 * KS * PATCH_CHUNK_BYTES;

static_assert(AT_ONCE == 1, "one image of a block at a time");
static_assert(GROUPS * C * ROW * 4 <= BUFFER_BYTES, "sums of all warpgroups in the place of an image's gradients");
static_assert(ROW * 2 <= C && GROUPS * ROW * ROW * 4 <= GROUPS * 2 * KS * PATCH_CHUNK_BYTES, "products in the neighbourhoods'");

// The first layer's kernel (C, K) as rows of products, each with the sign that makes the values before the norm negative where
// ReLU is open.
DEVICE void pack_layer(char* shared, const float* weight, const float* scale) {
    for (int word = threadIdx.x; word < 2 * KS * C * 4; word += THREADS) {
        const Origin from = origin(word);
        const float* row = weight + from.row * K + from.k;
        u32 pair = bf16_pair(from.k < K ? row[0] : 0.0f, from.k + 1 < K ? row[1] : 0.0f);
        reinterpret_cast<u32*>(shared + LAYER_AT)[word] = pair ^ turned_signs(scale[from.row]);
    }
}

// An image (CHANNELS, SIDE, SIDE) in bfloat16.
DEVICE void copy_image(u16* to, const float* from) {
#pragma unroll 12  // all of a usual image is on its way at once
    for (int first = 0; first < CHANNELS * SIDE * SIDE; first += THREADS) {
        int i = first + threadIdx.x;
        if (i < CHANNELS * SIDE * SIDE) to[i] = u16(bf16_pair(from[i], 0.0f));
    }
}

// Bring an image nearer.
DEVICE void prefetch_image(const float* from) {
    for (int i = 32 * threadIdx.x; i < CHANNELS * SIDE * SIDE; i += 32 * THREADS) prefetch(from + i);
}

// The neighbourhood of a thread's position and a one; zeros beyond the image.
DEVICE void write_patch(char* patches, const u16* image, int first_row, int py, int px) {
    const int number = threadIdx.x % POSITIONS, row = 2 * (first_row + number / COLS) + py, column = 2 * (number % COLS) + px;
    const bool inside = row < IN && column < IN;
    const u16* corner = image + row * SIDE + column;
    u32 words[8 * KS];
#pragma unroll
    for (int k = 0; k < ROW; k++) {
        u32 value = k == K && inside ? 0x3f80u : 0u;
        if (k < K && inside) value = corner[(k / (SIZE * SIZE) * SIDE + k / SIZE % SIZE) * SIDE + k % SIZE];
        words[k / 2] = k % 2 ? words[k / 2] | value << 16 : value;
    }
#pragma unroll
    for (int piece = 0; piece < 2 * KS; piece++)
        *reinterpret_cast<uint4*>(patches + 16 * number + piece * PATCH_CHUNK_BYTES) =
            make_uint4(words[4 * piece], words[4 * piece + 1], words[4 * piece + 2], words[4 * piece + 3]);
}

// A warpgroup's sums, (rows, ROW): the thread's first row, how far the second is, and whether it has one that counts.
DEVICE void leave(float* to, const float (&sums)[2 * KS][4], int row, int next, bool counts) {
    if (!counts) return;
#pragma unroll
    for (int n = 0; n < 2 * KS; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            *reinterpret_cast<float2*>(to + (row + i * next) * ROW + 8 * n + 2 * (threadIdx.x % 4)) =
                make_float2(sums[n][2 * i], sums[n][2 * i + 1]);
}

constexpr int LANES = THREADS / C;  // threads of a channel
constexpr int OWN = ROW / LANES;    // columns of a thread

DEVICE float over_channel(float v) {
#pragma unroll
    for (int distance = 1; distance < LANES; distance *= 2) v += shuffle_xor(v, distance);
    return v;
}

// Some numbers side by side.
DEVICE void load(float (&to)[OWN], const float* from) {
#pragma unroll
    for (int k = 0; k < OWN; k += 2) {
        const float2 two = *reinterpret_cast<const float2*>(from + k);
        to[k] = two.x;
        to[k + 1] = two.y;
    }
}

// A sample's gradients (scale C, shift C, bias C, weight C K), as `patch_norm_backward` has them, from the warpgroups' sums of
// the gradients, and those of the neighbourhoods in their place.
DEVICE void finish(char* shared, const float* parts, const float* bias, const float* scale, const float* means,
                   const float* rstds, float* to) {
    const float* apart = reinterpret_cast<const float*>(shared + PATCHES_AT);
    float* products = reinterpret_cast<float*>(shared + IMAGE_AT);  // (ROW, ROW)
    for (int i = threadIdx.x; i < ROW * ROW; i += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) sum += apart[g * (2 * KS * PATCH_CHUNK_BYTES / 4) + i];
        products[i] = sum;
    }
    const int channel = threadIdx.x / LANES, first = threadIdx.x % LANES * OWN;
    const int row = channel / 16 * 16 + channel % 16 / 2 + channel % 2 * 8;  // where `origin` puts it
    u32 pairs[8 * KS];  // of the weight, rounded, with a sign
#pragma unroll
    for (int piece = 0; piece < 2 * KS; piece++) {
        const uint4 q = *reinterpret_cast<const uint4*>(shared + LAYER_AT + piece * KERNEL_CHUNK_BYTES + 16 * row);
        pairs[4 * piece] = q.x;
        pairs[4 * piece + 1] = q.y;
        pairs[4 * piece + 2] = q.z;
        pairs[4 * piece + 3] = q.w;
    }
    float d_patch[OWN], patch[OWN], x_patch[OWN];  // sums of d, 1 and x' times the neighbourhood
    load(d_patch, parts + channel * ROW + first);
#pragma unroll
    for (int g = 1; g < GROUPS; g++) {
        float part[OWN];
        load(part, parts + (g * C + channel) * ROW + first);
#pragma unroll
        for (int k = 0; k < OWN; k++) d_patch[k] += part[k];
    }
#pragma unroll
    for (int k = 0; k < OWN; k++) x_patch[k] = 0.0f;
    float d_x = 0.0f, sum_d = 0.0f, sum_x = 0.0f;
    block_barrier();
#pragma unroll
    for (int j = 0; j < K; j++) {
        const float weight = j % 2 ? high(pairs[j / 2]) : low(pairs[j / 2]);
        float with_j[OWN];
        load(with_j, products + j * ROW + first);
#pragma unroll
        for (int k = 0; k < OWN; k++) x_patch[k] += weight * with_j[k];
        if (j / OWN == threadIdx.x % LANES) d_x += weight * d_patch[j % OWN];
    }
    load(patch, products + K * ROW + first);
    if (K / OWN == threadIdx.x % LANES) {
        sum_d = d_patch[K % OWN];
        sum_x = x_patch[K % OWN];
    }
    const float rstd = rstds[channel / 2], slope = rstd * scale[channel], centre = bias[channel] - means[channel / 2];
    const float sign = scale[channel] > 0.0f ? -1.0f : 1.0f;
    sum_d = over_channel(sum_d);
    d_x = sign * over_channel(d_x) + centre * sum_d;
    sum_x = sign * over_channel(sum_x) + IN * IN * centre;
    // dx = slope d + by_x x' + level, the last two over the group's 2 IN^2 numbers
    float level = -slope * sum_d / (2 * IN * IN), by_x = -slope * d_x * rstd * rstd / (2 * IN * IN);
    level += shuffle_xor(level, LANES);
    by_x += shuffle_xor(by_x, LANES);
    if (first == 0) {
        to[channel] = rstd * d_x;
        to[C + channel] = sum_d;
        to[2 * C + channel] = slope * sum_d + by_x * sum_x + level * (IN * IN);
    }
#pragma unroll
    for (int k = 0; k < OWN; k++)
        if (first + k < K)
            to[3 * C + channel * K + first + k] =
                slope * d_patch[k] + by_x * (sign * x_patch[k] + centre * patch[k]) + level * patch[k];
}

}  // namespace

// gradients (B, C (3 + K)), per sample those of the first layer's scale, shift, bias and weight. dy (B, OUT, OUT, C), the halving
// convolution's packed kernel, images (B, CHANNELS, SIDE, SIDE), weight (C, K); means and rstds (B, C / 2) of the norm.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    stem_gradients(const u16* dy, const uint4* kernel, const float* images, const float* weight, const float* bias,
                   const float* scale, const float* shift, const float* means, const float* rstds, float* gradients, int batch,
                   int blocks) {
    SHARED_MEMORY(shared);
    begin(shared, kernel, THREADS);
    if (threadIdx.x < COLS)  // what is made of it must be a number: it is multiplied by zeros
        reinterpret_cast<uint4*>(shared + BEYOND)[threadIdx.x] = make_uint4(0u, 0u, 0u, 0u);
    for (int part = 0; part < 2; part++) fetch_gradients<THREADS>(shared, dy, part, batch, blocks);
    pack_layer(shared, weight, scale);
    const int group = same_in_warp(threadIdx.x / 128), thread = threadIdx.x % 128, lane = thread % 32;
    const int channel = thread / 32 * 16 + 2 * (lane / 4);  // the first of two
    u16* image = reinterpret_cast<u16*>(shared + IMAGE_AT);
    char* patches = shared + PATCHES_AT + group * 2 * KS * PATCH_CHUNK_BYTES;
    const Matrix layer = matrix(shared + LAYER_AT, KERNEL_CHUNK_BYTES), columns = matrix(patches, PATCH_CHUNK_BYTES);
    const Matrix across = matrix_across(patches, PATCH_CHUNK_BYTES, 128);
    int part = 0;
    for (int sample = blockIdx.x; sample < batch; sample += blocks, part++) {
        copy_image(image, images + size_t(sample) * CHANNELS * SIDE * SIDE);
        const float mean = means[sample * (C / 2) + channel / 2], rstd = rstds[sample * (C / 2) + channel / 2];
        float start[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            start[i] = turned_start(bias[channel + i], mean, rstd, scale[channel + i], shift[channel + i]);
        fetched();  // the image too
        if (sample + blocks < batch) prefetch_image(images + size_t(sample + blocks) * CHANNELS * SIDE * SIDE);
        float sums[2 * KS][4], products[2 * KS][4];  // of the gradients, of the neighbourhoods: rows beyond ROW mean nothing
#pragma unroll
        for (int i = 0; i < 8 * KS; i++) sums[i / 4][i % 4] = products[i / 4][i % 4] = 0.0f;
        u32 open[ROWS][4];  // gradients of 16 positions each
#pragma unroll
        for (int i = 0; i < 4 * ROWS; i++) open[i / 4][i % 4] = 0u;
#pragma unroll 1
        for (int parities = 0; parities < 4; parities++) {
            const int py = parities / 2, px = parities % 2;
            float d[2 * ROWS][4], x[2 * ROWS][4];
#pragma unroll
            for (int i = 0; i < 8 * ROWS; i++) d[i / 4][i % 4] = 0.0f;
            start_input_gradients(d, shared, buffer_of(shared, part), py, px, group * ROWS);
            earlier_products_done(sums);
            earlier_products_done(products);
            still_read(open);
            sample_barrier(1 + group);  // all have finished with the neighbourhoods before these
            write_patch(patches, image, group * ROWS, py, px);
            writes_to_products();
            sample_barrier(1 + group);
#pragma unroll
            for (int i = 0; i < 8 * ROWS; i++) x[i / 4][i % 4] = start[i % 4 / 2];
            begin_products();
#pragma unroll
            for (int step = 0; step < KS; step++)
                start_product(x, moved(layer, 2 * step * KERNEL_CHUNK_BYTES), moved(columns, 2 * step * PATCH_CHUNK_BYTES));
            commit_products();
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                start_product_across(products, moved(across, 16 * 16 * r), moved(across, 16 * 16 * r));
            commit_products();
            earlier_products_done(d);
            earlier_products_done(x);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int i = 0; i < 4; i++) {  // two positions of one channel
                    const float *two = &d[2 * r + i / 2][2 * (i % 2)], *before = &x[2 * r + i / 2][2 * (i % 2)];
                    open[r][i] = where_negative(bf16_pair(two[0], two[1]), before);
                }
            begin_products();
#pragma unroll
            for (int r = 0; r < ROWS; r++) start_product_across(sums, open[r], moved(across, 16 * 16 * r));
            commit_products();
        }
        products_done(sums);
        products_done(products);
        still_read(open);
        block_barrier();  // all have finished with the gradients, the neighbourhoods and the image
        char* buffer = buffer_of(shared, part);
        leave(reinterpret_cast<float*>(buffer) + group * C * ROW, sums, channel, 1, true);
        leave(reinterpret_cast<float*>(patches), products, thread / 32 * 16 + lane / 4, 8, thread < 2 * ROW);
        block_barrier();
        finish(shared, reinterpret_cast<const float*>(buffer), bias, scale, means + sample * (C / 2), rstds + sample * (C / 2),
               gradients + size_t(sample) * C * (3 + K));
        block_barrier();
        for (int i = threadIdx.x; i < BUFFER_BYTES / 16; i += THREADS)
            reinterpret_cast<uint4*>(buffer)[i] = make_uint4(0u, 0u, 0u, 0u);
        block_barrier();
        fetch_gradients<THREADS>(shared, dy, part + 2, batch, blocks);
    }
    copies_done();
}
