// One step of SGD with momentum and weight decay on flat float32 arrays, where ``valid`` holds; nothing moves where it does not.
//     d = gradient + decay p,  m' = factor m + d,  p' = p - rate (nesterov ? d + factor m' : m')

extern "C" __global__ void masked_sgd(const float* parameters, const float* gradients, const float* rates, const float* decays,
                                      const unsigned char* valid, float factor, int nesterov, int count, float* momentum,
                                      float* updated) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float p = parameters[i], m = momentum[i];
    if (*valid) {
        float d = gradients[i] + decays[i] * p;
        m = factor * m + d;
        p -= rates[i] * (nesterov ? d + factor * m : m);
        momentum[i] = m;
    }
    updated[i] = p;
}
