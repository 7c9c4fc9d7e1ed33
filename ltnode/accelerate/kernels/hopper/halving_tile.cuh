// Weights and images of the halving convolution (4x4, stride 2, padding 1) in shared memory, and the gradient of its input as
// wgmma, for halving_conv.cu and stem_gradients.cu.
//
// A buffer holds 8 planes of an image: 16 bytes (8 channels) per position, in rows of COLS positions with zeros around them. A
// tap is the same plane read from another start position. The input gradient splits by the parities of row and column: all inputs
// with the same parities see the same four taps, so each parity is a GEMM of its own.
//
// Defined by the host: IN (height = width of the larger image, 8 to 30). Defined before the include: BUFFERS.

namespace {

constexpr int C = 64;
constexpr int OUT = IN / 2;
constexpr int COLS = 16;
constexpr int LEAD = COLS + 1;  // zeros before the first position, and so after the last one of the previous plane
constexpr int PLANE_BYTES = 16 * (LEAD + (COLS - 1) * COLS);
constexpr int BUFFER_BYTES = 8 * PLANE_BYTES + 16 * LEAD;
constexpr int WEIGHT_BYTES = 16 * C * C * 2;  // all 16 taps
constexpr int AT_ONCE = IN < COLS ? 2 : 1;    // gradient images per buffer: two small ones have half of the columns each
static_assert((IN + 1) / 2 < COLS && OUT < COLS / AT_ONCE, "a column of zeros after every image");

}  // namespace

#include "warpgroup.cuh"
#include "warpgroup_rows.cuh"

namespace {

DEVICE int position(int row, int column) { return 16 * (LEAD + row * COLS + column); }

// Starts to copy the weights and clears all buffers.
DEVICE void begin(char* shared, const uint4* weights, int threads) {
    for (int i = threadIdx.x; i < WEIGHT_BYTES / 16; i += threads) start_copy_16(shared + 16 * i, weights + i);
    uint4* buffers = reinterpret_cast<uint4*>(shared + WEIGHT_BYTES);
    for (int i = threadIdx.x; i < BUFFERS * BUFFER_BYTES / 16; i += threads) buffers[i] = make_uint4(0u, 0u, 0u, 0u);
    block_barrier();
}

// Buffer of the n-th load of a block.
DEVICE char* buffer_of(char* shared, int n) { return shared + WEIGHT_BYTES + n % BUFFERS * BUFFER_BYTES; }

// Starts load n of the block, an image of output gradients (or two small ones) as planes (8 chunks), and commits the copies.
template <int THREADS>
DEVICE void load_gradients(char* shared, const u16* dy, int n, int batch, int blocks) {
    constexpr int VECTORS = OUT * OUT * 8;  // of an image
    const int number = (blockIdx.x + n * blocks) * AT_ONCE;
    const u16* image = dy + size_t(number) * OUT * OUT * C;
    char* buffer = buffer_of(shared, n);
    UNROLL for (int k = 0; k < AT_ONCE; k++)
        if (number + k < batch)
            for (int i = threadIdx.x; i < VECTORS; i += THREADS)
                start_copy_16(buffer + i % 8 * PLANE_BYTES + position(i / 8 / OUT, i / 8 % OUT + k * COLS / 2),
                              image + 8 * (k * VECTORS + i));
    commit_copies();
}

// Waits for all loads but the last one, n. Buffer n - 1 is then complete, and buffer n - 2 is free.
DEVICE void wait_load() {
    wait_copies_but_last();
    fence_async_proxy();
    block_barrier();
}

// Starts to add the gradients of the inputs with row parity py and column parity px, from one row of these on, to
// sums[8 positions][2 (channel of the pair) + (position of two)].
template <int N>
DEVICE void start_input_gradients(float (&sums)[N][4], const char* weights, const char* buffer, int py, int px, int row) {
    wgmma_fence();
#pragma unroll  // one group of products, so that `wgmma_wait_but_last` can wait for the groups before it
    for (int tap = 0; tap < 4; tap++) {
        const int iy = tap / 2, ix = tap % 2, ky = 1 - py + 2 * iy, kx = 1 - px + 2 * ix;
        const Descriptor a = descriptor(weights + (ky * 4 + kx) * 8 * WEIGHT_CHUNK_BYTES, WEIGHT_CHUNK_BYTES);
        const Descriptor b = descriptor(buffer + position(row + py - iy, px - ix), PLANE_BYTES);
        UNROLL for (int chunk = 0; chunk < 8; chunk += 2)
            wgmma(sums, advance(a, chunk * WEIGHT_CHUNK_BYTES), advance(b, chunk * PLANE_BYTES));
    }
    wgmma_commit();
}

}  // namespace
