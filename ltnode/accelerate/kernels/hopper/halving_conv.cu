// The 4x4 convolution of 64 channels with stride 2 and a border of one, which halves images, and the gradient of its input, in
// bfloat16 as products of warpgroups (compute capability 9.0); the launches are in halving_conv.py.
//
// The kernel stays in shared memory while a block goes over images, of which it has a part in one buffer (halving_tile.cuh) and
// fetches the next two parts into others. Forward, rows and columns are apart by their parity, so that a tap's positions are side
// by side; a part is 16 channels. Backward, all inputs with the same parities have the same taps, and a part is a whole image of
// gradients, or two small ones. A warpgroup makes 8 rows.
//
// Defined by the host: IN (height = width of the larger image, 8 to 30).

namespace {

constexpr int BUFFERS = 3;
constexpr int FORWARD_THREADS = 384;            // two warpgroups multiply, and do nothing else meanwhile; the third fetches
constexpr int HALVES = IN < 16 ? 1 : 2;         // of the rows of an image: small ones have too few for two
constexpr int BACKWARD_THREADS = 256 * HALVES;  // of each half, one warpgroup makes the even rows of inputs, one the odd ones

}  // namespace

#include "halving_tile.cuh"

namespace {

constexpr int ROWS = 8;  // of a warpgroup

struct Sums {
    float v[2 * ROWS][4];  // [8 positions][2 (channel of the pair) + (position of two)]
};

DEVICE Sums no_sums() {
    Sums x;
#pragma unroll
    for (int n = 0; n < 2 * ROWS; n++)
#pragma unroll
        for (int q = 0; q < 4; q++) x.v[n][q] = 0.0f;
    return x;
}

// 16 channels of the image that is a block's number part / 4: planes (2 chunks, parity of the row, parity of the column).
DEVICE void fetch_inputs(char* shared, const u16* x, int part, int batch, int blocks) {
    const int number = blockIdx.x + part / 4 * blocks, quarter = part % 4;
    const u16* image = x + size_t(number) * IN * IN * C;
    char* buffer = buffer_of(shared, part);
    if (number < batch)
        for (int i = threadIdx.x % 128; i < IN * IN * 2; i += 128) {
            int row = i / 2 / IN, column = i / 2 % IN, chunk = i % 2;
            start_copy(buffer + (4 * chunk + 2 * (row % 2) + column % 2) * PLANE_BYTES + position(row / 2, column / 2),
                       image + i / 2 * C + 16 * quarter + 8 * chunk);
        }
    close_copies();
}

// Sums of a warpgroup to the positions (first row + step * row, first column + step * column) of a (side, side, C) image, or of
// as many of IMAGES = 2 small ones as there are.
template <int IMAGES>
DEVICE void store(u16* image, const Sums& x, int side, int first_row, int first_column, int step, int group, int there) {
    const int lane = threadIdx.x % 32, channel = threadIdx.x % 128 / 32 * 16 + 2 * (lane / 4);
#pragma unroll
    for (int n = 0; n < 2 * ROWS; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int number = IMAGES > 1 ? n % 2 : 0, eight = IMAGES > 1 ? 0 : n % 2 * 8;
            int row = first_row + step * (group * ROWS + n / 2), column = first_column + step * (eight + 2 * (lane % 4) + e);
            if (row < side && column < side && number < there)
                *reinterpret_cast<u32*>(image + ((number * side + row) * side + column) * C + channel) =
                    bf16_pair(x.v[n][e], x.v[n][2 + e]);
        }
}

}  // namespace

// A kernel (out, in, 4, 4) with strides as the products read it, forward (rows are outputs) and backward (rows are inputs).
extern "C" __global__ void pack_kernel(const float* w, int stride_out, int stride_in, u32* packed) {
    constexpr int WORDS = KERNEL_BYTES / 4;
    int word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word >= 2 * WORDS) return;
    const Origin from = origin(word % WORDS);
    bool backward = word >= WORDS;
    int at = (backward ? from.k * stride_out + from.row * stride_in : from.row * stride_out + from.k * stride_in) + from.tap;
    packed[word] = bf16_pair(w[at], w[at + (backward ? stride_out : stride_in)]);
}

