// CUDA sources on a CPU: every CUDA thread is a fibre, warp-wide instructions and barriers wait for all that take part.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline float __uint_as_float(unsigned bits) { float x; std::memcpy(&x, &bits, 4); return x; }
static inline unsigned __float_as_uint(float x) { unsigned bits; std::memcpy(&bits, &x, 4); return bits; }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

struct Index { int x; };
static Index threadIdx, blockIdx, blockDim, gridDim;

namespace emulation {

struct Meeting {  // a rendezvous of a fixed number of threads
    int arrived = 0;
    unsigned generation = 0;
};
struct Warp {
    Meeting meeting;
    float left[32][2][16];
    const char* rows[32];
    uint4 a[32];
    unsigned b[32][2];
    float values[32], results[32][4];
    unsigned matrices[32][4];
};
struct Copy {
    void* to;
    const void* from;
    int bytes;
};
// Rows of 16 bytes: 8 values of k of one row, or across, 8 rows of one k. The next eight of what a piece has are chunk bytes
// further, the next eight pieces ``eight`` bytes.
struct Matrix {
    const char* first;
    int chunk, eight;
    bool across;
    float at(int row, int k) const {
        if (across) std::swap(row, k);
        uint16_t bits;
        std::memcpy(&bits, first + k / 8 * chunk + row / 8 * eight + 16 * (row % 8) + 2 * (k % 8), 2);
        return __uint_as_float(unsigned(bits) << 16);
    }
};
struct Product {
    float left[2][16];  // the thread's two rows of a, where they are in registers
    bool held;
    Matrix a, b;
    float (*d)[4];
    float factor(int half, int k) const {
        return held ? left[half][k] : a.at(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half, k);
    }
};
struct Opening {  // of a gate
    int arrivals = 0, missing = 0, bytes = 0;
    unsigned times = 0;
    Meeting change;
    std::vector<Copy> late;
};
struct Fibre {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
    const Meeting* awaited = nullptr;
    unsigned generation = 0;  // of the awaited meeting: over once it has another
    std::vector<Copy> copies;
    std::vector<size_t> closed;  // how many of them there were when a group ended
    std::vector<Product> products;
    std::vector<Copy> stores;
    bool ready() const { return !done && (!awaited || awaited->generation != generation); }
};

static std::vector<Fibre> fibres;
static std::vector<Warp> warps;
static std::vector<char> shared_memory;
static Meeting barriers[16];
static std::map<const void*, Opening> openings;
static unsigned loads = 0;
static ucontext_t scheduler;
static std::function<void()> body;

template <typename Last>
static void meet(Meeting& meeting, int count, Last last) {
    if (++meeting.arrived == count) {
        last();
        meeting.arrived = 0;
        meeting.generation++;
        return;
    }
    int self = threadIdx.x;
    fibres[self].awaited = &meeting;
    fibres[self].generation = meeting.generation;
    swapcontext(&fibres[self].context, &scheduler);
    fibres[self].awaited = nullptr;
}

static Warp& warp() { return warps[threadIdx.x / 32]; }
static int lane() { return threadIdx.x % 32; }

static void enter() {
    body();
    fibres[threadIdx.x].done = true;
    swapcontext(&fibres[threadIdx.x].context, &scheduler);
}

static void run_warp(int w, int threads) {
    for (bool busy = true; busy;) {
        busy = false;
        for (int i = 32 * w; i < std::min(32 * w + 32, threads); i++)
            if (fibres[i].ready()) {
                busy = true;
                threadIdx.x = i;
                swapcontext(&scheduler, &fibres[i].context);
            }
    }
}

static void run(int blocks, int threads, int shared_bytes, std::function<void()> kernel) {
    body = kernel;
    blockDim.x = threads;
    gridDim.x = blocks;
    for (int block = 0; block < blocks; block++) {
        blockIdx.x = block;
        shared_memory.assign(shared_bytes, char(0xff));  // NaN wherever a kernel forgets to write
        warps.assign((threads + 31) / 32, Warp());
        for (auto& barrier : barriers) barrier = Meeting();
        openings.clear();
        fibres = std::vector<Fibre>(threads);
        for (auto& fibre : fibres) {
            fibre.stack.resize(1 << 16);
            getcontext(&fibre.context);
            fibre.context.uc_stack.ss_sp = fibre.stack.data();
            fibre.context.uc_stack.ss_size = fibre.stack.size();
            fibre.context.uc_link = nullptr;
            makecontext(&fibre.context, enter, 0);
        }
        // Warps in a random order, each as far as it gets without the others: a missing barrier shows.
        std::minstd_rand random(block + 1);
        std::vector<int> ready;
        for (;;) {
            ready.clear();
            for (int w = 0; w < int(warps.size()); w++)
                for (int i = 32 * w; i < std::min(32 * w + 32, threads); i++)
                    if (fibres[i].ready()) {
                        ready.push_back(w);
                        break;
                    }
            if (ready.empty()) break;
            run_warp(ready[random() % ready.size()], threads);
        }
    }
}

// Products of a warp, each thread's part.
template <int K>
static void multiply(Warp& w, const float (&left)[16][K], const float (&right)[K][8]) {
    for (int i = 0; i < 32; i++)
        for (int q = 0; q < 4; q++) {
            w.results[i][q] = 0.0f;
            for (int k = 0; k < K; k++) w.results[i][q] += left[i / 4 + 8 * (q / 2)][k] * right[k][2 * (i % 4) + q % 2];
        }
}

static float half_value(unsigned pair, int index) { return __uint_as_float(index ? pair & 0xffff0000u : pair << 16); }

}  // namespace emulation

