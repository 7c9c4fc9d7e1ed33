// What the kernels of the convolution that halves images have in common: its kernel and parts of images in shared memory.
//
// A part lies there in planes, positions of 16 bytes (8 channels) in rows of COLS, with zeros around them: a tap is the same
// plane read from another position on.
//
// Defined by the host: IN (height = width of the larger image, 8 to 30). Defined before: BUFFERS for parts.

namespace {

constexpr int C = 64;
constexpr int OUT = IN / 2;
constexpr int COLS = 16;
constexpr int LEAD = COLS + 1;  // zeros before the first position, and so after the last of the plane before
constexpr int PLANE_BYTES = 16 * (LEAD + (COLS - 1) * COLS);
constexpr int BUFFER_BYTES = 8 * PLANE_BYTES + 16 * LEAD;
constexpr int KERNEL_BYTES = 16 * C * C * 2;  // of all taps
constexpr int AT_ONCE = IN < COLS ? 2 : 1;  // images of gradients of a part: two small ones have half of the columns each
static_assert((IN + 1) / 2 < COLS && OUT < COLS / AT_ONCE, "a column of zeros after every image");

}  // namespace

#include "warpgroup.cuh"
#include "warpgroup_rows.cuh"

namespace {

DEVICE int position(int row, int column) { return 16 * (LEAD + row * COLS + column); }

// The kernel and zeros everywhere else; the first parts may follow.
DEVICE void begin(char* shared, const uint4* kernel, int threads) {
    for (int i = threadIdx.x; i < KERNEL_BYTES / 16; i += threads) start_copy(shared + 16 * i, kernel + i);
    uint4* buffers = reinterpret_cast<uint4*>(shared + KERNEL_BYTES);
    for (int i = threadIdx.x; i < BUFFERS * BUFFER_BYTES / 16; i += threads) buffers[i] = make_uint4(0u, 0u, 0u, 0u);
    block_barrier();
}

DEVICE char* buffer_of(char* shared, int part) { return shared + KERNEL_BYTES + part % BUFFERS * BUFFER_BYTES; }

// The image of gradients that is a block's number part, or both of them: planes (8 chunks).
template <int THREADS>
DEVICE void fetch_gradients(char* shared, const u16* dy, int part, int batch, int blocks) {
    constexpr int PIECES = OUT * OUT * 8;  // of an image
    const int number = (blockIdx.x + part * blocks) * AT_ONCE;
    const u16* image = dy + size_t(number) * OUT * OUT * C;
    char* buffer = buffer_of(shared, part);
#pragma unroll
    for (int n = 0; n < AT_ONCE; n++)
        if (number + n < batch)
            for (int i = threadIdx.x; i < PIECES; i += THREADS)
                start_copy(buffer + i % 8 * PLANE_BYTES + position(i / 8 / OUT, i / 8 % OUT + n * COLS / 2),
                           image + 8 * (n * PIECES + i));
    close_copies();
}

// The part before the one fetched last is there for all, and all have finished with the part before that.
DEVICE void fetched() {
    earlier_copies_done();
    writes_to_products();
    block_barrier();
}

// Begins to add to sums, [8 positions][2 (channel of the pair) + (position of two)], the gradients of the inputs whose row and
// column have the parities py and px, from one row of these on: they all have the same four taps.
template <int N>
DEVICE void start_input_gradients(float (&sums)[N][4], const char* kernel, const char* buffer, int py, int px, int row) {
    begin_products();
#pragma unroll  // one group: what waits for earlier ones must not wait for these
    for (int tap = 0; tap < 4; tap++) {
        const int iy = tap / 2, ix = tap % 2, ky = 1 - py + 2 * iy, kx = 1 - px + 2 * ix;
        const Matrix rows = matrix(kernel + (ky * 4 + kx) * 8 * KERNEL_CHUNK_BYTES, KERNEL_CHUNK_BYTES);
        const Matrix columns = matrix(buffer + position(row + py - iy, px - ix), PLANE_BYTES);
#pragma unroll
        for (int chunk = 0; chunk < 8; chunk += 2)
            start_product(sums, moved(rows, chunk * KERNEL_CHUNK_BYTES), moved(columns, chunk * PLANE_BYTES));
    }
    commit_products();
}

}  // namespace
