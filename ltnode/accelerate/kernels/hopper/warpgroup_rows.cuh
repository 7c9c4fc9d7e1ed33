// Layout of convolution weights in shared memory as the A operand (64 rows x k) of wgmma: (tap, chunk of 8 values of k, row) with
// 16 bytes each. Within the 16 rows of a warp, even channels come first, so that each thread's accumulators belong to two
// neighbouring channels.

namespace {

constexpr int WEIGHT_CHUNK_BYTES = 16 * C;

DEVICE Origin origin(int word) {
    int row = word / 4 % C;
    return {word / (4 * C * C / 8), row / 16 * 16 + 2 * (row % 8) + row % 16 / 8, word / (4 * C) % (C / 8) * 8 + 2 * (word % 4)};
}

}  // namespace
