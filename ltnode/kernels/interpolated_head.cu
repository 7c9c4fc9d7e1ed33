// Interpolation, GroupNorm, ReLU and mean over positions at the end-times, as in interpolated_head_triton.py, for two channels a
// group. A block has 16 channels of one sample: lane % 8 is a pair of channels (one group), the rest of the thread's number its
// position; a thread holds both channels' states at ENDS end-times. Every stage is read once for ENDS end-times.
//
// Defined by the host: ENDS (end-times at a time), POSITIONS, CHANNELS.

#define DEVICE __device__ __forceinline__

namespace {

constexpr int PAIRS = 8;
constexpr int WARPS = (POSITIONS + 3) / 4;
constexpr int COUNT = 2 * POSITIONS;  // numbers of a group

struct Cell {
    int warp, lane, pair, position, channel, sample;
    bool valid;
    size_t offset;  // in a (B, P, C) array
};

DEVICE Cell cell(int batch) {
    Cell c;
    c.warp = threadIdx.x / 32;
    c.lane = threadIdx.x % 32;
    c.pair = c.lane % PAIRS;
    c.position = c.warp * 4 + c.lane / PAIRS;
    c.valid = c.position < POSITIONS;
    c.sample = blockIdx.x % batch;
    c.channel = (blockIdx.x / batch) * 2 * PAIRS + 2 * c.pair;
    c.offset = (size_t(c.sample) * POSITIONS + (c.valid ? c.position : 0)) * CHANNELS + c.channel;
    return c;
}

// Sums over the positions of each pair, in every thread of the pair.
template <int N>
DEVICE void over_positions(float (&v)[N], float* shared, const Cell& c) {
    float* totals = shared + WARPS * PAIRS * N;
#pragma unroll
    for (int n = 0; n < N; n++) {
        v[n] += shuffle_xor(v[n], 8);
        v[n] += shuffle_xor(v[n], 16);
        if (c.lane < PAIRS) shared[(c.warp * PAIRS + c.pair) * N + n] = v[n];
    }
    block_barrier();
    for (int i = threadIdx.x; i < PAIRS * N; i += blockDim.x) {
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += shared[w * PAIRS * N + i];
        totals[i] = sum;
    }
    block_barrier();
#pragma unroll
    for (int n = 0; n < N; n++) v[n] = totals[c.pair * N + n];
}

// Weights (evaluations, row) of ENDS end-times from the first on, zero beyond the last.
DEVICE void load_weights(float* to, const float* from, int first, int ends, int evaluations, int row) {
    for (int i = threadIdx.x; i < evaluations * ENDS; i += blockDim.x) {
        int j = i / ENDS, e = i % ENDS;
        to[i] = first + e < ends ? from[j * row + first + e] : 0.0f;
    }
    block_barrier();
}

DEVICE void interpolate(float2 (&x)[ENDS], const float* stages, const float* start, const float* weights, int evaluations,
                        size_t every, const Cell& c) {
    float2 zero = make_float2(0.0f, 0.0f);
    float2 base = c.valid ? *reinterpret_cast<const float2*>(start + c.offset) : zero;
#pragma unroll
    for (int e = 0; e < ENDS; e++) x[e] = base;
    if (!c.valid) return;
#pragma unroll 4
    for (int j = 0; j < evaluations; j++) {
        float2 k = *reinterpret_cast<const float2*>(stages + j * every + c.offset);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            float w = weights[j * ENDS + e];
            x[e].x += w * k.x;
            x[e].y += w * k.y;
        }
    }
}

}  // namespace

// pooled (S, B, C); means and rstds (S, B, C / 2) for the backward pass. weights (evaluations, row), stride apart per sample.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    head_forward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift, int ends,
                 int evaluations, int batch, int row, int stride, float eps, float* pooled, float* means, float* rstds) {
    SHARED_MEMORY(memory);
    float* shared = reinterpret_cast<float*>(memory);
    float* chosen = shared + (WARPS + 1) * PAIRS * 4 * ENDS;
    const Cell c = cell(batch);
    const size_t every = size_t(batch) * POSITIONS * CHANNELS;
    const float2 g = *reinterpret_cast<const float2*>(scale + c.channel), b = *reinterpret_cast<const float2*>(shift + c.channel);
    for (int first = 0; first < ends; first += ENDS) {
        load_weights(chosen, weights + size_t(c.sample) * stride, first, ends, evaluations, row);
        float2 x[ENDS];
        interpolate(x, stages, start, chosen, evaluations, every, c);
        float mean[ENDS], rstd[ENDS], sums[2 * ENDS];
#pragma unroll
        for (int e = 0; e < ENDS; e++) mean[e] = c.valid ? x[e].x + x[e].y : 0.0f;
        over_positions(mean, shared, c);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            mean[e] *= 1.0f / COUNT;
            float dx = x[e].x - mean[e], dy = x[e].y - mean[e];
            rstd[e] = c.valid ? dx * dx + dy * dy : 0.0f;
        }
        over_positions(rstd, shared, c);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            rstd[e] = rsqrtf(rstd[e] * (1.0f / COUNT) + eps);
            sums[2 * e] = c.valid ? fmaxf((x[e].x - mean[e]) * rstd[e] * g.x + b.x, 0.0f) : 0.0f;
            sums[2 * e + 1] = c.valid ? fmaxf((x[e].y - mean[e]) * rstd[e] * g.y + b.y, 0.0f) : 0.0f;
        }
        over_positions(sums, shared, c);
        if (c.position == 0)
            for (int e = 0; e < ENDS && first + e < ends; e++) {
                size_t at = size_t(first + e) * batch + c.sample;
                *reinterpret_cast<float2*>(pooled + at * CHANNELS + c.channel) =
                    make_float2(sums[2 * e] * (1.0f / POSITIONS), sums[2 * e + 1] * (1.0f / POSITIONS));
                means[at * (CHANNELS / 2) + c.channel / 2] = mean[e];
                rstds[at * (CHANNELS / 2) + c.channel / 2] = rstd[e];
            }
        block_barrier();
    }
}

