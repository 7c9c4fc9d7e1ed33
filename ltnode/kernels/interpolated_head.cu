// Interpolation, GroupNorm, ReLU and mean over positions at the end-times, as in interpolated_head_triton.py, for two channels a
// group. A block has 8 channels of one sample, 32 bytes of every position, and a warp of it some of the end-times: lane % 4 is a
// pair of channels (one group), lane / 4 a position of 8, and a thread goes over ROWS of these. It holds both channels' states at
// ENDS end-times, so that every stage is read once for them all, and a group's sums never leave the warp.
//
// Defined by the host: ENDS (end-times of a warp at a time), WARPS (1 or 2), POSITIONS, CHANNELS.

namespace {

constexpr int PAIRS = 4;
constexpr int THREADS = 32 * WARPS;
constexpr int AT_ONCE = 8;  // positions
constexpr int ROWS = (POSITIONS + AT_ONCE - 1) / AT_ONCE;
constexpr int BLOCKS = CHANNELS / (2 * PAIRS);  // of a sample
constexpr int COUNT = 2 * POSITIONS;            // numbers of a group
constexpr int CHUNK = WARPS * ENDS;             // end-times of a block at a time
constexpr int PADDED = (ENDS + 3) / 4 * 4;      // a warp's weights of a stage in shared memory
constexpr int WEIGHTS = WARPS * PADDED;         // all of them
constexpr int EXCHANGED = 8;                    // stages whose halves the warps exchange at a time

struct Cell {
    int warp, pair, position, channel, sample;
    size_t offset;  // in a (B, P, C) array; a row further is AT_ONCE * CHANNELS further
};

DEVICE Cell cell() {
    Cell c;
    int lane = threadIdx.x % 32;
    c.warp = threadIdx.x / 32;
    c.pair = lane % PAIRS;
    c.position = lane / PAIRS;
    c.sample = blockIdx.x / BLOCKS;
    c.channel = (blockIdx.x % BLOCKS) * 2 * PAIRS + 2 * c.pair;
    c.offset = (size_t(c.sample) * POSITIONS + c.position) * CHANNELS + c.channel;
    return c;
}

// Whether the thread's position in a row exists; known beforehand but for the last row.
DEVICE bool inside(int r, const Cell& c) { return (r + 1) * AT_ONCE <= POSITIONS || r * AT_ONCE + c.position < POSITIONS; }

DEVICE float over_positions(float v) {
    v += shuffle_xor(v, 4);
    v += shuffle_xor(v, 8);
    return v + shuffle_xor(v, 16);
}

// Weights (evaluations, row) of CHUNK end-times from the first on, zero beyond the last, and a row of ones for the start.
DEVICE void load_weights(float* to, const float* from, int first, int ends, int evaluations, int row) {
    for (int i = threadIdx.x; i < (evaluations + 1) * WEIGHTS; i += THREADS) {
        int j = i / WEIGHTS, e = i % PADDED, end = first + i % WEIGHTS / PADDED * ENDS + e;
        to[i] = j == evaluations ? 1.0f : e < ENDS && end < ends ? from[j * row + end] : 0.0f;
    }
    block_barrier();
}

DEVICE void stage_weights(float (&w)[PADDED], const float* weights, int stage, const Cell& c) {
#pragma unroll
    for (int e = 0; e < PADDED; e += 4) {
        float4 q = *reinterpret_cast<const float4*>(weights + stage * WEIGHTS + c.warp * PADDED + e);
        w[e] = q.x;
        w[e + 1] = q.y;
        w[e + 2] = q.z;
        w[e + 3] = q.w;
    }
}

DEVICE float2 load(const float* from, int r, const Cell& c) {
    return inside(r, c) ? *reinterpret_cast<const float2*>(from + r * AT_ONCE * CHANNELS) : make_float2(0.0f, 0.0f);
}

typedef float2 States[ROWS][ENDS];  // zero where there is no position

// x = the start, or x, plus the weighted stage.
template <bool FIRST>
DEVICE void add_stage(States& x, const float2 (&start)[ROWS], const float* stages, const float* weights, int j, size_t every,
                      const Cell& c) {
    float2 k[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) k[r] = load(stages + j * every + c.offset, r, c);
    float w[PADDED];
    stage_weights(w, weights, j, c);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            x[r][e].x = (FIRST ? start[r].x : x[r][e].x) + w[e] * k[r].x;
            x[r][e].y = (FIRST ? start[r].y : x[r][e].y) + w[e] * k[r].y;
        }
}

DEVICE void load_start(float2 (&to)[ROWS], const float* start, const Cell& c) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) to[r] = load(start + c.offset, r, c);
}

// The states from the start and at least one stage; so many of them are on their way at a time.
template <int STAGES>
DEVICE void interpolate(States& x, const float2 (&start)[ROWS], const float* stages, const float* weights, int evaluations,
                        size_t every, const Cell& c) {
    add_stage<true>(x, start, stages, weights, 0, every, c);
#pragma unroll STAGES
    for (int j = 1; j < evaluations; j++) add_stage<false>(x, start, stages, weights, j, every, c);
}

