// CUDA threads as fibres on one CPU thread: the built-in types and variables of CUDA C++, and the scheduler of a block.
//
// Each CUDA thread is a fibre (ucontext). A barrier or warp-wide instruction is a `Meeting`: a fibre that arrives waits until all
// that take part have arrived, and the last one computes the result. The scheduler picks warps in a random order and runs each as
// far as it gets, so that a missing barrier shows as a wrong result. Asynchronous copies and products happen as late as CUDA
// allows. Shared memory and the target of pending stores are filled with NaN.

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <utility>
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

struct Meeting {  // rendezvous of a fixed number of threads
    int arrived = 0;
    unsigned generation = 0;
};
struct Warp {  // exchange of a warp-wide instruction
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
// A matrix of 16-byte rows in shared memory, as a wgmma descriptor names it: each row has 8 values of k of one matrix row or, if
// transposed, 8 matrix rows of one k. ``chunk`` and ``eight`` are the distances in bytes between neighbouring core matrices in
// both directions.
struct Descriptor {
    const char* first;
    int chunk, eight;
    bool transposed;
    float at(int row, int k) const {
        if (transposed) std::swap(row, k);
        uint16_t bits;
        std::memcpy(&bits, first + k / 8 * chunk + row / 8 * eight + 16 * (row % 8) + 2 * (k % 8), 2);
        return __uint_as_float(unsigned(bits) << 16);
    }
};
struct Product {  // a pending wgmma
    float left[2][16];  // the thread's two rows of a, if a is in registers
    bool in_registers;
    Descriptor a, b;
    float (*d)[4];
    float factor(int half, int k) const {
        return in_registers ? left[half][k] : a.at(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + 8 * half, k);
    }
};
struct Phase {  // state of an mbarrier
    int arrivals = 0, missing = 0, bytes = 0;
    unsigned completed = 0;
    Meeting change;
    std::vector<Copy> pending;
};
struct Fibre {
    ucontext_t context;
    std::vector<char> stack;
    bool done = false;
    const Meeting* awaited = nullptr;
    unsigned generation = 0;  // of the awaited meeting, which is over once it has another
    std::vector<Copy> copies;
    std::vector<size_t> committed;  // number of copies at the end of each group
    std::vector<Product> products;
    std::vector<Copy> stores;
    bool ready() const { return !done && (!awaited || awaited->generation != generation); }
};

static std::vector<Fibre> fibres;
static std::vector<Warp> warps;
static std::vector<char> shared_memory;
static Meeting barriers[16];
static std::map<const void*, Phase> phases;
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

static void start_block(int threads, int shared_bytes) {
    shared_memory.assign(shared_bytes, char(0xff));  // NaN wherever a kernel forgets to write
    warps.assign((threads + 31) / 32, Warp());
    for (auto& barrier : barriers) barrier = Meeting();
    phases.clear();
    fibres = std::vector<Fibre>(threads);
    for (auto& fibre : fibres) {
        fibre.stack.resize(1 << 16);
        getcontext(&fibre.context);
        fibre.context.uc_stack.ss_sp = fibre.stack.data();
        fibre.context.uc_stack.ss_size = fibre.stack.size();
        fibre.context.uc_link = nullptr;
        makecontext(&fibre.context, enter, 0);
    }
}

static void run(int blocks, int threads, int shared_bytes, std::function<void()> kernel) {
    body = kernel;
    blockDim.x = threads;
    gridDim.x = blocks;
    for (int block = 0; block < blocks; block++) {
        blockIdx.x = block;
        start_block(threads, shared_bytes);
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

// Each thread's part of a warp-level product.
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
