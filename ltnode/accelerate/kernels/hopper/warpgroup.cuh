// Wrappers of the PTX instructions of compute capability 9.0: warpgroup MMA (wgmma), bulk copies, mbarriers and setmaxnreg. A
// warpgroup is 128 threads. Sources that include this header are compiled for sm_90a.

// A wgmma matrix descriptor without swizzle, for a matrix in shared memory made of core matrices: 8 rows of 16 bytes (8 bfloat16
// values), 128 contiguous bytes. Only the first word changes when the descriptor is advanced. The two words stay apart because
// additions of 64 bits would take longer than the products.
struct Descriptor {
    u32 first, second;
};

// K-major matrix: each row of 16 bytes is one row of the matrix, with 8 values of k. The rows are contiguous, and the next 8
// values of k are ``chunk`` bytes further.
DEVICE Descriptor descriptor(const char* first, int chunk) {
    return {shared_address(first) / 16 + (u32)(chunk / 16 << 16), 128 / 16};
}

// MN-major (transposed) matrix: each row of 16 bytes is one value of k, with 8 columns of the matrix. The next 8 values of k are
// ``eight`` bytes further, the next 8 columns ``chunk`` bytes.
DEVICE Descriptor descriptor_transposed(const char* first, int chunk, int eight) {
    return {shared_address(first) / 16 + (u32)(eight / 16 << 16), (u32)(chunk / 16)};
}

// Moves the start address by a multiple of 16 bytes.
DEVICE Descriptor advance(Descriptor from, int bytes) { return {from.first + (bytes >> 4), from.second}; }

// Required before the first wgmma and whenever a register operand has been written.
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Makes this thread's writes to shared memory visible to wgmma, bulk copies and mbarriers (the async proxy) after a barrier.
DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Changes the number of registers of each thread in this warpgroup ("inc" or "dec", multiples of 8).
#define SET_REGISTERS(change, number) asm volatile("setmaxnreg." #change ".sync.aligned.u32 " #number ";")

// Bulk copy from shared to global memory; addresses and size are multiples of 16 bytes. It reads what was written before
// `fence_async_proxy` and a barrier. After `bulk_store_wait`, the shared memory of this thread's committed stores is free.
DEVICE void bulk_store(void* to, const void* from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)), "r"(bytes)
                 : "memory");
}
DEVICE void bulk_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
DEVICE void bulk_store_wait() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// An mbarrier in shared memory completes a phase when ``arrivals`` threads and all expected bytes have arrived. After
// `mbarrier_init`, `fence_async_proxy` and a barrier must follow before it is used.
typedef unsigned long long Mbarrier;