// A stage's gradient from one warp's end-times.
DEVICE void stage_gradient(float2 (&d)[ROWS], const States& dx, const float* weights, int stage, const Cell& c) {
    float w[PADDED];
    stage_weights(w, weights, stage, c);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        d[r] = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            d[r].x += w[e] * dx[r][e].x;
            d[r].y += w[e] * dx[r][e].y;
        }
    }
}

}  // namespace

// pooled (S, B, C); means and rstds (S, B, C / 2) for the backward pass. weights (evaluations, row), stride apart per sample.
extern "C" __global__ void __launch_bounds__(THREADS, 16 / WARPS)
    head_forward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift, int ends,
                 int evaluations, int batch, int row, int stride, float eps, float* pooled, float* means, float* rstds) {
    SHARED_MEMORY(memory);
    float* chosen = reinterpret_cast<float*>(memory);
    const Cell c = cell();
    const size_t every = size_t(batch) * POSITIONS * CHANNELS;
    const float2 g = *reinterpret_cast<const float2*>(scale + c.channel), b = *reinterpret_cast<const float2*>(shift + c.channel);
    for (int first = 0; first < ends; first += CHUNK) {
        States x;
        float2 begin[ROWS];
        load_start(begin, start, c);  // it comes while the weights do
        load_weights(chosen, weights + size_t(c.sample) * stride, first, ends, evaluations, row);
        interpolate<2>(x, begin, stages, chosen, evaluations, every, c);
        // The lanes of position e write what end-time e of the warp gives.
        float own_mean = 0.0f, own_rstd = 0.0f;
        float2 own_sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            float total = 0.0f, squares = 0.0f;
#pragma unroll
            for (int r = 0; r < ROWS; r++) total += x[r][e].x + x[r][e].y;
            float mean = over_positions(total) * (1.0f / COUNT);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[r][e].x -= mean;
                x[r][e].y -= mean;
                squares += inside(r, c) ? x[r][e].x * x[r][e].x + x[r][e].y * x[r][e].y : 0.0f;
            }
            float rstd = rsqrtf(over_positions(squares) * (1.0f / COUNT) + eps);
            float2 sum = make_float2(0.0f, 0.0f), slope = make_float2(rstd * g.x, rstd * g.y);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float px = fmaxf(x[r][e].x * slope.x + b.x, 0.0f);
                float py = fmaxf(x[r][e].y * slope.y + b.y, 0.0f);
                sum.x += inside(r, c) ? px : 0.0f;
                sum.y += inside(r, c) ? py : 0.0f;
            }
            sum = make_float2(over_positions(sum.x), over_positions(sum.y));
            if (c.position == e) {
                own_mean = mean;
                own_rstd = rstd;
                own_sum = sum;
            }
        }
        const int end = first + c.warp * ENDS + c.position;
        if (c.position < ENDS && end < ends) {
            size_t at = size_t(end) * batch + c.sample;
            *reinterpret_cast<float2*>(pooled + at * CHANNELS + c.channel) =
                make_float2(own_sum.x * (1.0f / POSITIONS), own_sum.y * (1.0f / POSITIONS));
            means[at * (CHANNELS / 2) + c.channel / 2] = own_mean;
            rstds[at * (CHANNELS / 2) + c.channel / 2] = own_rstd;
        }
        block_barrier();
    }
}

