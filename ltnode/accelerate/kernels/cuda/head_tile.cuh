// Tiles of interpolated_head.cu: states at several end-times, computed from the stages by split-TF32 products of a warp.
//
// A block has 16 channels (8 groups) of a sample, and each of its four warps has every fourth position. One mma.m16n8k8
// multiplies the stages at one position (16 channels x 8 stages) by their weights (8 stages x 8 end-times). The rows of the
// product are permuted so that thread 4 g + q of a warp holds both channels of group g at end-times 2 q and 2 q + 1, for all
// positions of the warp: sums over positions stay within the thread.
//
// Ten end-times are eight and EXTRA = 2 more. For these, four positions share the eight columns of a product: thread 4 g + q
// holds the q-th of four positions, both channels, both end-times.
//
// Defined by the host: see interpolated_head.cu.

namespace {

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int GROUPS = 8;                             // per block
constexpr int PIECES = CHANNELS / (2 * GROUPS);       // blocks that share a sample, 16 channels each
constexpr int STAGES = 8;                             // per product
constexpr int ROUNDS = EVALUATIONS / STAGES + 1;      // of products over all stages and the initial state
constexpr int CHUNK = 8 + EXTRA;                      // end-times at a time
constexpr int OWN = (POSITIONS + WARPS - 1) / WARPS;  // positions of a warp
constexpr int FOURS = (OWN + 3) / 4;
constexpr int COUNT = 2 * POSITIONS;                  // values of a group

// Sizes in shared memory, in bytes: a position; a stage, padded so that four stages lie in different banks; all stages of a
// product; the weights of the stages; the saved statistics and gradients of the end-times (backward).
constexpr int POSITION = 8 * GROUPS, STAGE = POSITIONS * POSITION + 32, STAGES_BYTES = STAGES * STAGE;
constexpr int WEIGHTS = 4 * ROUNDS * STAGES * CHUNK, STATISTICS = 16 * CHUNK * GROUPS;

// A unit of work: one sample at CHUNK end-times from ``first`` on.
struct Work {
    int sample, first;
    DEVICE Work next(int ends) const {
        return CHUNKED && first + CHUNK < ends ? Work{sample, first + CHUNK} : Work{sample + int(gridDim.x) / PIECES, 0};
    }
};

DEVICE Work first_work() { return {int(blockIdx.x) / PIECES, 0}; }

DEVICE int piece() { return blockIdx.x % PIECES; }

struct Cell {
    int warp, group, quarter;
};

DEVICE Cell cell() { return {warp_uniform(threadIdx.x / 32), int(threadIdx.x) % 32 / 4, int(threadIdx.x) % 4}; }

// Whether position i of the warp exists; a compile-time constant except for the last one.
DEVICE bool inside(int i, const Cell& c) { return (i + 1) * WARPS <= POSITIONS || i * WARPS + c.warp < POSITIONS; }

// The same for the thread's position of a group of four, at the extra end-times.
DEVICE bool extra_inside(int four, const Cell& c) {
    return (4 * four + 4) * WARPS <= POSITIONS || (4 * four + c.quarter) * WARPS + c.warp < POSITIONS;
}

// End-times of a thread: two of eight, and both extra ones. Index 0 and 1 are the former, 2 and 3 the latter.
constexpr int ENDS = EXTRA ? 4 : 2;

// States, or their gradients, of a thread; zero where there is no position.
struct States {
    float main[OWN][4];    // [position][2 channel + end-time]
    float extra[FOURS][4]; // the same for the thread's position of four
    DEVICE float& at(int end, int channel, int i) { return (end < 2 ? main : extra)[i][2 * channel + end % 2]; }
};

// Number of positions that a thread has for an end-time.
DEVICE constexpr int positions(int end) { return end < 2 ? OWN : FOURS; }

DEVICE bool inside(int end, int i, const Cell& c) { return end < 2 ? inside(i, c) : extra_inside(i, c); }

// Index within the chunk of a thread's end-time.
DEVICE int end_time(int end, const Cell& c) { return end < 2 ? 2 * c.quarter + end : 6 + end; }

// TF32 products use 11 significant bits of a factor. Three products of the factors and their remainders (a_rest b, a b_rest, a b)
// give 21, which is as accurate as float32 sums.
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

// A stage of a (J, B, P, C) array. The initial state counts as stage EVALUATIONS, and its weight is 1.
template <typename Number>
DEVICE Number* stage_at(Number* stages, Number* base, int stage, int batch) {
    return stage < EVALUATIONS ? stages + size_t(stage) * batch * POSITIONS * CHANNELS : base;
}

struct Inputs {
    const float *stages, *base, *weights;  // weights: rows of ``row`` values per evaluation, ``stride`` values apart per sample
    int ends, batch, row, stride;
    // Offset in (B, P, C) of the block's channels at the warp's first position.
    DEVICE size_t offset(const Work& work, const Cell& c) const {
        return (size_t(work.sample) * POSITIONS + c.warp) * CHANNELS + piece() * 2 * GROUPS;
    }
    // Offset in (S, B, C / 2) of the block's groups at an end-time of the chunk.
    DEVICE size_t groups(const Work& work, int end) const {
        return (size_t(work.first + end) * batch + work.sample) * (CHANNELS / 2) + piece() * GROUPS;
    }
};

// Starts to copy the warp's positions of the stages of one product to shared memory.
DEVICE void start_stages(char* to, const Inputs& inputs, const Work& work, int stage, const Cell& c) {
    const int own = threadIdx.x % 32 / 4, part = threadIdx.x % 4;
    const float* from = stage_at(inputs.stages, inputs.base, stage + own, inputs.batch) + inputs.offset(work, c) + 4 * part;
    UNROLL for (int i = 0; i < OWN; i++)
        if (inside(i, c))
            start_copy_16(to + own * STAGE + (i * WARPS + c.warp) * POSITION + 16 * part, from + i * WARPS * CHANNELS);
}

DEVICE void start_weights(float* to, const Inputs& inputs, const Work& work) {
    const float* from = inputs.weights + size_t(work.sample) * inputs.stride + work.first;
    for (int i = threadIdx.x; i < EVALUATIONS * CHUNK; i += THREADS) {
        const int stage = i / CHUNK, end = i % CHUNK;
        if (work.first + end < inputs.ends)
            start_copy_4(to + i, from + stage * inputs.row + end);
        else
            to[i] = 0.0f;
    }
}

// Sets the constant weights: 1 for the initial state, 0 for the padding of the last round.
DEVICE void set_weights(float* weights) {
    for (int i = EVALUATIONS * CHUNK + threadIdx.x; i < ROUNDS * STAGES * CHUNK; i += THREADS)
        weights[i] = i / CHUNK == EVALUATIONS ? 1.0f : 0.0f;
}

// Computes the states. The stages of the first round are already in shared memory; afterwards that memory is free.
DEVICE void interpolate(States& x, char* stages, const float* weights, const Inputs& inputs, const Work& work, const Cell& c) {
    UNROLL for (int e = 0; e < ENDS; e++)
        UNROLL for (int i = 0; i < positions(e); i++) x.at(e, 0, i) = x.at(e, 1, i) = 0.0f;
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++) {
        if (round > 0) {
            start_stages(stages, inputs, work, round * STAGES, c);
            wait_copies();
            warp_barrier();
        }
        const float *low = weights + (round * STAGES + c.quarter) * CHUNK, *high = low + 4 * CHUNK;
        const Right main = right(low[c.group], high[c.group]);
        const int end = EXTRA ? 8 + c.group % 2 : 0;
        const Right extra = right(low[end], high[end]);
        UNROLL for (int i = 0; i < OWN; i++) {
            const char* at = stages + c.quarter * STAGE + (i * WARPS + c.warp) * POSITION + 8 * c.group;
            float2 k = make_float2(0.0f, 0.0f), l = make_float2(0.0f, 0.0f);
            if (inside(i, c)) {
                k = *reinterpret_cast<const float2*>(at);
                l = *reinterpret_cast<const float2*>(at + 4 * STAGE);
            }
            const Left a = left(k.x, k.y, l.x, l.y);
            add_product(x.main[i], a, main);
            if (EXTRA) add_product(x.extra[i / 4], a, extra.only_if(c.group / 2 == i % 4));  // its two columns of eight
        }
        warp_barrier();
    }
}

// Turns a sum over the thread's positions into one over the warp's. At the extra end-times, four threads share the positions.
DEVICE float sum_over_warp(int end, float v) { return end < 2 ? v : sum_over_four(v); }

// Sums N x 4 values over the warps of the block, lane by lane. ``shared`` must not be in use.
template <int N>
DEVICE void sum_over_block(float4* shared, float (&sums)[N][4]) {
    UNROLL for (int n = 0; n < N; n++)
        shared[n * THREADS + threadIdx.x] = make_float4(sums[n][0], sums[n][1], sums[n][2], sums[n][3]);
    block_barrier();
    UNROLL for (int n = 0; n < N; n++) {
        float4 sum = shared[n * THREADS + threadIdx.x % 32];
        UNROLL for (int w = 1; w < WARPS; w++) {
            const float4 other = shared[n * THREADS + 32 * w + threadIdx.x % 32];
            sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
        }
        unpack(sums[n], sum);
    }
}

}  // namespace
