// Interpolation, GroupNorm, ReLU and mean over positions at the end-times, as in interpolated_head_triton.py, for two channels a
// group. A block has 8 channels of one sample, 32 bytes of every position: lane % 4 is a pair of channels (one group), the rest
// of the thread's number a position of 16, and a thread goes over ROWS of these. It holds both channels' states at ENDS
// end-times, so that every stage is read once for them all.
//
// Defined by the host: ENDS (end-times at a time), POSITIONS, CHANNELS.

namespace {

constexpr int PAIRS = 4;
constexpr int WARPS = 2;
constexpr int THREADS = 32 * WARPS;
constexpr int AT_ONCE = 8 * WARPS;  // positions
constexpr int ROWS = (POSITIONS + AT_ONCE - 1) / AT_ONCE;
constexpr int BLOCKS = CHANNELS / (2 * PAIRS);  // of a sample
constexpr int COUNT = 2 * POSITIONS;            // numbers of a group
constexpr int WEIGHTS = (ENDS + 3) / 4 * 4;     // of a stage, in shared memory
constexpr int SUMS = WARPS * PAIRS * 4 * ENDS;  // in shared memory: four for every end-time

struct Cell {
    int warp, pair, position, channel, sample;
    bool valid[ROWS];
    size_t offset;  // in a (B, P, C) array; a row further is AT_ONCE * CHANNELS further
};

DEVICE Cell cell() {
    Cell c;
    c.warp = threadIdx.x / 32;
    c.pair = threadIdx.x % PAIRS;
    c.position = threadIdx.x / PAIRS;
    c.sample = blockIdx.x / BLOCKS;
    c.channel = (blockIdx.x % BLOCKS) * 2 * PAIRS + 2 * c.pair;
    c.offset = (size_t(c.sample) * POSITIONS + c.position) * CHANNELS + c.channel;
#pragma unroll
    for (int r = 0; r < ROWS; r++) c.valid[r] = c.position + r * AT_ONCE < POSITIONS;
    return c;
}

// A sum over the positions of each pair, in two halves with a barrier between them: number n of the memory, then its value.
DEVICE void deposit(float v, float* shared, int n, const Cell& c) {
    v += shuffle_xor(v, 4);
    v += shuffle_xor(v, 8);
    v += shuffle_xor(v, 16);
    if (threadIdx.x % 32 < PAIRS) shared[(n * WARPS + c.warp) * PAIRS + c.pair] = v;
}

DEVICE float total(const float* shared, int n, const Cell& c) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += shared[(n * WARPS + w) * PAIRS + c.pair];
    return sum;
}

// Weights (evaluations, row) of ENDS end-times from the first on, zero beyond the last.
DEVICE void load_weights(float* to, const float* from, int first, int ends, int evaluations, int row) {
    for (int i = threadIdx.x; i < evaluations * WEIGHTS; i += THREADS) {
        int j = i / WEIGHTS, e = i % WEIGHTS;
        to[i] = e < ENDS && first + e < ends ? from[j * row + first + e] : 0.0f;
    }
    block_barrier();
}

DEVICE void stage_weights(float (&w)[WEIGHTS], const float* weights, int stage) {
#pragma unroll
    for (int e = 0; e < WEIGHTS; e += 4) {
        float4 q = *reinterpret_cast<const float4*>(weights + stage * WEIGHTS + e);
        w[e] = q.x;
        w[e + 1] = q.y;
        w[e + 2] = q.z;
        w[e + 3] = q.w;
    }
}

DEVICE float2 load(const float* from, int r, const Cell& c) {
    return c.valid[r] ? *reinterpret_cast<const float2*>(from + r * AT_ONCE * CHANNELS) : make_float2(0.0f, 0.0f);
}

typedef float2 States[ROWS][ENDS];

DEVICE void interpolate(States& x, const float* stages, const float* start, const float* weights, int evaluations, size_t every,
                        const Cell& c) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float2 base = load(start + c.offset, r, c);
#pragma unroll
        for (int e = 0; e < ENDS; e++) x[r][e] = base;
    }