// d_stages and d_start like stages and start; d_affine (B, 2, C): of scale and shift, per sample.
extern "C" __global__ void __launch_bounds__(THREADS, 14 / WARPS)
    head_backward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift,
                  const float* means, const float* rstds, const float* d_pooled, int ends, int evaluations, int batch, int row,
                  int stride, float* d_stages, float* d_start, float* d_affine) {
    SHARED_MEMORY(memory);
    float4* kept = reinterpret_cast<float4*>(memory);  // (CHUNK, PAIRS): mean, 1 / std, gradients of the pair; zero beyond
    float2* halves = reinterpret_cast<float2*>(kept + CHUNK * PAIRS);  // (EXCHANGED, ROWS, 32) with two warps, else nothing
    float* chosen = reinterpret_cast<float*>(halves + (WARPS - 1) * EXCHANGED * ROWS * 32);
    const Cell c = cell();
    const int lane = threadIdx.x % 32;
    const size_t every = size_t(batch) * POSITIONS * CHANNELS;
    const float2 g = *reinterpret_cast<const float2*>(scale + c.channel), b = *reinterpret_cast<const float2*>(shift + c.channel);
    float2 d_scale = make_float2(0.0f, 0.0f), d_shift = make_float2(0.0f, 0.0f);
    for (int first = 0; first < ends; first += CHUNK) {
        States x;
        float2 begin[ROWS];
        load_start(begin, start, c);  // it comes while the rest does
        static_assert(CHUNK * PAIRS <= THREADS, "a thread, of the same pair, for each pair of every end-time");
        const int end = first + threadIdx.x / PAIRS;
        float4 own = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (threadIdx.x < CHUNK * PAIRS && end < ends) {
            size_t at = (size_t(end) * batch + c.sample) * (CHANNELS / 2) + c.channel / 2;
            float2 d = *reinterpret_cast<const float2*>(d_pooled + 2 * at);
            own = make_float4(means[at], rstds[at], d.x * (1.0f / POSITIONS), d.y * (1.0f / POSITIONS));
        }
        if (threadIdx.x < CHUNK * PAIRS) kept[threadIdx.x] = own;
        load_weights(chosen, weights + size_t(c.sample) * stride, first, ends, evaluations, row);
        interpolate<1>(x, begin, stages, chosen, evaluations, every, c);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            const float4 k = kept[(c.warp * ENDS + e) * PAIRS + c.pair];
            // Sums over the open ReLUs of 1 and of the normalised state.
            float2 opened = make_float2(0.0f, 0.0f), normals = make_float2(0.0f, 0.0f);
            bool open_x[ROWS], open_y[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[r][e].x = (x[r][e].x - k.x) * k.y;
                x[r][e].y = (x[r][e].y - k.x) * k.y;
                open_x[r] = inside(r, c) && x[r][e].x * g.x + b.x > 0.0f;
                open_y[r] = inside(r, c) && x[r][e].y * g.y + b.y > 0.0f;
                opened.x += open_x[r] ? 1.0f : 0.0f;
                opened.y += open_y[r] ? 1.0f : 0.0f;
                normals.x += open_x[r] ? x[r][e].x : 0.0f;
                normals.y += open_y[r] ? x[r][e].y : 0.0f;
            }
            float2 sum_d = make_float2(over_positions(opened.x) * k.z, over_positions(opened.y) * k.w);
            float2 sum_dn = make_float2(over_positions(normals.x) * k.z, over_positions(normals.y) * k.w);
            d_shift.x += sum_d.x;
            d_shift.y += sum_d.y;
            d_scale.x += sum_dn.x;
            d_scale.y += sum_dn.y;
            float mean_d = k.y * (sum_d.x * g.x + sum_d.y * g.y) * (1.0f / COUNT);
            float mean_dn = k.y * (sum_dn.x * g.x + sum_dn.y * g.y) * (1.0f / COUNT);
            float where_x = k.y * k.z * g.x - mean_d, where_y = k.y * k.w * g.y - mean_d;
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                x[r][e].x = (open_x[r] ? where_x : -mean_d) - x[r][e].x * mean_dn;
                x[r][e].y = (open_y[r] ? where_y : -mean_d) - x[r][e].y * mean_dn;
            }
        }
        // The start is one more stage, whose weights are ones. A warp stores every other stage and has half of the others' sum.
        for (int from = 0; from <= evaluations; from += EXCHANGED) {
            const int until = from + EXCHANGED <= evaluations ? from + EXCHANGED : evaluations + 1;
            float2 d[ROWS];
            if (WARPS == 2) {
                for (int j = from + 1 - c.warp; j < until; j += 2) {
                    stage_gradient(d, x, chosen, j, c);
#pragma unroll
                    for (int r = 0; r < ROWS; r++) halves[((j - from) * ROWS + r) * 32 + lane] = d[r];
                }
                block_barrier();
            }
            for (int j = from + (WARPS == 2 ? c.warp : 0); j < until; j += WARPS) {
                stage_gradient(d, x, chosen, j, c);
                float* to = (j < evaluations ? d_stages + j * every : d_start) + c.offset;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    if (WARPS == 2) {
                        float2 other = halves[((j - from) * ROWS + r) * 32 + lane];
                        d[r].x += other.x;
                        d[r].y += other.y;
                    }
                    if (first > 0) {
                        float2 before = load(to, r, c);
                        d[r].x += before.x;
                        d[r].y += before.y;
                    }
                    if (inside(r, c)) *reinterpret_cast<float2*>(to + r * AT_ONCE * CHANNELS) = d[r];
                }
            }
            block_barrier();
        }
    }
    // Every lane of a pair has the sums of its warp's end-times; the warps' come together.
    float4* parts = kept;
    if (c.position == 0) parts[c.warp * PAIRS + c.pair] = make_float4(d_scale.x, d_scale.y, d_shift.x, d_shift.y);
    block_barrier();
    if (c.warp == 0 && c.position == 0) {
        float4 sum = parts[c.pair];
        if (WARPS == 2) {
            float4 other = parts[PAIRS + c.pair];
            sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
        }
        float* rows = d_affine + size_t(c.sample) * 2 * CHANNELS + c.channel;
        *reinterpret_cast<float2*>(rows) = make_float2(sum.x, sum.y);
        *reinterpret_cast<float2*>(rows + CHANNELS) = make_float2(sum.z, sum.w);
    }
}
