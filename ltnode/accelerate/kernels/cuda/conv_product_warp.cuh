// The 3x3 convolution of a sample as products of warps (mma.m16n8k16), each for its 16 output channels. Kernels lie in shared
// memory in the order of the fragments. Vertical shifts of the activations need no reads of their own: they take another image
// row's fragment.

namespace {

constexpr int PLANE_BYTES = 64 * 128;  // a sample's activations: 1 + 7 x 8 + 7 positions of 128 bytes
constexpr int PLANES_BYTES = 2 * PLANE_BYTES;

DEVICE char* plane_of(char* planes, int number) { return planes + number * PLANE_BYTES; }

// Where a word of a kernel comes from: its row of the matrix and the first of two values of k.
struct Origin {
    int tap, row, k;
};

DEVICE Origin origin(int word) {
    int reg = word % 4, thread = word / 4 % LANES, step = word / (4 * LANES) % 4, lane = thread % 32;
    return {word / (16 * LANES), 16 * (thread / 32) + 2 * (lane / 4) + reg % 2, 16 * step + 2 * (lane % 4) + 8 * (reg / 2)};
}

// Position q = 8 row + column is line q + 1: line 0 and the columns beyond SIDE stay zero and are the image's border. The 16-byte
// pieces of a line are exchanged by its number, so that eight lines never meet in a bank.
DEVICE int piece_of(int row, int column, int number) {
    int line = 8 * row + column + 1;
    return line * 128 + (number ^ (line % 8)) * 16;
}

// acc += the convolution of a plane with one kernel (tap, k-step, thread).
DEVICE void start_convolution(Tile& acc, const char* plane, const char* kernel, const Place& p) {
    const uint4* fragments = reinterpret_cast<const uint4*>(kernel) + p.thread;
#pragma unroll
    for (int dc = 0; dc < 3; dc++)
#pragma unroll
        for (int half = 0; half < 2; half++) {  // 32 input channels at a time
            u32 b[SIDE][4];
            const char* row = plane + piece_of(0, p.lane % 8 + dc - 1, 4 * half + p.lane / 8);
#pragma unroll
            for (int r = 0; r < SIDE; r++) load_matrices(b[r], row + r * 1024);
#pragma unroll
            for (int dr = 0; dr < 3; dr++) {
                uint4 a0 = fragments[((dr * 3 + dc) * 4 + 2 * half) * LANES];
                uint4 a1 = fragments[((dr * 3 + dc) * 4 + 2 * half + 1) * LANES];
#pragma unroll
                for (int r = 0; r < SIDE; r++)
                    if (r + dr - 1 >= 0 && r + dr - 1 < SIDE) mma(acc.v[r], a0, b[r + dr - 1][0], b[r + dr - 1][1]);
#pragma unroll
                for (int r = 0; r < SIDE; r++)
                    if (r + dr - 1 >= 0 && r + dr - 1 < SIDE) mma(acc.v[r], a1, b[r + dr - 1][2], b[r + dr - 1][3]);
            }
        }
}

DEVICE void finish_convolution(Tile&) {}

DEVICE void publish() {}

constexpr int COPIED = SAMPLE;

// A plane that all threads of the sample have exposed, as a (P, C) array in memory.
DEVICE void copy_out(u16* to, const char* plane, const Place& p) {
    constexpr int PARTS = C / 8;
#pragma unroll
    for (int i = 0; i < P * PARTS; i += LANES) {
        int at = i + p.thread, position = at / PARTS;
        if (i + LANES <= P * PARTS || at < P * PARTS)
            reinterpret_cast<uint4*>(to)[at] =
                *reinterpret_cast<const uint4*>(plane + piece_of(position / SIDE, position % SIDE, at % PARTS));
    }
}

DEVICE void copied_out(const Place&) {}

}  // namespace

