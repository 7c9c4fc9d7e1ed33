// The 3x3 convolution of one sample as warp-level MMA (mma.m16n8k16), for GPUs without wgmma; conv_product_group.cuh has the
// same functions for warpgroups.
//
// Implicit GEMM: output (64 channels x positions) += weights of a tap (64 x 64) x activations shifted by the tap (64 x
// positions). Each warp computes 16 output channels. The weights lie in shared memory in fragment order (tap, k-step, thread), so
// that a fragment is one 16-byte load. The activations (a plane) are loaded with ldmatrix once per horizontal shift; a vertical
// shift takes the fragments of another image row.

namespace {

constexpr int PLANE_BYTES = 64 * 128;  // activations of a sample: 1 + 7 x 8 + 7 positions of 128 bytes
constexpr int PLANES_BYTES = 2 * PLANE_BYTES;

DEVICE char* plane_of(char* planes, int number) { return planes + number * PLANE_BYTES; }

DEVICE Origin origin(int word) {
    int reg = word % 4, thread = word / 4 % THREADS_PER_SAMPLE, step = word / (4 * THREADS_PER_SAMPLE) % 4, lane = thread % 32;
    return {word / (16 * THREADS_PER_SAMPLE), 16 * (thread / 32) + 2 * (lane / 4) + reg % 2,
            16 * step + 2 * (lane % 4) + 8 * (reg / 2)};
}

// Byte offset of 8 channels (16 bytes, number 0 to 7) at a position. Position 8 row + column is line 8 row + column + 1. Line 0
// and the columns beyond SIDE stay zero and serve as padding. The 16-byte vectors of a line are swizzled (XOR with the line), so
// that eight lines cause no bank conflict.
DEVICE int plane_offset(int row, int column, int number) {
    int line = 8 * row + column + 1;
    return line * 128 + (number ^ (line % 8)) * 16;
}

// acc += convolution of a plane with packed weights.
DEVICE void start_convolution(Tile& acc, const char* plane, const char* weights, const Place& p) {
    const uint4* fragments = reinterpret_cast<const uint4*>(weights) + p.thread;
    UNROLL for (int dc = 0; dc < 3; dc++)
        UNROLL for (int half = 0; half < 2; half++) {  // 32 input channels at a time
            u32 b[SIDE][4];
            const char* row = plane + plane_offset(0, p.lane % 8 + dc - 1, 4 * half + p.lane / 8);
            UNROLL for (int r = 0; r < SIDE; r++) ldmatrix(b[r], row + r * 1024);
            UNROLL for (int dr = 0; dr < 3; dr++) {
                uint4 a0 = fragments[((dr * 3 + dc) * 4 + 2 * half) * THREADS_PER_SAMPLE];
                uint4 a1 = fragments[((dr * 3 + dc) * 4 + 2 * half + 1) * THREADS_PER_SAMPLE];
                UNROLL for (int r = 0; r < SIDE; r++)
                    if (r + dr - 1 >= 0 && r + dr - 1 < SIDE) mma(acc.v[r], a0, b[r + dr - 1][0], b[r + dr - 1][1]);
                UNROLL for (int r = 0; r < SIDE; r++)
                    if (r + dr - 1 >= 0 && r + dr - 1 < SIDE) mma(acc.v[r], a1, b[r + dr - 1][2], b[r + dr - 1][3]);
            }
        }
}

// The warp-level products are synchronous: there is nothing to wait for and no proxy fence.
DEVICE void finish_convolution(Tile&) {}
DEVICE void fence_plane() {}

constexpr int PLANE_VALUES = SAMPLE_SIZE;

// Stores a plane that all threads of the sample have written as a (P, C) array in global memory.
DEVICE void start_plane_store(u16* to, const char* plane, const Place& p) {
    constexpr int VECTORS = C / 8;  // of a position
    UNROLL for (int i = 0; i < P * VECTORS; i += THREADS_PER_SAMPLE) {
        int at = i + p.thread, position = at / VECTORS;
        if (i + THREADS_PER_SAMPLE <= P * VECTORS || at < P * VECTORS)
            reinterpret_cast<uint4*>(to)[at] =
                *reinterpret_cast<const uint4*>(plane + plane_offset(position / SIDE, position % SIDE, at % VECTORS));
    }
}

DEVICE void wait_plane_store(const Place&) {}

}  // namespace
