// Interpolation, GroupNorm, ReLU and mean over positions at the end-times, as in interpolated_head_triton.py, for two channels a
// group. A block has 16 channels, 64 bytes of every position, of one sample after the other, a warp of it every fourth position.
//
// The start is one more stage, whose weights are ones. For eight stages, products of a warp make of one position's numbers
// (16 channels x 8 stages) and the weights (8 stages x 8 end-times) the states (16 x 8): thread 4 g + q of a warp has both
// channels of group g at end-times 2 q and 2 q + 1, and all its warp's positions of them, so that sums need no other lane. Ten
// end-times are eight and two last ones: for these, four positions share a product's eight columns, and the thread has position q
// of four, both channels, both end-times. The gradients of the stages are products of the same kind, whose left factor is already
// where the first products and what follows have left it.
//
// Defined by the host: EVALUATIONS (stages), LAST (0 or 2 end-times beside the eight), MANY (1 where that is not all of them,
// else 0), POSITIONS, CHANNELS.

namespace {

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int GROUPS = 8;                             // of a block
constexpr int PIECES = CHANNELS / (2 * GROUPS);       // of a sample, and blocks that share one
constexpr int STAGES = 8;                             // of a product
constexpr int ROUNDS = EVALUATIONS / STAGES + 1;      // of products, until the start has had its turn
constexpr int CHUNK = 8 + LAST;                       // end-times at a time
constexpr int OWN = (POSITIONS + WARPS - 1) / WARPS;  // positions of a warp
constexpr int FOURS = (OWN + 3) / 4;
constexpr int COUNT = 2 * POSITIONS;  // numbers of a group

// Bytes of shared memory: of a position and of a stage, at which four stages are in different banks; of all stages of a product;
// of the weights, and of what is kept of the end-times on the way back, both twice; then come the warps' sums.
constexpr int POSITION = 8 * GROUPS, STAGE = POSITIONS * POSITION + 32, FACTORS = STAGES * STAGE;
constexpr int WEIGHTS = 4 * ROUNDS * STAGES * CHUNK, KEPT = 16 * CHUNK * GROUPS;

// A sample at CHUNK end-times from the first on: what a block does at a time.
struct Turn {
    int sample, first;
    DEVICE Turn next(int ends) const {
        return MANY && first + CHUNK < ends ? Turn{sample, first + CHUNK} : Turn{sample + int(gridDim.x) / PIECES, 0};
    }
};

DEVICE Turn first_turn() { return {int(blockIdx.x) / PIECES, 0}; }

DEVICE int piece() { return blockIdx.x % PIECES; }

struct Cell {
    int warp, group, quarter;
};

DEVICE Cell cell() { return {same_in_warp(threadIdx.x / 32), int(threadIdx.x) % 32 / 4, int(threadIdx.x) % 4}; }

// Whether the warp has so many positions and one more; known beforehand but for the last.
DEVICE bool inside(int i, const Cell& c) { return (i + 1) * WARPS <= POSITIONS || i * WARPS + c.warp < POSITIONS; }

// The same for the position of four whose states at the last end-times the thread has.
DEVICE bool last_inside(int four, const Cell& c) {
    return (4 * four + 4) * WARPS <= POSITIONS || (4 * four + c.quarter) * WARPS + c.warp < POSITIONS;
}

// States, or gradients of them, at the thread's end-times: two of eight, and the last two. Zero where there is no position.
constexpr int ENDS = LAST ? 4 : 2;

struct States {
    float first[OWN][4];   // the first channel at both end-times, then the second
    float last[FOURS][4];  // of the thread's position of four
    DEVICE float& at(int end, int channel, int i) { return (end < 2 ? first : last)[i][2 * channel + end % 2]; }
};

// How many positions of an end-time a thread has.
DEVICE constexpr int positions(int end) { return end < 2 ? OWN : FOURS; }

DEVICE bool inside(int end, int i, const Cell& c) { return end < 2 ? inside(i, c) : last_inside(i, c); }

// Which of the chunk's end-times is the thread's; the last ones are with four threads.
DEVICE int end_time(int end, const Cell& c) { return end < 2 ? 2 * c.quarter + end : 6 + end; }

// Products of tf32 numbers see 11 bits of a factor. With the products of what they do not see of one and see of the other, 21.
struct Factor {
    float whole, rest;
};

DEVICE Factor factor(float x) { return {x, x - __uint_as_float(__float_as_uint(x) & 0xffffe000u)}; }

struct Left {
    float whole[4], rest[4];
};

DEVICE Left left(float a, float b, float c, float d) {
    const Factor p = factor(a), q = factor(b), r = factor(c), s = factor(d);
    return {{p.whole, q.whole, r.whole, s.whole}, {p.rest, q.rest, r.rest, s.rest}};
}

struct Right {
    Factor low, high;
    DEVICE Right only_if(bool condition) const { return condition ? *this : Right{{0.0f, 0.0f}, {0.0f, 0.0f}}; }
};

DEVICE Right right(float low, float high) { return {factor(low), factor(high)}; }

DEVICE void add_product(float (&to)[4], const Left& a, const Right& b) {
    mma_tf32(to, a.rest, b.low.whole, b.high.whole);
    mma_tf32(to, a.whole, b.low.rest, b.high.rest);
    mma_tf32(to, a.whole, b.low.whole, b.high.whole);
}

// A stage of a (J, B, P, C) array; the start for what comes after them.
template <typename Number>
DEVICE Number* stage_at(Number* stages, Number* start, int stage, int batch) {
    return stage < EVALUATIONS ? stages + size_t(stage) * batch * POSITIONS * CHANNELS : start;
}

struct Given {
    const float *stages, *start, *weights;  // weights (evaluations, row), stride apart per sample
    int ends, batch, row, stride;
    // In (B, P, C), of the block's channels at the warp's first position.
    DEVICE size_t offset(const Turn& turn, const Cell& c) const {
        return (size_t(turn.sample) * POSITIONS + c.warp) * CHANNELS + piece() * 2 * GROUPS;
    }
    // In (S, B, C / 2), of the block's groups at one of the end-times.
    DEVICE size_t groups(const Turn& turn, int end) const {
        return (size_t(turn.first + end) * batch + turn.sample) * (CHANNELS / 2) + piece() * GROUPS;
    }
};

// A warp's positions of the stages of a product on their way to shared memory.
DEVICE void start_stages(char* to, const Given& given, const Turn& turn, int stage, const Cell& c) {
    const int own = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    const float* from = stage_at(given.stages, given.start, stage + own, given.batch) + given.offset(turn, c) + 4 * part;
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (inside(i, c))
            start_copy(to + own * STAGE + (i * WARPS + c.warp) * POSITION + 16 * part, from + i * WARPS * CHANNELS);
}

DEVICE void start_weights(float* to, const Given& given, const Turn& turn) {
    const float* from = given.weights + size_t(turn.sample) * given.stride + turn.first;
    for (int i = threadIdx.x; i < EVALUATIONS * CHUNK; i += THREADS) {
        const int stage = i / CHUNK, end = i % CHUNK;
        if (turn.first + end < given.ends)
            start_word_copy(to + i, from + stage * given.row + end);
        else
            to[i] = 0.0f;
    }
}

// What never changes of the weights: ones for the start, zeros for what comes after it.
DEVICE void set_weights(float* weights) {
    for (int i = EVALUATIONS * CHUNK + threadIdx.x; i < ROUNDS * STAGES * CHUNK; i += THREADS)
        weights[i] = i / CHUNK == EVALUATIONS ? 1.0f : 0.0f;
}

// The states, from the first stages in shared memory; afterwards it is free.
DEVICE void interpolate(States& x, char* factors, const float* weights, const Given& given, const Turn& turn, const Cell& c) {
#pragma unroll
    for (int e = 0; e < ENDS; e++)
#pragma unroll
        for (int i = 0; i < positions(e); i++) x.at(e, 0, i) = x.at(e, 1, i) = 0.0f;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
        if (round > 0) {
            start_stages(factors, given, turn, round * STAGES, c);
            copies_done();
            warp_barrier();
        }
        const float *low = weights + (round * STAGES + c.quarter) * CHUNK, *high = low + 4 * CHUNK;
        const Right first = right(low[c.group], high[c.group]);
        const int end = LAST ? 8 + c.group % 2 : 0;
        const Right last = right(low[end], high[end]);
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const char* at = factors + c.quarter * STAGE + (i * WARPS + c.warp) * POSITION + 8 * c.group;
            float2 k = make_float2(0.0f, 0.0f), l = make_float2(0.0f, 0.0f);
            if (inside(i, c)) {
                k = *reinterpret_cast<const float2*>(at);
                l = *reinterpret_cast<const float2*>(at + 4 * STAGE);
            }
            const Left a = left(k.x, k.y, l.x, l.y);
            add_product(x.first[i], a, first);
            if (LAST) add_product(x.last[i / 4], a, last.only_if(c.group / 2 == i % 4));  // its two columns of eight
        }
        warp_barrier();
    }
}