DEVICE void mbarrier_init(Mbarrier* barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
DEVICE void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Arrives and announces the number of bytes that bulk loads will bring.
DEVICE void mbarrier_expect(Mbarrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits until phase ``number`` (0, 1, 2, ...) has completed. The caller is at most one phase behind.
DEVICE void mbarrier_wait(Mbarrier* barrier, int number) {
    asm volatile("{.reg .pred open; again: mbarrier.try_wait.parity.shared::cta.b64 open, [%0], %1; @!open bra again;}" ::"r"(
                     shared_address(barrier)),
                 "r"(number & 1)
                 : "memory");
}

// Bulk copy from global to shared memory whose bytes arrive at an mbarrier; addresses and size are multiples of 16 bytes.
DEVICE void bulk_load(void* to, const void* from, int bytes, Mbarrier* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

// Operand lists of an accumulator d[n][4]: names of its 4 n registers in the PTX text, and their constraints.
#define NAMES_1 "%0, %1, %2, %3"
#define NAMES_2 NAMES_1 ", %4, %5, %6, %7"
#define NAMES_3 NAMES_2 ", %8, %9, %10, %11"
#define NAMES_4 NAMES_3 ", %12, %13, %14, %15"
#define NAMES_5 NAMES_4 ", %16, %17, %18, %19"
#define NAMES_6 NAMES_5 ", %20, %21, %22, %23"
#define NAMES_7 NAMES_6 ", %24, %25, %26, %27"
#define NAMES_8 NAMES_7 ", %28, %29, %30, %31"
#define NAMES_16 NAMES_8 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
                         ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS(r) "+f"(d[r][0]), "+f"(d[r][1]), "+f"(d[r][2]), "+f"(d[r][3])
#define SUMS_1 SUMS(0)
#define SUMS_2 SUMS_1, SUMS(1)
#define SUMS_3 SUMS_2, SUMS(2)
#define SUMS_4 SUMS_3, SUMS(3)
#define SUMS_5 SUMS_4, SUMS(4)
#define SUMS_6 SUMS_5, SUMS(5)
#define SUMS_7 SUMS_6, SUMS(6)
#define SUMS_8 SUMS_7, SUMS(7)
#define SUMS_16 SUMS_8, SUMS(8), SUMS(9), SUMS(10), SUMS(11), SUMS(12), SUMS(13), SUMS(14), SUMS(15)

// d += a b for a 64x16 and b 16x8n in bfloat16, asynchronously. d[i] holds columns 8 i to 8 i + 7, distributed over the threads
// of each warp as in `mma`. The arguments after ``columns`` = 8 n number the operands that follow the 4 n accumulators.
#define WGMMA(name, n, columns, a0, a1, b0, b1, transposed)                                                        \
    DEVICE void name(float (&d)[n][4], Descriptor a, Descriptor b) {                                               \
        asm volatile("{.reg .pred add; .reg .b64 a, b; setp.eq.u32 add, 0, 0; "                                    \
                     "mov.b64 a, {%" #a0 ", %" #a1 "}; mov.b64 b, {%" #b0 ", %" #b1 "}; "                          \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" NAMES_##n                  \
                     "}, a, b, add, 1, 1, " #transposed ", " #transposed ";}"                                      \
                     : SUMS_##n                                                                                    \
                     : "r"(a.first), "r"(a.second), "r"(b.first), "r"(b.second));                                  \
    }
// The same with a in registers, laid out as in `mma`, and b transposed. The registers must stay unchanged until the product is
// done.
#define WGMMA_REGISTERS(n, columns, a0, a1, a2, a3, b0, b1)                                                        \
    DEVICE void wgmma_transposed(float (&d)[n][4], const u32 (&a)[4], Descriptor b) {                              \
        asm volatile("{.reg .pred add; .reg .b64 b; setp.eq.u32 add, 0, 0; mov.b64 b, {%" #b0 ", %" #b1 "}; "      \
                     "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" NAMES_##n                  \
                     "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, b, add, 1, 1, 1;}"                              \
                     : SUMS_##n                                                                                    \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.first), "r"(b.second));                   \
    }
// Waits for all committed products, or for all but the last committed group, before d is read.
#define WGMMA_WAIT(n)                                                                                              \
    DEVICE void wgmma_wait(float (&d)[n][4]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : SUMS_##n::"memory"); } \
    DEVICE void wgmma_wait_but_last(float (&d)[n][4]) { asm volatile("wgmma.wait_group.sync.aligned 1;" : SUMS_##n::"memory"); }
WGMMA(wgmma, 1, 8, 4, 5, 6, 7, 0)
WGMMA(wgmma, 2, 16, 8, 9, 10, 11, 0)
WGMMA(wgmma, 3, 24, 12, 13, 14, 15, 0)
WGMMA(wgmma, 4, 32, 16, 17, 18, 19, 0)
WGMMA(wgmma, 5, 40, 20, 21, 22, 23, 0)
WGMMA(wgmma, 6, 48, 24, 25, 26, 27, 0)
WGMMA(wgmma, 7, 56, 28, 29, 30, 31, 0)
WGMMA(wgmma, 16, 128, 64, 65, 66, 67, 0)
WGMMA(wgmma_transposed, 2, 16, 8, 9, 10, 11, 1)
WGMMA(wgmma_transposed, 4, 32, 16, 17, 18, 19, 1)
WGMMA_REGISTERS(2, 16, 8, 9, 10, 11, 12, 13)
WGMMA_REGISTERS(4, 32, 16, 17, 18, 19, 20, 21)
WGMMA_REGISTERS(8, 64, 32, 33, 34, 35, 36, 37)
WGMMA_WAIT(1) WGMMA_WAIT(2) WGMMA_WAIT(3) WGMMA_WAIT(4) WGMMA_WAIT(5) WGMMA_WAIT(6) WGMMA_WAIT(7) WGMMA_WAIT(8) WGMMA_WAIT(16)

// Marks register operands as used up to this point, so that the compiler does not reuse them while products still read them.
template <int N>
DEVICE void keep_registers(u32 (&a)[N][4]) {
    UNROLL for (int i = 0; i < 4 * N; i++) asm volatile("" : "+r"(a[i / 4][i % 4]));
}
