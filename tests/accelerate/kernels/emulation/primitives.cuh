// The functions of the package's primitives.cuh on fibres.

#include "fibres.h"
#include "common.cuh"

#define SHARED_MEMORY(name) char* name = emulation::shared_memory.data()

DEVICE float shuffle_xor(float x, int distance) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    w.values[lane] = x;
    emulation::meet(w.meeting, 32, [&] { for (int i = 0; i < 32; i++) w.results[i][0] = w.values[i ^ distance]; });
    return w.results[lane][0];
}

static inline int warp_uniform(int value) { return value; }

static inline float is_positive(float x) { return x > 0.0f ? 1.0f : 0.0f; }

static inline void block_barrier() { emulation::meet(emulation::barriers[0], blockDim.x, [] {}); }
static inline void warp_barrier() { emulation::meet(emulation::warp().meeting, 32, [] {}); }
static inline void warpgroup_barrier(int id) { emulation::meet(emulation::barriers[id], 128, [] {}); }
static inline void wait_turn(int id) { emulation::meet(emulation::barriers[id], 256, [] {}); }
static inline void pass_turn(int id) {
    auto& meeting = emulation::barriers[id];
    if (++meeting.arrived < 256) return;
    meeting.arrived = 0;
    meeting.generation++;
}

// Copies happen as late as CUDA allows, so that a kernel that reads too early finds the old contents.
static inline void start_copy_4(void* to, const void* from) { emulation::fibres[threadIdx.x].copies.push_back({to, from, 4}); }
static inline void start_copy_8(void* to, const void* from) { emulation::fibres[threadIdx.x].copies.push_back({to, from, 8}); }
static inline void start_copy_16(void* to, const void* from) { emulation::fibres[threadIdx.x].copies.push_back({to, from, 16}); }
static inline void prefetch(const void*) {}
static inline void commit_copies() {
    auto& fibre = emulation::fibres[threadIdx.x];
    fibre.committed.push_back(fibre.copies.size());
}
static inline void make_copies(size_t count) {
    auto& copies = emulation::fibres[threadIdx.x].copies;
    for (size_t i = 0; i < count; i++) std::memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    copies.erase(copies.begin(), copies.begin() + count);
}
static inline void wait_copies_but_last() {
    auto& committed = emulation::fibres[threadIdx.x].committed;
    if (committed.size() < 2) return;
    size_t count = committed[committed.size() - 2];
    make_copies(count);
    committed = {committed.back() - count};
}
static inline void wait_copies() {
    make_copies(emulation::fibres[threadIdx.x].copies.size());
    emulation::fibres[threadIdx.x].committed.clear();
}

static inline unsigned permute_bytes(unsigned a, unsigned b, unsigned selector) {
    unsigned result = 0;
    for (int i = 0; i < 4; i++) {
        unsigned digit = selector >> 4 * i & 15u, byte = (digit & 4u ? b : a) >> 8 * (digit & 3u) & 255u;
        result |= (digit & 8u ? byte / 128u * 255u : byte) << 8 * i;
    }
    return result;
}

static inline unsigned bf16_pair(float first, float second) {
    auto rounded = [](float x) {
        unsigned bits;
        std::memcpy(&bits, &x, 4);
        if (std::isnan(x)) return 0x7fffu;
        return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    };
    return rounded(first) | rounded(second) << 16;
}

static inline unsigned bf16_pair_relu(float first, float second) {
    auto relu = [](float x) { return x < 0.0f ? 0.0f : x; };
    return bf16_pair(relu(first), relu(second));
}

static inline void ldmatrix(unsigned (&to)[4], const char* row) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    w.rows[lane] = row;
    emulation::meet(w.meeting, 32, [&] {
        for (int i = 0; i < 32; i++)
            for (int m = 0; m < 4; m++) std::memcpy(&w.matrices[i][m], w.rows[8 * m + i / 4] + 4 * (i % 4), 4);
    });
    std::memcpy(to, w.matrices[lane], 16);
}

static inline void ldmatrix_transposed(unsigned (&to)[4], const char* row) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    w.rows[lane] = row;
    emulation::meet(w.meeting, 32, [&] {
        for (int i = 0; i < 32; i++)
            for (int m = 0; m < 4; m++)
                for (int half = 0; half < 2; half++) {
                    uint16_t value;
                    std::memcpy(&value, w.rows[8 * m + 2 * (i % 4) + half] + 2 * (i / 4), 2);
                    w.matrices[i][m] = half ? w.matrices[i][m] | unsigned(value) << 16 : value;
                }
    });
    std::memcpy(to, w.matrices[lane], 16);
}

static inline void mma(float (&d)[4], const uint4& a, unsigned b0, unsigned b1) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    w.a[lane] = a;
    w.b[lane][0] = b0;
    w.b[lane][1] = b1;
    emulation::meet(w.meeting, 32, [&] {
        float left[16][16], right[16][8];
        for (int i = 0; i < 32; i++) {
            unsigned regs[4] = {w.a[i].x, w.a[i].y, w.a[i].z, w.a[i].w};
            for (int q = 0; q < 4; q++)
                for (int h = 0; h < 2; h++)
                    left[i / 4 + 8 * (q % 2)][2 * (i % 4) + h + 8 * (q / 2)] = emulation::half_value(regs[q], h);
            for (int q = 0; q < 2; q++)
                for (int h = 0; h < 2; h++) right[2 * (i % 4) + h + 8 * q][i / 4] = emulation::half_value(w.b[i][q], h);
        }
        emulation::multiply(w, left, right);
    });
    for (int q = 0; q < 4; q++) d[q] += w.results[lane][q];
}

static inline void mma_tf32(float (&d)[4], const float (&a)[4], float b0, float b1) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    auto truncated = [](float x) { return __float_as_uint(x) & 0xffffe000u; };
    w.a[lane] = make_uint4(truncated(a[0]), truncated(a[1]), truncated(a[2]), truncated(a[3]));
    w.b[lane][0] = truncated(b0);
    w.b[lane][1] = truncated(b1);
    emulation::meet(w.meeting, 32, [&] {
        float left[16][8], right[8][8];
        for (int i = 0; i < 32; i++) {
            unsigned regs[4] = {w.a[i].x, w.a[i].y, w.a[i].z, w.a[i].w};
            for (int q = 0; q < 4; q++) left[i / 4 + 8 * (q % 2)][i % 4 + 4 * (q / 2)] = __uint_as_float(regs[q]);
            for (int q = 0; q < 2; q++) right[i % 4 + 4 * q][i / 4] = __uint_as_float(w.b[i][q]);
        }
        emulation::multiply(w, left, right);
    });
    for (int q = 0; q < 4; q++) d[q] += w.results[lane][q];
}