// d_stages and d_start like stages and start; d_affine (B, 2, C): of scale and shift, per sample.
extern "C" __global__ void __launch_bounds__(WARPS * 32)
    head_backward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift,
                  const float* means, const float* rstds, const float* d_pooled, int ends, int evaluations, int batch, int row,
                  int stride, float* d_stages, float* d_start, float* d_affine) {
    SHARED_MEMORY(memory);
    float* shared = reinterpret_cast<float*>(memory);
    float* chosen = shared + (WARPS + 1) * PAIRS * 4 * ENDS;
    const Cell c = cell(batch);
    const size_t every = size_t(batch) * POSITIONS * CHANNELS;
    const float2 g = *reinterpret_cast<const float2*>(scale + c.channel), b = *reinterpret_cast<const float2*>(shift + c.channel);
    float2 d_base = make_float2(0.0f, 0.0f), d_scale = d_base, d_shift = d_base;
    for (int first = 0; first < ends; first += ENDS) {
        load_weights(chosen, weights + size_t(c.sample) * stride, first, ends, evaluations, row);
        float2 x[ENDS];
        interpolate(x, stages, start, chosen, evaluations, every, c);
        float sums[4 * ENDS], rstd[ENDS];
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            bool there = first + e < ends;
            size_t at = size_t(there ? first + e : 0) * batch + c.sample;
            float mean = means[at * (CHANNELS / 2) + c.channel / 2];
            rstd[e] = rstds[at * (CHANNELS / 2) + c.channel / 2];
            float2 d = *reinterpret_cast<const float2*>(d_pooled + at * CHANNELS + c.channel);
            x[e].x = (x[e].x - mean) * rstd[e];
            x[e].y = (x[e].y - mean) * rstd[e];
            bool open = there && c.valid;
            float dx = open && x[e].x * g.x + b.x > 0.0f ? d.x * (1.0f / POSITIONS) : 0.0f;
            float dy = open && x[e].y * g.y + b.y > 0.0f ? d.y * (1.0f / POSITIONS) : 0.0f;
            sums[4 * e] = dx;
            sums[4 * e + 1] = dy;
            sums[4 * e + 2] = dx * x[e].x;
            sums[4 * e + 3] = dy * x[e].y;
        }
        float own[2 * ENDS];
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            own[2 * e] = sums[4 * e];
            own[2 * e + 1] = sums[4 * e + 1];
        }
        over_positions(sums, shared, c);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            d_shift.x += sums[4 * e];
            d_shift.y += sums[4 * e + 1];
            d_scale.x += sums[4 * e + 2];
            d_scale.y += sums[4 * e + 3];
            float mean_d = (sums[4 * e] * g.x + sums[4 * e + 1] * g.y) * (1.0f / COUNT);
            float mean_dn = (sums[4 * e + 2] * g.x + sums[4 * e + 3] * g.y) * (1.0f / COUNT);
            x[e].x = rstd[e] * (own[2 * e] * g.x - mean_d - x[e].x * mean_dn);
            x[e].y = rstd[e] * (own[2 * e + 1] * g.y - mean_d - x[e].y * mean_dn);
            if (first + e >= ends) x[e] = make_float2(0.0f, 0.0f);
            d_base.x += x[e].x;
            d_base.y += x[e].y;
        }
        if (c.valid)
#pragma unroll 2
            for (int j = 0; j < evaluations; j++) {
                float2* to = reinterpret_cast<float2*>(d_stages + j * every + c.offset);
                float2 d = first == 0 ? make_float2(0.0f, 0.0f) : *to;
#pragma unroll
                for (int e = 0; e < ENDS; e++) {
                    float w = chosen[j * ENDS + e];
                    d.x += w * x[e].x;
                    d.y += w * x[e].y;
                }
                *to = d;
            }
        block_barrier();
    }
    if (c.valid) *reinterpret_cast<float2*>(d_start + c.offset) = d_base;
    if (c.position == 0) {
        float* rows = d_affine + size_t(c.sample) * 2 * CHANNELS + c.channel;
        *reinterpret_cast<float2*>(rows) = d_scale;
        *reinterpret_cast<float2*>(rows + CHANNELS) = d_shift;
    }
}
