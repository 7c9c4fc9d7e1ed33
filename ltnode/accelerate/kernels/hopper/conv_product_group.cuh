// The 3x3 convolution of a sample as products of its warpgroup (wgmma, compute capability 9.0), with both factors in shared
// memory. Kernels and activations lie there in pieces of 16 bytes, 8 channels of one row or position: eight pieces of successive
// rows or positions, 128 bytes, are what the instruction reads at a time. A tap is the same plane read from another position on.

namespace {

// Of a chunk (8 channels): a border, the first plane, a border, the second plane, a border. Position 8 row + column of a plane;
// the columns beyond SIDE stay zero too, and are the border on the right of a row and on the left of the next. The number is
// odd, so that two chunks of a position never meet in a bank.
constexpr int BORDER = 9;
constexpr int LINES = 3 * BORDER + 2 * 8 * SIDE;
constexpr int PLANE_CHUNK_BYTES = 16 * LINES;
constexpr int PLANES_BYTES = C / 8 * PLANE_CHUNK_BYTES;

DEVICE char* plane_of(char* planes, int number) { return planes + 16 * (BORDER + number * (8 * SIDE + BORDER)); }

DEVICE int piece_of(int row, int column, int number) { return number * PLANE_CHUNK_BYTES + 16 * (8 * row + column); }

// acc += the convolution of a plane with one kernel; acc is there after `finish_convolution`.
DEVICE void start_convolution(Tile& acc, const char* plane, const char* kernel, const Place&) {
    constexpr int TAP = C / 8 * KERNEL_CHUNK_BYTES;
    Matrix positions = matrix(plane + piece_of(-1, 0, 0), PLANE_CHUNK_BYTES), rows = matrix(kernel, KERNEL_CHUNK_BYTES);
#pragma unroll 1  // else the addresses of all taps take registers throughout the trajectory
    for (int dr = 0; dr < 3; dr++) {
        begin_products();
#pragma unroll
        for (int dc = 0; dc < 3; dc++)
#pragma unroll
            for (int chunk = 0; chunk < C / 8; chunk += 2)
                start_product(acc.v, moved(rows, dc * TAP + chunk * KERNEL_CHUNK_BYTES),
                              moved(positions, piece_of(0, dc - 1, chunk)));
        rows = moved(rows, 3 * TAP);
        positions = moved(positions, piece_of(1, 0, 0));
    }
    commit_products();
}

DEVICE void finish_convolution(Tile& acc) { products_done(acc.v); }

DEVICE void publish() { writes_to_products(); }

// A plane that all threads of the sample have exposed, as it lies there: (C / 8, 8 SIDE, 8) in memory, zeros beyond SIDE.
constexpr int COPIED = 8 * SIDE * C;

DEVICE void copy_out(u16* to, const char* plane, const Place& p) {
    const int chunk = 2 * p.warp + p.lane;  // a warp begins one store after the other
    if (p.lane < 2) {
        start_store(to + chunk * 8 * SIDE * 8, plane + chunk * PLANE_CHUNK_BYTES, 8 * SIDE * 16);
        close_stores();
    }
}

// The planes copied so far may change after a barrier of the sample.
DEVICE void copied_out(const Place& p) {
    if (p.lane < 2) stores_read();
}

}  // namespace

