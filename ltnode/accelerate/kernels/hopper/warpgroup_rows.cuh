// Kernels of C channels for products of warpgroups, in pieces of 16 bytes: (tap, chunk of 8 values of k, row of the matrix). A
// warp's 16 rows are in the order in which its threads hold them, even channels first: a thread then has channels that are side
// by side.

namespace {

constexpr int KERNEL_CHUNK_BYTES = 16 * C;

// Where a word of a kernel comes from: the row's channel and the first of two values of k.
struct Origin {
    int tap, row, k;
};

DEVICE Origin origin(int word) {
    int row = word / 4 % C;
    return {word / (4 * C * C / 8), row / 16 * 16 + 2 * (row % 8) + row % 16 / 8, word / (4 * C) % (C / 8) * 8 + 2 * (word % 4)};
}

}  // namespace

