// The 3x3 convolution of one sample as warpgroup MMA (wgmma) with both operands in shared memory; conv_product_warp.cuh has the
// same functions for GPUs without wgmma.
//
// Implicit GEMM: output (64 channels x positions) += weights of a tap (64 x 64) x activations shifted by the tap (64 x
// positions). Weights are laid out as in warpgroup_rows.cuh. A plane of activations has 16 bytes (8 channels) per position and
// chunk; eight consecutive positions, one image row, form a core matrix. A tap is the same plane read from another start
// position.

namespace {

// Layout of a chunk (8 channels): padding, first plane, padding, second plane, padding. Position 8 row + column of a plane. The
// columns beyond SIDE stay zero and are the padding to the right of a row and to the left of the next. The number of lines is
// odd, so that the chunks of a position lie in different banks.
constexpr int PADDING = 9;
constexpr int LINES = 3 * PADDING + 2 * 8 * SIDE;
constexpr int PLANE_CHUNK_BYTES = 16 * LINES;
constexpr int PLANES_BYTES = C / 8 * PLANE_CHUNK_BYTES;

DEVICE char* plane_of(char* planes, int number) { return planes + 16 * (PADDING + number * (8 * SIDE + PADDING)); }

// Byte offset of 8 channels (16 bytes, chunk 0 to 7) at a position.
DEVICE int plane_offset(int row, int column, int chunk) { return chunk * PLANE_CHUNK_BYTES + 16 * (8 * row + column); }

// acc += convolution of a plane with packed weights; acc is valid after `finish_convolution`.
DEVICE void start_convolution(Tile& acc, const char* plane, const char* weights, const Place&) {
    constexpr int TAP = C / 8 * WEIGHT_CHUNK_BYTES;
    Descriptor b = descriptor(plane + plane_offset(-1, 0, 0), PLANE_CHUNK_BYTES), a = descriptor(weights, WEIGHT_CHUNK_BYTES);
#pragma unroll 1  // unrolled, the addresses of all taps would occupy registers throughout the trajectory
    for (int dr = 0; dr < 3; dr++) {
        wgmma_fence();
        UNROLL for (int dc = 0; dc < 3; dc++)
            UNROLL for (int chunk = 0; chunk < C / 8; chunk += 2)
                wgmma(acc.v, advance(a, dc * TAP + chunk * WEIGHT_CHUNK_BYTES), advance(b, plane_offset(0, dc - 1, chunk)));
        a = advance(a, 3 * TAP);
        b = advance(b, plane_offset(1, 0, 0));
    }
    wgmma_commit();
}

DEVICE void finish_convolution(Tile& acc) { wgmma_wait(acc.v); }

// Makes the thread's writes to a plane visible to wgmma and bulk stores.
DEVICE void fence_plane() { fence_async_proxy(); }

// Starts to store a plane that all threads of the sample have written, unchanged: (C / 8, 8 SIDE, 8) with zeros beyond SIDE.
constexpr int PLANE_VALUES = 8 * SIDE * C;

DEVICE void start_plane_store(u16* to, const char* plane, const Place& p) {
    const int chunk = 2 * p.warp + p.lane;
    if (p.lane < 2) {
        bulk_store(to + chunk * 8 * SIDE * 8, plane + chunk * PLANE_CHUNK_BYTES, 8 * SIDE * 16);
        bulk_store_commit();
    }
}

// After this and a barrier of the sample, the stored planes may be overwritten.
DEVICE void wait_plane_store(const Place& p) {
    if (p.lane < 2) bulk_store_wait();
}

}  // namespace