DEVICE float over_quarters(float v) {
    v += shuffle_xor(v, 1);
    return v + shuffle_xor(v, 2);
}

// Of a sum over a thread's positions, that over the warp's: of the last end-times four threads have some.
DEVICE float over_warp(int end, float v) { return end < 2 ? v : over_quarters(v); }

// The sums of what the warps have in the same lane, N times four numbers.
template <int N>
DEVICE void over_warps(float4* shared, float (&sums)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) shared[n * THREADS + threadIdx.x] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    block_barrier();
#pragma unroll
    for (int n = 0; n < N; n++) {
        float4 sum = shared[n * THREADS + threadIdx.x % 32];
#pragma unroll
        for (int w = 1; w < WARPS; w++) {
            const float4 other = shared[n * THREADS + 32 * w + threadIdx.x % 32];
            sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
        }
        sums[n][0] = sum.x;
        sums[n][1] = sum.y;
        sums[n][2] = sum.z;
        sums[n][3] = sum.w;
    }
}

}  // namespace

// pooled (S, B, C); means and rstds (S, B, C / 2) for the backward pass.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    head_forward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift, int ends,
                 int batch, int row, int stride, float eps, float* pooled, float* means, float* rstds) {
    SHARED_MEMORY(memory);
    float* chosen = reinterpret_cast<float*>(memory + FACTORS);
    float4* shared = reinterpret_cast<float4*>(memory + FACTORS + 2 * WEIGHTS);
    const Cell c = cell();
    const Given given = {stages, start, weights, ends, batch, row, stride};
    const int channel = piece() * 2 * GROUPS + 2 * c.group;
    const float2 g = *reinterpret_cast<const float2*>(scale + channel), b = *reinterpret_cast<const float2*>(shift + channel);
    const int other = MANY || stride > 0 ? WEIGHTS / 4 : 0;  // where the next turn's weights go, if they are others
    Turn turn = first_turn();
    start_stages(memory, given, turn, 0, c);
    start_weights(chosen, given, turn);
    set_weights(chosen);
    set_weights(chosen + WEIGHTS / 4);
    for (int odd = 0; turn.sample < batch; odd ^= 1) {
        const Turn next = turn.next(ends);
        copies_done();
        block_barrier();
        States x;
        interpolate(x, memory, chosen + odd * other, given, turn, c);
        if (next.sample < batch) {
            start_stages(memory, given, next, 0, c);
            if (other > 0) start_weights(chosen + (1 - odd) * other, given, next);
        }
        float mean[1][4] = {}, rstd[1][4] = {}, sums[2][4] = {};  // the last of both channels
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
#pragma unroll
            for (int i = 0; i < positions(e); i++) mean[0][e] += x.at(e, 0, i) + x.at(e, 1, i);
            mean[0][e] = over_warp(e, mean[0][e]);
        }
        over_warps(shared, mean);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            mean[0][e] *= 1.0f / COUNT;
#pragma unroll
            for (int i = 0; i < positions(e); i++) {
                float &dx = x.at(e, 0, i), &dy = x.at(e, 1, i);
                dx -= mean[0][e];
                dy -= mean[0][e];
                rstd[0][e] += inside(e, i, c) ? dx * dx + dy * dy : 0.0f;
            }
            rstd[0][e] = over_warp(e, rstd[0][e]);
        }
        over_warps(shared + THREADS, rstd);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            rstd[0][e] = rsqrtf(rstd[0][e] * (1.0f / COUNT) + eps);
            const float2 slope = make_float2(rstd[0][e] * g.x, rstd[0][e] * g.y);