// y (B, OUT, OUT, C) from x (B, IN, IN, C).
extern "C" __global__ void __launch_bounds__(FORWARD_THREADS, 1)
    halving_forward(const u16* x, const uint4* kernel, u16* y, int batch, int blocks) {
    SHARED_MEMORY(shared);
    begin(shared, kernel, FORWARD_THREADS);
    const int group = same_in_warp(threadIdx.x / 128), parts = 4 * ((batch - 1 - int(blockIdx.x)) / blocks + 1);
    if (group == 2) {
        for (int part = 0; part < 2; part++) fetch_inputs(shared, x, part, batch, blocks);
        for (int part = 0; part < parts; part++) {
            fetched();
            fetch_inputs(shared, x, part + 2, batch, blocks);
        }
        return;
    }
    copies_done();  // its share of the kernel
    writes_to_products();
    for (int part = 0; part < parts; part += 4) {
        Sums sums = no_sums();
        for (int quarter = 0; quarter < 4; quarter++) {
            block_barrier();  // with `fetched`
            const char* buffer = buffer_of(shared, part + quarter);
#pragma unroll 1
            for (int ky = 0; ky < 4; ky++) {
                const int dr = (ky + 1) / 2 - 1;
                const char* planes = buffer + 2 * ((ky + 1) % 2) * PLANE_BYTES + position(group * ROWS + dr, 0);
                const Matrix rows = matrix(shared + (ky * 4 * 8 + 2 * quarter) * KERNEL_CHUNK_BYTES, KERNEL_CHUNK_BYTES);
                const Matrix columns = matrix(planes, 4 * PLANE_BYTES);
                begin_products();
#pragma unroll
                for (int kx = 0; kx < 4; kx++) {
                    const int dc = (kx + 1) / 2 - 1;
                    start_product(sums.v, moved(rows, kx * 8 * KERNEL_CHUNK_BYTES),
                                  moved(columns, (kx + 1) % 2 * PLANE_BYTES + 16 * dc));
                }
            }
            commit_products();
            products_done(sums.v);
        }
        store<1>(y + (size_t(blockIdx.x) + size_t(part) / 4 * blocks) * OUT * OUT * C, sums, OUT, 0, 0, 1, group, 1);
    }
}

// dx (B, IN, IN, C) from dy (B, OUT, OUT, C).
extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS, 1)
    halving_backward(const u16* dy, const uint4* kernel, u16* dx, int batch, int blocks) {
    SHARED_MEMORY(shared);
    begin(shared, kernel, BACKWARD_THREADS);
    const int group = same_in_warp(threadIdx.x / 128) % HALVES;
    const int py = same_in_warp(threadIdx.x / (128 * HALVES));  // parity of the rows
    for (int part = 0; part < 2; part++) fetch_gradients<BACKWARD_THREADS>(shared, dy, part, batch, blocks);
    int part = 0;
    for (int image = blockIdx.x * AT_ONCE; image < batch; image += blocks * AT_ONCE, part++) {
        fetched();
        const char* buffer = buffer_of(shared, part);
#pragma unroll 1
        for (int px = 0; px < 2; px++) {  // parity of the column
            Sums sums = no_sums();
            start_input_gradients(sums.v, shared, buffer, py, px, group * ROWS);
            if (px == 0) fetch_gradients<BACKWARD_THREADS>(shared, dy, part + 2, batch, blocks);
            products_done(sums.v);
            store<AT_ONCE>(dx + size_t(image) * IN * IN * C, sums, IN, py, px, 2, group, batch - image);
        }
    }
    copies_done();
}
