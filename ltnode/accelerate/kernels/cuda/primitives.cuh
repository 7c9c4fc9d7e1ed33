// What the sources of this folder need of the machine, beside common.cuh: instructions of compute capability 8.0 and later.

#define SHARED_MEMORY(name) extern __shared__ __align__(16) char name[]

__device__ __forceinline__ float shuffle_xor(float x, int distance) { return __shfl_xor_sync(0xffffffffu, x, distance); }

// A number that all lanes have, known as such to the compiler.
__device__ __forceinline__ int same_in_warp(int number) { return __shfl_sync(0xffffffffu, number, 0); }

// 1 for a positive number, else 0.
__device__ __forceinline__ float positive(float number) {
    float found;
    asm("set.gt.f32.f32 %0, %1, 0f00000000;" : "=f"(found) : "f"(number));
    return found;
}

__device__ __forceinline__ void block_barrier() { __syncthreads(); }

__device__ __forceinline__ void warp_barrier() { __syncwarp(); }

// The 128 threads of one sample.
__device__ __forceinline__ void sample_barrier(int number) { asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory"); }

// Two samples take turns: one waits for what the other passes on.
__device__ __forceinline__ void wait_for_turn(int number) { asm volatile("bar.sync %0, 256;" ::"r"(number) : "memory"); }
__device__ __forceinline__ void pass_turn(int number) { asm volatile("bar.arrive %0, 256;" ::"r"(number) : "memory"); }

// 16 bytes of global to shared memory without waiting; they are there for this thread after `copies_done`. `close_copies` ends a
// group of them, and `earlier_copies_done` leaves those after the last but one under way.
__device__ __forceinline__ void start_copy(void* to, const void* from) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

// The same for 4 bytes.
__device__ __forceinline__ void start_word_copy(void* to, const void* from) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from) : "memory");
}

// The same for 8 bytes.
__device__ __forceinline__ void start_half_copy(void* to, const void* from) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from) : "memory");
}

// Bring a line of 128 bytes from memory to the cache that all multiprocessors share.
__device__ __forceinline__ void prefetch(const void* line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

__device__ __forceinline__ void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void earlier_copies_done() { asm volatile("cp.async.wait_group 1;" ::: "memory"); }

__device__ __forceinline__ void copies_done() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four bytes: each digit of the selector, the last first, is 0 ... 3 of a or 4 ... 7 of b; 8 more, and it is the sign throughout.
__device__ __forceinline__ unsigned int bytes(unsigned int a, unsigned int b, unsigned int selector) {
    unsigned int found;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(a), "r"(b), "r"(selector));
    return found;
}

// Two values rounded to bfloat16, the first in the low half.
__device__ __forceinline__ unsigned int bf16_pair(float first, float second) {
    unsigned int pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// The same, and zero for negative ones.
__device__ __forceinline__ unsigned int bf16_pair_relu(float first, float second) {
    unsigned int pair;
    asm("cvt.rn.relu.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
}

// Four 8x8 matrices of 16-bit values; lane 8 m + i gives the address of row i of matrix m.
__device__ __forceinline__ void load_matrices(unsigned int (&to)[4], const char* row) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(unsigned int (&to)[4], const char* row) {
    unsigned int address = (unsigned int)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}

// d += a b for a 16x16 and b 16x8 in bfloat16.
__device__ __forceinline__ void mma(float (&d)[4], const uint4& a, unsigned int b0, unsigned int b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// d += a b for a 16x8 and b 8x8 in float32, of which the products see the first 11 bits.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const float (&a)[4], float b0, float b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])), "r"(__float_as_uint(a[3])),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