#define SHARED_MEMORY(name) char* name = emulation::shared_memory.data()

static inline float shuffle_xor(float x, int distance) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    w.values[lane] = x;
    emulation::meet(w.meeting, 32, [&] { for (int i = 0; i < 32; i++) w.results[i][0] = w.values[i ^ distance]; });
    return w.results[lane][0];
}

static inline int same_in_warp(int number) { return number; }

static inline float positive(float number) { return number > 0.0f ? 1.0f : 0.0f; }

static inline void block_barrier() { emulation::meet(emulation::barriers[0], blockDim.x, [] {}); }
static inline void warp_barrier() { emulation::meet(emulation::warp().meeting, 32, [] {}); }
static inline void wait_for_turn(int number) { emulation::meet(emulation::barriers[number], 256, [] {}); }
static inline void pass_turn(int number) {
    auto& meeting = emulation::barriers[number];
    if (++meeting.arrived < 256) return;
    meeting.arrived = 0;
    meeting.generation++;
}
static inline void sample_barrier(int number) { emulation::meet(emulation::barriers[number], 128, [] {}); }

// As late as they may be: what reads too early finds what was there before.
static inline void start_copy(void* to, const void* from) { emulation::fibres[threadIdx.x].copies.push_back({to, from, 16}); }
static inline void start_word_copy(void* to, const void* from) { emulation::fibres[threadIdx.x].copies.push_back({to, from, 4}); }
static inline void start_half_copy(void* to, const void* from) { emulation::fibres[threadIdx.x].copies.push_back({to, from, 8}); }
static inline void prefetch(const void*) {}
static inline void close_copies() {
    auto& fibre = emulation::fibres[threadIdx.x];
    fibre.closed.push_back(fibre.copies.size());
}
static inline void make_copies(size_t count) {
    auto& copies = emulation::fibres[threadIdx.x].copies;
    for (size_t i = 0; i < count; i++) std::memcpy(copies[i].to, copies[i].from, copies[i].bytes);
    copies.erase(copies.begin(), copies.begin() + count);
}
static inline void earlier_copies_done() {
    auto& closed = emulation::fibres[threadIdx.x].closed;
    if (closed.size() < 2) return;
    size_t count = closed[closed.size() - 2];
    make_copies(count);
    closed = {closed.back() - count};
}
static inline void copies_done() {
    make_copies(emulation::fibres[threadIdx.x].copies.size());
    emulation::fibres[threadIdx.x].closed.clear();
}

static inline unsigned bytes(unsigned a, unsigned b, unsigned selector) {
    unsigned found = 0;
    for (int i = 0; i < 4; i++) {
        unsigned digit = selector >> 4 * i & 15u, byte = (digit & 4u ? b : a) >> 8 * (digit & 3u) & 255u;
        found |= (digit & 8u ? byte / 128u * 255u : byte) << 8 * i;
    }
    return found;
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
    auto positive = [](float x) { return x < 0.0f ? 0.0f : x; };
    return bf16_pair(positive(first), positive(second));
}

static inline void load_matrices(unsigned (&to)[4], const char* row) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    w.rows[lane] = row;
    emulation::meet(w.meeting, 32, [&] {
        for (int i = 0; i < 32; i++)
            for (int m = 0; m < 4; m++) std::memcpy(&w.matrices[i][m], w.rows[8 * m + i / 4] + 4 * (i % 4), 4);
    });
    std::memcpy(to, w.matrices[lane], 16);
}

