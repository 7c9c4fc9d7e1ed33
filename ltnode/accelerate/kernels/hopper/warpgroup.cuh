// What compute capability 9.0 has beside primitives.cuh: products of matrices in shared memory by a warpgroup, 128 threads, and
// copies of whole pieces of memory by one thread.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the tests' emulation has its own

// Rows of 16 bytes (8 values of k) in shared memory, one after the other; the next 8 values of k are ``chunk`` bytes further. In
// two words, since all that differs between products is in the first: sums of 64 bits would take longer than the products.
struct Matrix {
    unsigned int first, second;
};

__device__ __forceinline__ Matrix matrix(const char* first, int chunk) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(first) / 16;
    return {address + (unsigned int)(chunk / 16 << 16), 128 / 16};  // between rows of eight
}

// The same rows of 16 bytes, each of them one value of k for 8 columns of the matrix; the second eight of k are ``eight`` bytes
// after the first, the next 8 columns ``chunk`` bytes.
__device__ __forceinline__ Matrix matrix_across(const char* first, int chunk, int eight) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(first) / 16;
    return {address + (unsigned int)(eight / 16 << 16), (unsigned int)(chunk / 16)};
}

// A multiple of 16 bytes further.
__device__ __forceinline__ Matrix moved(Matrix from, int bytes) { return {from.first + (bytes >> 4), from.second}; }

// Before the first product: registers and what other threads wrote are as they should be.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// What this thread has written to shared memory is there for products that begin after a barrier.
__device__ __forceinline__ void writes_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// The registers of each thread of this warpgroup from here on, multiples of 8: what one gives back another can take.
#define REGISTERS(change, number) asm volatile("setmaxnreg." #change ".sync.aligned.u32 " #number ";")

// Contiguous bytes from shared to global memory, both at multiples of 16, without waiting. What was written before
// `writes_to_products` and a barrier goes. `stores_read`: those that this thread has closed no longer need shared memory.
__device__ __forceinline__ void start_store(void* to, const void* from, int bytes) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(from);
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(address), "r"(bytes) : "memory");
}
__device__ __forceinline__ void close_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// A gate in shared memory opens each time that ``arrivals`` threads and all expected bytes have arrived. All threads must know
// that it is there, after `writes_to_products` and a barrier, before they use it.
typedef unsigned long long Gate;

__device__ __forceinline__ void make_gate(Gate* gate, int arrivals) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address), "r"(arrivals) : "memory");
}

__device__ __forceinline__ void arrive(Gate* gate) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address) : "memory");
}

// Arrives, and so many bytes will.
__device__ __forceinline__ void expect(Gate* gate, int bytes) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address), "r"(bytes) : "memory");
}

// Contiguous bytes from global to shared memory, both at multiples of 16, that arrive at a gate.
__device__ __forceinline__ void start_load(void* to, const void* from, int bytes, Gate* gate) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(to), at = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address),
                 "l"(from), "r"(bytes), "r"(at)
                 : "memory");
}

// Waits until a gate has opened so often: the first time is number 0.
__device__ __forceinline__ void wait_for(Gate* gate, int number) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(gate);
    asm volatile("{.reg .pred open; again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1; @!open bra again;}" ::"r"(
                     address),
                 "r"(number & 1)
                 : "memory");
}

