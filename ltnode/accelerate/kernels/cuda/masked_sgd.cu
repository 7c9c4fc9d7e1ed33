// One step of SGD with momentum and weight decay on all parameters, skipped if the flag ``valid`` on the device is false.
//
// Formula, element by element:  d = gradient + decay p,   m' = factor m + d,   p' = p - rate (nesterov ? d + factor m' : m').
// With AVERAGED, the same pass updates the moving average of the parameters,  a' = a + share (p' - a),  and counts the update.
//
// Shapes: up to ARRAYS parameter tensors of any size with their gradients, whose addresses travel in the launch arguments;
// rates, decays, momentum and average are flat, with the parameters one after the other. Everything is float32, except the 64-bit
// count. Without AVERAGED, average and count are not read or written.
//
// Work: each block updates THREADS * EACH consecutive elements of one tensor. No shared memory, no synchronisation.
//
// Defined by the host: ARRAYS, THREADS, EACH (elements per thread), AVERAGED (0 or 1). Launched by masked_sgd.py, whose torch version is the
// reference; test: tests/accelerate/kernels/test_masked_sgd.py.

#include "primitives.cuh"

struct Arrays {
    float* parameters[ARRAYS];
    const float* gradients[ARRAYS];
    int sizes[ARRAYS];
    int offsets[ARRAYS];     // of the tensor's first element in rates, decays and momentum
    int block_ends[ARRAYS];  // number of the block after the tensor's last
};

extern "C" __global__ void masked_sgd(const __grid_constant__ Arrays arrays, const float* rates, const float* decays,
                                      const unsigned char* valid, float factor, int nesterov, float* momentum, float share,
                                      float* average, long long* count) {
    int array = 0;
    while (int(blockIdx.x) >= arrays.block_ends[array]) array++;
    const int first = (blockIdx.x - (array == 0 ? 0 : arrays.block_ends[array - 1])) * THREADS * EACH + threadIdx.x;
    if (!*valid) return;
#if AVERAGED
    if (blockIdx.x == 0 && threadIdx.x == 0) *count += 1;
#endif
    UNROLL for (int k = 0; k < EACH; k++) {
        const int i = first + k * THREADS, at = arrays.offsets[array] + i;
        if (i >= arrays.sizes[array]) return;
        float p = arrays.parameters[array][i];
        float d = arrays.gradients[array][i] + decays[at] * p;
        float m = factor * momentum[at] + d;
        momentum[at] = m;
        p -= rates[at] * (nesterov ? d + factor * m : m);
        arrays.parameters[array][i] = p;
#if AVERAGED
        average[at] += share * (p - average[at]);
#endif
    }
}