#pragma unroll
            for (int i = 0; i < positions(e); i++) {
                const float open_x = fmaxf(x.at(e, 0, i) * slope.x + b.x, 0.0f);
                const float open_y = fmaxf(x.at(e, 1, i) * slope.y + b.y, 0.0f);
                sums[0][e] += inside(e, i, c) ? open_x : 0.0f;
                sums[1][e] += inside(e, i, c) ? open_y : 0.0f;
            }
            sums[0][e] = over_warp(e, sums[0][e]);
            sums[1][e] = over_warp(e, sums[1][e]);
        }
        over_warps(shared + 2 * THREADS, sums);
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            const int end = end_time(e, c);
            if (turn.first + end >= ends || c.warp != e || (e >= 2 && c.quarter != 0)) continue;
            const size_t at = given.groups(turn, end) + c.group;
            *reinterpret_cast<float2*>(pooled + 2 * at) =
                make_float2(sums[0][e] * (1.0f / POSITIONS), sums[1][e] * (1.0f / POSITIONS));
            means[at] = mean[0][e];
            rstds[at] = rstd[0][e];
        }
        turn = next;
    }
}

// d_stages and d_start like stages and start; d_affine (blocks that share a sample's channels, 2, C): of scale and shift.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    head_backward(const float* stages, const float* start, const float* weights, const float* scale, const float* shift,
                  const float* means, const float* rstds, const float* d_pooled, int ends, int batch, int row, int stride,
                  float* d_stages, float* d_start, float* d_affine) {
    SHARED_MEMORY(memory);
    float* chosen = reinterpret_cast<float*>(memory + FACTORS);
    float4* kept = reinterpret_cast<float4*>(memory + FACTORS + 2 * WEIGHTS);  // (CHUNK, GROUPS): mean, 1 / std, both gradients
    float4* affine = kept + 2 * KEPT / 16;                                     // (GROUPS): both scales, both shifts
    float4* shared = affine + GROUPS;
    const Cell c = cell();
    const Given given = {stages, start, weights, ends, batch, row, stride};
    const int channel = piece() * 2 * GROUPS + 2 * c.group;
    const int other = MANY || stride > 0 ? WEIGHTS / 4 : 0;  // where the next turn's weights go, if they are others
    auto start_kept = [&](const Turn& turn, int odd) {
        static_assert(CHUNK * GROUPS <= THREADS, "a thread for every group of every end-time");
        const int end = threadIdx.x / GROUPS;
        if (end >= CHUNK) return;
        float4* to = kept + odd * KEPT / 16 + threadIdx.x;
        if (turn.first + end < ends) {
            const size_t at = given.groups(turn, end) + threadIdx.x % GROUPS;
            start_word_copy(&to->x, means + at);
            start_word_copy(&to->y, rstds + at);
            start_half_copy(&to->z, d_pooled + 2 * at);
        } else {
            *to = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
    };
    Turn turn = first_turn();
    start_stages(memory, given, turn, 0, c);
    start_weights(chosen, given, turn);
    start_kept(turn, 0);
    set_weights(chosen);
    set_weights(chosen + WEIGHTS / 4);
    if (c.warp == 0 && c.quarter == 0)
        affine[c.group] = make_float4(scale[channel], scale[channel + 1], shift[channel], shift[channel + 1]);
    float d_own[1][4] = {};  // of both scales, of both shifts, from the warp's positions
    for (int odd = 0; turn.sample < batch; odd ^= 1) {
        const float* own_weights = chosen + odd * other;
        const float4* own_kept = kept + odd * KEPT / 16 + c.group;
        const Turn next = turn.next(ends);
        copies_done();
        block_barrier();
        States x;
        interpolate(x, memory, own_weights, given, turn, c);
        if (next.sample < batch) {
            start_stages(memory, given, next, 0, c);
            if (other > 0) start_weights(chosen + (1 - odd) * other, given, next);
            start_kept(next, 1 - odd);
        }
        float4 a = affine[c.group];
        // Means over the group of the normalised states' gradient, and of its product with them.
        float means_d[2][4] = {};
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            const float4 k = own_kept[end_time(e, c) * GROUPS];
            // Sums over the open ReLUs of 1 and of the normalised state.
            float2 opened = make_float2(0.0f, 0.0f), normals = make_float2(0.0f, 0.0f);
#pragma unroll
            for (int i = 0; i < positions(e); i++) {
                float &nx = x.at(e, 0, i), &ny = x.at(e, 1, i);
                nx = nx * k.y - k.x * k.y;
                ny = ny * k.y - k.x * k.y;
                const float open_x = inside(e, i, c) ? positive(nx * a.x + a.z) : 0.0f;
                const float open_y = inside(e, i, c) ? positive(ny * a.y + a.w) : 0.0f;
                opened.x += open_x;
                opened.y += open_y;
                normals.x += open_x * nx;
                normals.y += open_y * ny;
            }
            const float2 d_scale = make_float2(normals.x * k.z, normals.y * k.w);
            const float2 d_shift = make_float2(opened.x * k.z, opened.y * k.w);
            d_own[0][0] += d_scale.x;
            d_own[0][1] += d_scale.y;
            d_own[0][2] += d_shift.x;
            d_own[0][3] += d_shift.y;
            means_d[0][e] = over_warp(e, d_shift.x * a.x + d_shift.y * a.y);
            means_d[1][e] = over_warp(e, d_scale.x * a.x + d_scale.y * a.y);
        }
        over_warps(shared, means_d);
        a = affine[c.group];  // read again, so that where ReLU is open is made out again: there are too few registers to keep it
        float2 slope[4];
#pragma unroll
        for (int e = 0; e < ENDS; e++) {
            const float4 k = own_kept[end_time(e, c) * GROUPS];
            means_d[0][e] *= k.y * (1.0f / COUNT / POSITIONS);
            means_d[1][e] *= k.y * (1.0f / COUNT / POSITIONS);
            slope[e] = make_float2(k.y * k.z * a.x * (1.0f / POSITIONS), k.y * k.w * a.y * (1.0f / POSITIONS));
        }
        // The states' gradients, in the order that a product needs.
        auto gradients = [&](const float(&n)[4], int e) {
            auto gradient = [&](float n, float g, float b, float slope, int e) {
                return positive(n * g + b) * slope - (means_d[0][e] + n * means_d[1][e]);
            };
            return left(gradient(n[0], a.x, a.z, slope[e].x, e), gradient(n[2], a.y, a.w, slope[e].y, e),
                        gradient(n[1], a.x, a.z, slope[e + 1].x, e + 1),
                        gradient(n[3], a.y, a.w, slope[e + 1].y, e + 1));
        };
        // Gradients of eight stages at one position, on top of what earlier end-times gave.
        auto add_gradients = [&](int round, int i, const Left& first, const Left& last) {
            // Of the right factor, row q is end-time 2 q, and row 4 + q end-time 2 q + 1: the order in which the thread has them.
            const float* w = own_weights + (round * STAGES + c.group) * CHUNK;
            float d[4] = {};
            add_product(d, first, right(w[2 * c.quarter], w[2 * c.quarter + 1]));
            if (LAST) add_product(d, last, right(w[CHUNK - 2], w[CHUNK - 1]).only_if(c.quarter == i % 4));
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const int stage = round * STAGES + 2 * c.quarter + n;
                if (stage > EVALUATIONS) continue;
                float* to = stage_at(d_stages, d_start, stage, batch) + given.offset(turn, c) + 2 * c.group;
                float2* at = reinterpret_cast<float2*>(to + i * WARPS * CHANNELS);
                const float2 before = MANY && turn.first > 0 ? *at : make_float2(0.0f, 0.0f);
                *at = make_float2(before.x + d[n], before.y + d[2 + n]);
            }
        };
#pragma unroll
        for (int f = 0; f < FOURS; f++) {
            Left last;
            if (LAST) last = gradients(x.last[f], 2);
#pragma unroll
            for (int i = 4 * f; i < 4 * f + 4 && i < OWN; i++) {
                if (!inside(i, c)) continue;
                const Left first = gradients(x.first[i], 0);
#pragma unroll 1
                for (int round = 0; round < ROUNDS; round++) add_gradients(round, i, first, last);
            }
        }
        turn = next;
    }
    // The quarters have different end-times, or different positions of the last ones.
#pragma unroll
    for (int n = 0; n < 4; n++) d_own[0][n] = over_quarters(d_own[0][n]) * (1.0f / POSITIONS);
    over_warps(shared + 2 * THREADS, d_own);
    if (c.warp == 0 && c.quarter == 0) {
        float* rows = d_affine + size_t(blockIdx.x / PIECES) * 2 * CHANNELS + channel;
        *reinterpret_cast<float2*>(rows) = make_float2(d_own[0][0], d_own[0][1]);
        *reinterpret_cast<float2*>(rows + CHANNELS) = make_float2(d_own[0][2], d_own[0][3]);
    }
}