#define ROWS_1 "%0, %1, %2, %3"
#define ROWS_2 ROWS_1 ", %4, %5, %6, %7"
#define ROWS_3 ROWS_2 ", %8, %9, %10, %11"
#define ROWS_4 ROWS_3 ", %12, %13, %14, %15"
#define ROWS_5 ROWS_4 ", %16, %17, %18, %19"
#define ROWS_6 ROWS_5 ", %20, %21, %22, %23"
#define ROWS_7 ROWS_6 ", %24, %25, %26, %27"
#define ROWS_8 ROWS_7 ", %28, %29, %30, %31"
#define ROWS_9 ROWS_8 ", %32, %33, %34, %35"
#define ROWS_10 ROWS_9 ", %36, %37, %38, %39"
#define ROWS_11 ROWS_10 ", %40, %41, %42, %43"
#define ROWS_12 ROWS_11 ", %44, %45, %46, %47"
#define ROWS_13 ROWS_12 ", %48, %49, %50, %51"
#define ROWS_14 ROWS_13 ", %52, %53, %54, %55"
#define ROWS_15 ROWS_14 ", %56, %57, %58, %59"
#define ROWS_16 ROWS_15 ", %60, %61, %62, %63"
#define SUMS(r) "+f"(d[r][0]), "+f"(d[r][1]), "+f"(d[r][2]), "+f"(d[r][3])
#define SUMS_1 SUMS(0)
#define SUMS_2 SUMS_1, SUMS(1)
#define SUMS_3 SUMS_2, SUMS(2)
#define SUMS_4 SUMS_3, SUMS(3)
#define SUMS_5 SUMS_4, SUMS(4)
#define SUMS_6 SUMS_5, SUMS(5)
#define SUMS_7 SUMS_6, SUMS(6)
#define SUMS_8 SUMS_7, SUMS(7)
#define SUMS_9 SUMS_8, SUMS(8)
#define SUMS_10 SUMS_9, SUMS(9)
#define SUMS_11 SUMS_10, SUMS(10)
#define SUMS_12 SUMS_11, SUMS(11)
#define SUMS_13 SUMS_12, SUMS(12)
#define SUMS_14 SUMS_13, SUMS(13)
#define SUMS_15 SUMS_14, SUMS(14)
#define SUMS_16 SUMS_15, SUMS(15)
#define PRODUCT(name, n, columns, a0, a1, b0, b1, across)                                                         \
    __device__ __forceinline__ void name(float (&d)[n][4], Matrix a, Matrix b) {                                  \
        asm volatile("{.reg .pred add; .reg .b64 a, b; setp.eq.u32 add, 0, 0; "                                   \
                     "mov.b64 a, {%" #a0 ", %" #a1 "}; mov.b64 b, {%" #b0 ", %" #b1 "}; "                         \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" ROWS_##n                  \
                     "}, a, b, add, 1, 1, " #across ", " #across ";}"                                             \
                     : SUMS_##n                                                                                   \
                     : "r"(a.first), "r"(a.second), "r"(b.first), "r"(b.second));                                 \
    }
#define PRODUCT_HELD(n, columns, a0, a1, a2, a3, b0, b1)                                                          \
    __device__ __forceinline__ void start_product_across(float (&d)[n][4], const unsigned int (&a)[4], Matrix b) { \
        asm volatile("{.reg .pred add; .reg .b64 b; setp.eq.u32 add, 0, 0; mov.b64 b, {%" #b0 ", %" #b1 "}; "     \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" ROWS_##n                  \
                     "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, b, add, 1, 1, 1;}"                             \
                     : SUMS_##n                                                                                   \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.first), "r"(b.second));                  \
    }
#define PRODUCTS_DONE(n)                                                                                          \
    __device__ __forceinline__ void products_done(float (&d)[n][4]) {                                             \
        asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_##n::"memory");                                    \
    }                                                                                                             \
    __device__ __forceinline__ void earlier_products_done(float (&d)[n][4]) {                                     \
        asm volatile("wgmma.wait_group.sync.aligned 1;" : SUMS_##n::"memory");                                    \
    }
// d[row of 8 columns] += a b for a 64x16 (rows) and b 16x8n (columns) in bfloat16; a thread's part of d as in `mma`.
PRODUCT(start_product, 1, 8, 4, 5, 6, 7, 0)
PRODUCT(start_product, 2, 16, 8, 9, 10, 11, 0)
PRODUCT(start_product, 3, 24, 12, 13, 14, 15, 0)
PRODUCT(start_product, 4, 32, 16, 17, 18, 19, 0)
PRODUCT(start_product, 5, 40, 20, 21, 22, 23, 0)
PRODUCT(start_product, 6, 48, 24, 25, 26, 27, 0)
PRODUCT(start_product, 7, 56, 28, 29, 30, 31, 0)
PRODUCT(start_product, 16, 128, 64, 65, 66, 67, 0)
// The same with both across.
PRODUCT(start_product_across, 2, 16, 8, 9, 10, 11, 1)
PRODUCT(start_product_across, 4, 32, 16, 17, 18, 19, 1)
// The same with b across and a in registers, as in `mma`: they must stay until the products are in d.
PRODUCT_HELD(2, 16, 8, 9, 10, 11, 12, 13)
PRODUCT_HELD(4, 32, 16, 17, 18, 19, 20, 21)
PRODUCT_HELD(8, 64, 32, 33, 34, 35, 36, 37)
// All products are in d; or all but those of the last group that was committed.
PRODUCTS_DONE(1)
PRODUCTS_DONE(2)
PRODUCTS_DONE(3)
PRODUCTS_DONE(4)
PRODUCTS_DONE(5)
PRODUCTS_DONE(6)
PRODUCTS_DONE(7)
PRODUCTS_DONE(8)
PRODUCTS_DONE(16)

// Says that products may have read these registers until here.
template <int N>
__device__ __forceinline__ void still_read(unsigned int (&a)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4]));
}

#endif

