// One step of SGD with momentum and weight decay on all parameters, where ``valid`` holds; nothing moves where it does not.
//     d = gradient + decay p,  m' = factor m + d,  p' = p - rate (nesterov ? d + factor m' : m')
//
// Defined by the host: ARRAYS (most arrays of parameters), THREADS, EACH (numbers of a thread).

struct Arrays {
    float* parameters[ARRAYS];
    const float* gradients[ARRAYS];
    int numbers[ARRAYS];      // of each array
    int flat[ARRAYS];         // where its numbers begin in rates, decays and momentum
    int blocks[ARRAYS];       // the first block after its own; the last one's beyond the last array
};

extern "C" __global__ void masked_sgd(const __grid_constant__ Arrays arrays, const float* rates, const float* decays,
                                      const unsigned char* valid, float factor, int nesterov, float* momentum) {
    int array = 0;
    while (int(blockIdx.x) >= arrays.blocks[array]) array++;
    const int first = (blockIdx.x - (array == 0 ? 0 : arrays.blocks[array - 1])) * THREADS * EACH + threadIdx.x;
    if (!*valid) return;
#pragma unroll
    for (int k = 0; k < EACH; k++) {
        const int i = first + k * THREADS, at = arrays.flat[array] + i;
        if (i >= arrays.numbers[array]) return;
        float p = arrays.parameters[array][i];
        float d = arrays.gradients[array][i] + decays[at] * p;
        float m = factor * momentum[at] + d;
        momentum[at] = m;
        arrays.parameters[array][i] = p - rates[at] * (nesterov ? d + factor * m : m);
    }
}
