// The convolution that halves an image (4x4, stride 2, padding 1, 64 channels to 64), and the gradient of its input.
//
// Formula: y[o, r, c] = sum over k, ky, kx of w[o, k, ky, kx] x[k, 2 r + ky - 1, 2 c + kx - 1], as implicit GEMM in bfloat16 with
// float32 sums; dx is the transposed convolution of dy.
//
// Shapes: x, dx (B, IN, IN, C) and y, dy (B, OUT, OUT, C) with OUT = IN / 2, channels last, in bfloat16; w (out, in, 4, 4)
// float32.
//
// Work: a block loops over images with the weights in shared memory (128 KB) and a triple buffer for image data
// (halving_tile.cuh). A warpgroup computes 8 rows of 16 positions for all 64 output channels (m64n128k16). Forward, a load is 16
// channels of an image, separated by the parities of row and column, so that the positions of a tap are contiguous; two
// warpgroups multiply, a third loads. Backward, a load is a whole image of gradients, or two small ones, and each warpgroup has
// one row parity.
//
// Synchronisation: cp.async with two loads in flight, and one block barrier per load (`wait_load`).
//
// Defined by the host: IN (height = width of the larger image, 8 to 30). Launched by halving_conv.py. Reference: the layer of
// torch.nn; test: tests/accelerate/kernels/test_halving_conv.py.

#include "primitives.cuh"

namespace {

constexpr int BUFFERS = 3;
constexpr int FORWARD_THREADS = 384;            // two warpgroups that multiply, one that loads
constexpr int HALVES = IN < 16 ? 1 : 2;         // of the rows of an image: a small one has too few for two warpgroups
constexpr int BACKWARD_THREADS = 256 * HALVES;  // for each half, one warpgroup has the even rows of the input, one the odd ones

}  // namespace

#include "halving_tile.cuh"

namespace {

constexpr int ROWS = 8;  // per warpgroup

typedef float Sums[2 * ROWS][4];  // [8 positions][2 (channel of the pair) + (position of two)]

// Starts load n of the block, 16 channels of image n / 4, as planes (2 chunks, row parity, column parity); commits the copies.
DEVICE void load_inputs(char* shared, const u16* x, int n, int batch, int blocks) {
    const int number = blockIdx.x + n / 4 * blocks, quarter = n % 4;
    const u16* image = x + size_t(number) * IN * IN * C;
    char* buffer = buffer_of(shared, n);
    if (number < batch)
        for (int i = threadIdx.x % 128; i < IN * IN * 2; i += 128) {
            int row = i / 2 / IN, column = i / 2 % IN, chunk = i % 2;
            start_copy_16(buffer + (4 * chunk + 2 * (row % 2) + column % 2) * PLANE_BYTES + position(row / 2, column / 2),
                          image + i / 2 * C + 16 * quarter + 8 * chunk);
        }
    commit_copies();
}

// Stores the sums of a warpgroup to positions (first_row + step * row, first_column + step * column) of a (side, side, C) image,
// or of two small images (IMAGES = 2), of which ``remaining`` exist.
template <int IMAGES>
DEVICE void store(u16* image, const Sums& x, int side, int first_row, int first_column, int step, int group, int remaining) {
    const int lane = threadIdx.x % 32, channel = threadIdx.x % 128 / 32 * 16 + 2 * (lane / 4);
    UNROLL for (int n = 0; n < 2 * ROWS; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            const int number = IMAGES > 1 ? n % 2 : 0, eight = IMAGES > 1 ? 0 : n % 2 * 8;
            int row = first_row + step * (group * ROWS + n / 2), column = first_column + step * (eight + 2 * (lane % 4) + e);
            if (row < side && column < side && number < remaining)
                *reinterpret_cast<u32*>(image + ((number * side + row) * side + column) * C + channel) =
                    bf16_pair(x[n][e], x[n][2 + e]);
        }
}

}  // namespace