static inline void load_matrices_transposed(unsigned (&to)[4], const char* row) {
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
    auto seen = [](float x) { return __float_as_uint(x) & 0xffffe000u; };
    w.a[lane] = make_uint4(seen(a[0]), seen(a[1]), seen(a[2]), seen(a[3]));
    w.b[lane][0] = seen(b0);
    w.b[lane][1] = seen(b1);
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

// Copies by one thread. Stores go as late as they may; of the loads every other one at once, the others when one waits for them:
// what reads too early finds what was there before, what is still needed may be gone.
typedef unsigned long long Gate;
#define REGISTERS(change, number)
static inline void start_store(void* to, const void* from, int bytes) {
    std::memset(to, 0xff, bytes);  // NaN, should nobody wait for it
    emulation::fibres[threadIdx.x].stores.push_back({to, from, bytes});
}
static inline void close_stores() {}
static inline void stores_read() {
    auto& stores = emulation::fibres[threadIdx.x].stores;
    for (auto& store : stores) std::memcpy(store.to, store.from, store.bytes);
    stores.clear();
}
static inline void make_gate(Gate* gate, int arrivals) {
    auto& opening = emulation::openings[gate];
    opening.arrivals = opening.missing = arrivals;
}
static inline void changed(emulation::Opening& opening) {
    if (opening.missing == 0 && opening.bytes == 0) {
        opening.times++;
        opening.missing = opening.arrivals;
    }
    opening.change.generation++;
}
static inline void expect(Gate* gate, int bytes) {
    auto& opening = emulation::openings[gate];
    opening.missing--;
    opening.bytes += bytes;
    changed(opening);
}
static inline void arrive(Gate* gate) { expect(gate, 0); }
static inline void start_load(void* to, const void* from, int bytes, Gate* gate) {
    auto& opening = emulation::openings[gate];
    opening.late.push_back({to, from, bytes});
    if (emulation::loads++ % 2) {
        std::memcpy(to, from, bytes);
        opening.bytes -= bytes;
        opening.late.pop_back();
    }
    changed(opening);
}
static inline void wait_for(Gate* gate, int number) {
    auto& opening = emulation::openings[gate];
    while (opening.times % 2 == unsigned(number) % 2) {
        for (auto& copy : opening.late) {
            std::memcpy(copy.to, copy.from, copy.bytes);
            opening.bytes -= copy.bytes;
        }
        bool some = !opening.late.empty();
        opening.late.clear();
        if (some) changed(opening);
        else emulation::meet(opening.change, 1 << 30, [] {});
    }
}

// Products of a warpgroup, also as late as they may be. A thread makes its own part of them.
using emulation::Matrix;
static inline Matrix matrix(const char* first, int chunk) { return {first, chunk, 128, false}; }
static inline Matrix matrix_across(const char* first, int chunk, int eight) { return {first, chunk, eight, true}; }
static inline Matrix moved(Matrix from, int bytes) { return {from.first + bytes, from.chunk, from.eight, from.across}; }
static inline void begin_products() {}
static inline void writes_to_products() {}
static inline void commit_products() {}
template <int N>
static inline void start_product(float (&d)[N][4], Matrix a, Matrix b) {
    emulation::fibres[threadIdx.x].products.push_back({{}, false, a, b, d});
}
template <int N>
static inline void start_product_across(float (&d)[N][4], const unsigned (&a)[4], Matrix b) {
    auto& w = emulation::warp();
    int lane = emulation::lane();
    std::memcpy(&w.a[lane], a, 16);
    emulation::meet(w.meeting, 32, [&] {
        for (int i = 0; i < 32; i++)
            for (int k = 0; k < 16; k++)
                for (int half = 0; half < 2; half++) {
                    const uint4& held = w.a[i / 4 * 4 + k % 8 / 2];
                    const unsigned regs[4] = {held.x, held.y, held.z, held.w};
                    w.left[i][half][k] = emulation::half_value(regs[half + 2 * (k / 8)], k % 2);
                }
    });
    emulation::Product product = {{}, true, {}, b, d};
    std::memcpy(product.left, w.left[lane], sizeof product.left);
    emulation::fibres[threadIdx.x].products.push_back(product);
}
template <int N>
static inline void start_product_across(float (&d)[N][4], Matrix a, Matrix b) { start_product(d, a, b); }
template <int N>
static inline void products_done(float (&d)[N][4]) {
    auto& products = emulation::fibres[threadIdx.x].products;
    int lane = emulation::lane();
    for (auto& product : products)
        for (int row = 0; row < N && product.d == d; row++)
            for (int q = 0; q < 4; q++) {
                float sum = 0.0f;
                for (int k = 0; k < 16; k++)
                    sum += product.factor(q / 2, k) * product.b.at(8 * row + 2 * (lane % 4) + q % 2, k);
                d[row][q] += sum;
            }
    auto made = [&](auto& product) { return product.d == d; };
    products.erase(std::remove_if(products.begin(), products.end(), made), products.end());
}
template <int N>
static inline void earlier_products_done(float (&d)[N][4]) { products_done(d); }
template <int N>
static inline void still_read(unsigned (&)[N][4]) {}