#pragma unroll 2
    for (int j = 0; j < evaluations; j++) {
        float2 k[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) k[r] = load(stages + j * every + c.offset, r, c);
        float w[WEIGHTS];
        stage_weights(w, weights, j);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int e = 0; e < ENDS; e++) {
                x[r][e].x += w[e] * k[r].x;
                x[r][e].y += w[e] * k[r].y;
            }
    }
}

}  // namespace

// pooled (S, B, C); means and rstds (S, B, C / 2) for the backward pass. weights (evaluations, row), stride apart per sample.
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    head_forward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift, int ends,
                 int evaluations, int batch, int row, int stride, float eps, float* pooled, float* means, float* rstds) {
    SHARED_MEMORY(memory);
    float* shared = reinterpret_cast<float*>(memory);
    float* chosen = shared + SUMS;
    const Cell c = cell();
    const size_t every = size_t(batch) * POSITIONS * CHANNELS;
    const float2 g = *reinterpret_cast<const float2*>(scale + c.channel), b = *reinterpret_cast<const float2*>(shift + c.channel);
    for (int first = 0; first < ends; first += ENDS) {
        load_weights(chosen, weights + size_t(c.sample) * stride, first, ends, evaluations, row);
        States x;
        interpolate(x, stages, start, chosen, evaluations, every, c);
        float mean[ENDS], rstd[ENDS];
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            float sum = 0.0f;
#pragma unroll
            for (int r = 0; r < ROWS; r++) sum += c.valid[r] ? x[r][e].x + x[r][e].y : 0.0f;
            deposit(sum, shared, e, c);
        }
        block_barrier();
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            mean[e] = total(shared, e, c) * (1.0f / COUNT);
            float sum = 0.0f;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float dx = x[r][e].x - mean[e], dy = x[r][e].y - mean[e];
                sum += c.valid[r] ? dx * dx + dy * dy : 0.0f;
            }
            deposit(sum, shared, ENDS + e, c);
        }
        block_barrier();
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            rstd[e] = rsqrtf(total(shared, ENDS + e, c) * (1.0f / COUNT) + eps);
            float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                if (c.valid[r]) {
                    sum.x += fmaxf((x[r][e].x - mean[e]) * rstd[e] * g.x + b.x, 0.0f);
                    sum.y += fmaxf((x[r][e].y - mean[e]) * rstd[e] * g.y + b.y, 0.0f);
                }
            deposit(sum.x, shared, 2 * (ENDS + e), c);
            deposit(sum.y, shared, 2 * (ENDS + e) + 1, c);
        }
        block_barrier();
        if (c.position == 0)
#pragma unroll
            for (int e = 0; e < ENDS; e++)
                if (first + e < ends) {
                    size_t at = size_t(first + e) * batch + c.sample;
                    float2 sum = make_float2(total(shared, 2 * (ENDS + e), c), total(shared, 2 * (ENDS + e) + 1, c));
                    *reinterpret_cast<float2*>(pooled + at * CHANNELS + c.channel) =
                        make_float2(sum.x * (1.0f / POSITIONS), sum.y * (1.0f / POSITIONS));
                    means[at * (CHANNELS / 2) + c.channel / 2] = mean[e];
                    rstds[at * (CHANNELS / 2) + c.channel / 2] = rstd[e];
                }
        block_barrier();
    }
}

