// Products of matrices in shared memory by a warpgroup, 128 threads: instructions of compute capability 9.0, beside primitives.cuh.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // the tests' emulation has its own

// Rows of 16 bytes (8 values of k) in shared memory, one after the other; the next 8 values of k are ``chunk`` bytes further.
typedef unsigned long long Matrix;

__device__ __forceinline__ Matrix matrix(const char* first, int chunk) {
    Matrix address = (unsigned int)__cvta_generic_to_shared(first) / 16, between_rows_of_eight = 128 / 16;
    return address | Matrix(chunk / 16) << 16 | between_rows_of_eight << 32;
}

// The same rows of 16 bytes, each of them one value of k for 8 rows or columns of the matrix.
__device__ __forceinline__ Matrix matrix_across(const char* first, int chunk) {
    Matrix address = (unsigned int)__cvta_generic_to_shared(first) / 16, between_eights_of_k = 128 / 16;
    return address | between_eights_of_k << 16 | Matrix(chunk / 16) << 32;
}

__device__ __forceinline__ Matrix moved(Matrix from, int bytes) { return from + bytes / 16; }

// Before the first product: registers and what other threads wrote are as they should be.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// What this thread has written to shared memory is there for products that begin after a barrier.
__device__ __forceinline__ void writes_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

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
#define PRODUCT(name, n, columns, first, second, across)                                                          \
    __device__ __forceinline__ void name(float (&d)[n][4], Matrix a, Matrix b) {                                  \
        asm volatile("{.reg .pred add; setp.eq.u32 add, 0, 0; "                                                   \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" ROWS_##n "}, %" #first    \
                     ", %" #second ", add, 1, 1, " #across ", " #across ";}"                                      \
                     : SUMS_##n                                                                                   \
                     : "l"(a), "l"(b));                                                                           \
    }
#define PRODUCTS_DONE(n)                                                                                          \
    __device__ __forceinline__ void products_done(float (&d)[n][4]) {                                             \
        asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_##n::"memory");                                    \
    }
// d[row of 8 columns] += a b for a 64x16 (rows) and b 16x8n (columns) in bfloat16; a thread's part of d as in `mma`.
PRODUCT(start_product, 1, 8, 4, 5, 0)
PRODUCT(start_product, 2, 16, 8, 9, 0)
PRODUCT(start_product, 3, 24, 12, 13, 0)
PRODUCT(start_product, 4, 32, 16, 17, 0)
PRODUCT(start_product, 5, 40, 20, 21, 0)
PRODUCT(start_product, 6, 48, 24, 25, 0)
PRODUCT(start_product, 7, 56, 28, 29, 0)
PRODUCT(start_product, 16, 128, 64, 65, 0)
PRODUCT(start_product_across, 8, 64, 32, 33, 1)
// All products are in d.
PRODUCTS_DONE(1)
PRODUCTS_DONE(2)
PRODUCTS_DONE(3)
PRODUCTS_DONE(4)
PRODUCTS_DONE(5)
PRODUCTS_DONE(6)
PRODUCTS_DONE(7)
PRODUCTS_DONE(8)
PRODUCTS_DONE(16)

#endif