// Packs weights, given with strides, as the A operand: forward (rows are outputs), then backward (rows are inputs).
extern "C" __global__ void pack_weights(const float* w, int stride_out, int stride_in, u32* packed) {
    constexpr int WORDS = WEIGHT_BYTES / 4;
    int word = blockIdx.x * blockDim.x + threadIdx.x;
    if (word >= 2 * WORDS) return;
    const Origin from = origin(word % WORDS);
    bool backward = word >= WORDS;
    int at = (backward ? from.k * stride_out + from.row * stride_in : from.row * stride_out + from.k * stride_in) + from.tap;
    packed[word] = bf16_pair(w[at], w[at + (backward ? stride_out : stride_in)]);
}

extern "C" __global__ void __launch_bounds__(FORWARD_THREADS, 1)
    halving_forward(const u16* x, const uint4* weights, u16* y, int batch, int blocks) {
    SHARED_MEMORY(shared);
    begin(shared, weights, FORWARD_THREADS);
    const int group = warp_uniform(threadIdx.x / 128), loads = 4 * ((batch - 1 - int(blockIdx.x)) / blocks + 1);
    if (group == 2) {
        for (int n = 0; n < 2; n++) load_inputs(shared, x, n, batch, blocks);
        for (int n = 0; n < loads; n++) {
            wait_load();
            load_inputs(shared, x, n + 2, batch, blocks);
        }
        return;
    }
    wait_copies();  // this thread's share of the weights
    fence_async_proxy();
    for (int n = 0; n < loads; n += 4) {
        Sums sums;
        zero(sums);
        for (int quarter = 0; quarter < 4; quarter++) {
            block_barrier();  // the barrier of `wait_load` in the loading warpgroup
            const char* buffer = buffer_of(shared, n + quarter);
#pragma unroll 1
            for (int ky = 0; ky < 4; ky++) {
                const int dr = (ky + 1) / 2 - 1;
                const char* planes = buffer + 2 * ((ky + 1) % 2) * PLANE_BYTES + position(group * ROWS + dr, 0);
                const Descriptor a = descriptor(shared + (ky * 4 * 8 + 2 * quarter) * WEIGHT_CHUNK_BYTES, WEIGHT_CHUNK_BYTES);
                const Descriptor b = descriptor(planes, 4 * PLANE_BYTES);
                wgmma_fence();
                UNROLL for (int kx = 0; kx < 4; kx++) {
                    const int dc = (kx + 1) / 2 - 1;
                    wgmma(sums, advance(a, kx * 8 * WEIGHT_CHUNK_BYTES), advance(b, (kx + 1) % 2 * PLANE_BYTES + 16 * dc));
                }
            }
            wgmma_commit();
            wgmma_wait(sums);
        }
        store<1>(y + (size_t(blockIdx.x) + size_t(n) / 4 * blocks) * OUT * OUT * C, sums, OUT, 0, 0, 1, group, 1);
    }
}

extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS, 1)
    halving_backward(const u16* dy, const uint4* weights, u16* dx, int batch, int blocks) {
    SHARED_MEMORY(shared);
    begin(shared, weights, BACKWARD_THREADS);
    const int group = warp_uniform(threadIdx.x / 128) % HALVES;
    const int py = warp_uniform(threadIdx.x / (128 * HALVES));  // parity of the rows
    for (int n = 0; n < 2; n++) load_gradients<BACKWARD_THREADS>(shared, dy, n, batch, blocks);
    int n = 0;
    for (int image = blockIdx.x * AT_ONCE; image < batch; image += blocks * AT_ONCE, n++) {
        wait_load();
        const char* buffer = buffer_of(shared, n);
#pragma unroll 1
        for (int px = 0; px < 2; px++) {  // parity of the columns
            Sums sums;
            zero(sums);
            start_input_gradients(sums, shared, buffer, py, px, group * ROWS);
            if (px == 0) load_gradients<BACKWARD_THREADS>(shared, dy, n + 2, batch, blocks);
            wgmma_wait(sums);
            store<AT_ONCE>(dx + size_t(image) * IN * IN * C, sums, IN, py, px, 2, group, batch - image);
        }
    }
    wait_copies();
}
