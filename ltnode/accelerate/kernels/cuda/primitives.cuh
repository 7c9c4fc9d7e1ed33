// Wrappers of the PTX instructions that the kernels use on compute capability 8.0 and later: barriers, asynchronous copies
// (cp.async), bfloat16 conversion, ldmatrix and warp-level MMA. Every .cu file includes this header first. The instructions of
// compute capability 9.0 are in warpgroup.cuh.

#include "common.cuh"

#define SHARED_MEMORY(name) extern __shared__ __align__(16) char name[]

DEVICE float shuffle_xor(float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }

// Returns the value of lane 0. The compiler then knows that the value is the same in the whole warp and keeps it in a uniform
// register.
DEVICE int warp_uniform(int value) { return __shfl_sync(0xffffffffu, value, 0); }

// Returns 1 if x > 0, else 0.
DEVICE float is_positive(float x) {
    float result;
    asm("set.gt.f32.f32 %0, %1, 0f00000000;" : "=f"(result) : "f"(x));
    return result;
}

DEVICE void block_barrier() { __syncthreads(); }
DEVICE void warp_barrier() { __syncwarp(); }

// Named barrier of 128 threads: one warpgroup, or the four warps of one sample. Barrier 0 is `block_barrier`.
DEVICE void warpgroup_barrier(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// Two groups of 128 threads alternate: one waits for its turn, the other passes it on without waiting.
DEVICE void wait_turn(int id) { asm volatile("bar.sync %0, 256;" ::"r"(id) : "memory"); }
DEVICE void pass_turn(int id) { asm volatile("bar.arrive %0, 256;" ::"r"(id) : "memory"); }

DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }

// Asynchronous copies of 4, 8 or 16 bytes from global to shared memory. The thread that started them sees the data after a wait;
// other threads need a barrier in addition.
DEVICE void start_copy_4(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void start_copy_8(void* to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEVICE void start_copy_16(void* to, const void* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Copies are committed in groups; `wait_copies_but_last` lets the last group run on.
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
DEVICE void wait_copies_but_last() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }
DEVICE void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Prefetches a cache line of 128 bytes into L2.
DEVICE void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// Assembles four bytes. Each hexadecimal digit of the selector, lowest byte first, picks byte 0-3 of a or 4-7 of b; a digit of 8
// or more replicates the sign bit of the byte that digit - 8 picks.
DEVICE u32 permute_bytes(u32 a, u32 b, u32 selector) {
    u32 result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
    return result;
}

// Rounds two values to bfloat16; the first is in the low half.
DEVICE u32 bf16_pair(float first, float second) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Rounds relu(first) and relu(second) to bfloat16.
DEVICE u32 bf16_pair_relu(float first, float second) {
    u32 pair;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Loads four 8x8 matrices of 16-bit values. Lane 8 m + i passes the address of row i of matrix m.
DEVICE void ldmatrix(u32 (&to)[4], const char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}
DEVICE void ldmatrix_transposed(u32 (&to)[4], const char* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// d += a b for a 16x16 and b 16x8 in bfloat16.
DEVICE void mma(float (&d)[4], const uint4& a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// d += a b for a 16x8 and b 8x8 in TF32: the tensor cores use the upper 19 bits of each float32 factor (10 bits of mantissa).
DEVICE void mma_tf32(float (&d)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