// d_stages and d_start like stages and start; d_affine (B, 2, C): of scale and shift, per sample.
extern "C" __global__ void __launch_bounds__(THREADS, 6)
    head_backward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift,
                  const float* means, const float* rstds, const float* d_pooled, int ends, int evaluations, int batch, int row,
                  int stride, float* d_stages, float* d_start, float* d_affine) {
    SHARED_MEMORY(memory);
    float* shared = reinterpret_cast<float*>(memory);
    float4* kept = reinterpret_cast<float4*>(shared + SUMS);  // (ENDS, PAIRS): mean, 1 / std, gradients of the pair; zero beyond
    float* chosen = shared + SUMS + 4 * ENDS * PAIRS;
    const Cell c = cell();
    const size_t every = size_t(batch) * POSITIONS * CHANNELS;
    const float2 g = *reinterpret_cast<const float2*>(scale + c.channel), b = *reinterpret_cast<const float2*>(shift + c.channel);
    const float2 zero = make_float2(0.0f, 0.0f);
    float2 d_scale = zero, d_shift = zero, d_base[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) d_base[r] = zero;
    for (int first = 0; first < ends; first += ENDS) {
        for (int i = threadIdx.x; i < ENDS * PAIRS; i += THREADS) {
            int e = i / PAIRS;  // the thread's own pair: THREADS is a multiple of PAIRS
            size_t at = (size_t(first + e) * batch + c.sample) * (CHANNELS / 2) + c.channel / 2;
            kept[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (first + e < ends) {
                float2 d = *reinterpret_cast<const float2*>(d_pooled + 2 * at);
                kept[i] = make_float4(means[at], rstds[at], d.x * (1.0f / POSITIONS), d.y * (1.0f / POSITIONS));
            }
        }
        load_weights(chosen, weights + size_t(c.sample) * stride, first, ends, evaluations, row);
        States x;
        interpolate(x, stages, start, chosen, evaluations, every, c);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            const float4 k = kept[e * PAIRS + c.pair];
            float2 opened = zero, normals = zero;  // sums over the open ReLUs of 1 and of the normalised state
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[r][e].x = (x[r][e].x - k.x) * k.y;
                x[r][e].y = (x[r][e].y - k.x) * k.y;
                if (c.valid[r] && x[r][e].x * g.x + b.x > 0.0f) {
                    opened.x += 1.0f;
                    normals.x += x[r][e].x;
                }
                if (c.valid[r] && x[r][e].y * g.y + b.y > 0.0f) {
                    opened.y += 1.0f;
                    normals.y += x[r][e].y;
                }
            }
            deposit(opened.x * k.z, shared, 4 * e, c);
            deposit(opened.y * k.w, shared, 4 * e + 1, c);
            deposit(normals.x * k.z, shared, 4 * e + 2, c);
            deposit(normals.y * k.w, shared, 4 * e + 3, c);
        }
        block_barrier();
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            const float4 k = kept[e * PAIRS + c.pair];
            float2 sum_d = make_float2(total(shared, 4 * e, c), total(shared, 4 * e + 1, c));
            float2 sum_dn = make_float2(total(shared, 4 * e + 2, c), total(shared, 4 * e + 3, c));
            d_shift.x += sum_d.x;
            d_shift.y += sum_d.y;
            d_scale.x += sum_dn.x;
            d_scale.y += sum_dn.y;
            float mean_d = (sum_d.x * g.x + sum_d.y * g.y) * (1.0f / COUNT);
            float mean_dn = (sum_dn.x * g.x + sum_dn.y * g.y) * (1.0f / COUNT);
            float open_x = k.z * g.x, open_y = k.w * g.y;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float dx = x[r][e].x * g.x + b.x > 0.0f ? open_x : 0.0f, dy = x[r][e].y * g.y + b.y > 0.0f ? open_y : 0.0f;
                x[r][e].x = k.y * (dx - mean_d - x[r][e].x * mean_dn);
                x[r][e].y = k.y * (dy - mean_d - x[r][e].y * mean_dn);
                d_base[r].x += x[r][e].x;
                d_base[r].y += x[r][e].y;
            }
        }
#pragma unroll 2
        for (int j = 0; j < evaluations; j++) {
            float w[WEIGHTS];
            stage_weights(w, chosen, j);
            float* to = d_stages + j * every + c.offset;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float2 d = first == 0 ? zero : load(to, r, c);
#pragma unroll
                for (int e = 0; e < ENDS; e++) {
                    d.x += w[e] * x[r][e].x;
                    d.y += w[e] * x[r][e].y;
                }
                if (c.valid[r]) *reinterpret_cast<float2*>(to + r * AT_ONCE * CHANNELS) = d;
            }
        }
        block_barrier();
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (c.valid[r]) *reinterpret_cast<float2*>(d_start + c.offset + r * AT_ONCE * CHANNELS) = d_base[r];
    if (c.position == 0) {
        float* rows = d_affine + size_t(c.sample) * 2 * CHANNELS + c.channel;
        *reinterpret_cast<float2*>(rows) = d_scale;
        *reinterpret_cast<float2*>(rows + CHANNELS) = d_shift;
    }
}
