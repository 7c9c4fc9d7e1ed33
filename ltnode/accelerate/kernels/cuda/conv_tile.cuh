// One sample of conv_trajectory.cu as a register tile: loads, stores, Runge-Kutta sums, GroupNorm and its gradient.
//
// The sample has C = 64 channels and SIDE x SIDE positions and belongs to four warps. Each thread holds its part of the GEMM
// accumulator of mma.m16n8k16 and wgmma: a warp has 16 output channels, and an image row, padded to 8 columns, is one n-tile. The
// rows of the weight matrix are permuted so that a thread holds both channels of a normalisation group:
//     channels 16 warp + 2 (lane / 4) and the next, columns 2 (lane % 4) and the next, all image rows.
// Group statistics are therefore sums within a thread and over the four lanes that differ in lane % 4 (two shuffles).
//
// Defined by the host: SIDE (height = width, at most 7), STAGES of the Runge-Kutta method.

namespace {

constexpr int C = 64;
constexpr int P = SIDE * SIDE;
constexpr int SAMPLE_SIZE = P * C;
constexpr int THREADS_PER_SAMPLE = 128;
constexpr int TILE_VECTORS = SIDE * THREADS_PER_SAMPLE;  // vectors of a sample's tile: 16 bytes each in float32, 8 in bfloat16
constexpr float EPS = 1e-5f;

struct Tile {
    float v[SIDE][4];  // [image row][2 (channel of the pair) + (column of the pair)]
};

struct Place {
    int slot;                // which sample of the block
    int thread, warp, lane;  // within the sample
    int pair;                // normalisation group
    int column, channel;     // the first of two
    bool inside[2];          // whether the two columns belong to the image
};

DEVICE Place place() {
    Place p;
    p.slot = warp_uniform(threadIdx.x / THREADS_PER_SAMPLE);
    p.thread = threadIdx.x % THREADS_PER_SAMPLE;
    p.warp = p.thread / 32;
    p.lane = p.thread % 32;
    p.pair = p.warp * 8 + p.lane / 4;
    p.column = 2 * (p.lane % 4);
    p.channel = 2 * p.pair;
    p.inside[0] = SIDE > 6 || p.column < SIDE;  // a compile-time constant for the largest side
    p.inside[1] = p.column + 1 < SIDE;
    return p;
}

// Offset of the thread's first value in a (P, C) array. Image row r and column e of the pair are (r * SIDE + e) * C further.
DEVICE int tile_offset(const Place& p) { return p.column * C + p.channel; }

DEVICE Tile load(const float* from, const Place& p) {
    Tile x;
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++) {
            float2 q = make_float2(0.0f, 0.0f);
            if (p.inside[e]) q = *reinterpret_cast<const float2*>(from + (r * SIDE + e) * C);
            x.v[r][e] = q.x;
            x.v[r][2 + e] = q.y;
        }
    return x;
}

DEVICE void add_scaled(Tile& x, float a, const Tile& y) {
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int q = 0; q < 4; q++) x.v[r][q] += a * y.v[r][q];
}

// Coefficients of the Runge-Kutta method: one row per stage (a), the row of the error estimate, the row of times (c).
struct Coefficients {
    float values[(STAGES + 2) * STAGES];
    DEVICE float at(int row, int j) const { return values[row * STAGES + j]; }
};

// x += sum over j in [begin, end) of method.at(row, j) * length * tile j, where tiles are ``stride`` values apart. Two loads are
// in flight at a time. Tiles whose coefficient is zero are not read.
DEVICE void add_tiles(Tile& x, const Coefficients& method, int row, float length, const float* tiles, size_t stride, int begin,
                      int end, const Place& p) {
    for (int j = begin; j < end; j += 2) {
        if (method.at(row, j) == 0.0f) j++;
        const float a0 = j < end ? method.at(row, j) * length : 0.0f, a1 = j + 1 < end ? method.at(row, j + 1) * length : 0.0f;
        Tile t0, t1;
        if (a0 != 0.0f) t0 = load(tiles + j * stride, p);
        if (a1 != 0.0f) t1 = load(tiles + (j + 1) * stride, p);
        if (a0 != 0.0f) add_scaled(x, a0, t0);
        if (a1 != 0.0f) add_scaled(x, a1, t1);
    }
}

DEVICE void scale(Tile& x, float a) {
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int q = 0; q < 4; q++) x.v[r][q] *= a;
}

DEVICE Tile zeros() {
    Tile x;
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int q = 0; q < 4; q++) x.v[r][q] = 0.0f;
    return x;
}

DEVICE void store(float* to, const Tile& x, const Place& p) {
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++)
            if (p.inside[e]) *reinterpret_cast<float2*>(to + (r * SIDE + e) * C) = make_float2(x.v[r][e], x.v[r][2 + e]);
}

// Tiles that only the same thread reads again are saved in the order (vector, thread), which makes the accesses coalesced. In
// float32 an image row is one vector of 16 bytes. In bfloat16 two rows are one, and the last row of an odd side has 8 bytes.
DEVICE void save(float4* to, const Tile& x) {
    UNROLL for (int r = 0; r < SIDE; r++) to[r * THREADS_PER_SAMPLE] = make_float4(x.v[r][0], x.v[r][1], x.v[r][2], x.v[r][3]);
}

DEVICE Tile saved(const float4* from) {
    Tile x;
    UNROLL for (int r = 0; r < SIDE; r++) unpack(x.v[r], from[r * THREADS_PER_SAMPLE]);
    return x;
}

DEVICE void add_saved(Tile& x, float a, const float4* from) { add_scaled(x, a, saved(from)); }

struct Bf16Tile {
    u32 v[SIDE][2];  // [image row][column of the pair]: both channels
};

// Index of the last row of an odd side, counted in vectors of 8 bytes.
DEVICE int odd_row(const Place& p) { return 2 * (SIDE / 2) * THREADS_PER_SAMPLE + p.thread; }

DEVICE void save_bf16(uint4* to, const Tile& x, const Place& p) {
    u32 v[SIDE][2];
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++) v[r][e] = bf16_pair(x.v[r][e], x.v[r][2 + e]);
    UNROLL for (int r = 0; r + 1 < SIDE; r += 2)
        to[r / 2 * THREADS_PER_SAMPLE + p.thread] = make_uint4(v[r][0], v[r][1], v[r + 1][0], v[r + 1][1]);
    if (SIDE % 2) reinterpret_cast<uint2*>(to)[odd_row(p)] = make_uint2(v[SIDE - 1][0], v[SIDE - 1][1]);
}

// Saved bfloat16 tiles come back through a slot of shared memory, so that the copy overlaps the convolution and occupies no
// registers.
DEVICE void start_fetch(uint4* slot, const uint4* from, const Place& p) {
    UNROLL for (int k = 0; k < SIDE / 2; k++)
        start_copy_16(slot + k * THREADS_PER_SAMPLE + p.thread, from + k * THREADS_PER_SAMPLE + p.thread);
    if (SIDE % 2) start_copy_8(reinterpret_cast<uint2*>(slot) + odd_row(p), reinterpret_cast<const uint2*>(from) + odd_row(p));
}

DEVICE Bf16Tile finish_fetch(const uint4* slot, const Place& p) {
    wait_copies();
    Bf16Tile x;
    UNROLL for (int r = 0; r + 1 < SIDE; r += 2) {
        uint4 rows = slot[r / 2 * THREADS_PER_SAMPLE + p.thread];
        x.v[r][0] = rows.x;
        x.v[r][1] = rows.y;
        x.v[r + 1][0] = rows.z;
        x.v[r + 1][1] = rows.w;
    }
    if (SIDE % 2) {
        uint2 row = reinterpret_cast<const uint2*>(slot)[odd_row(p)];
        x.v[SIDE - 1][0] = row.x;
        x.v[SIDE - 1][1] = row.y;
    }
    return x;
}

DEVICE float2 channel_pair(const float* values, const Place& p) {
    return *reinterpret_cast<const float2*>(values + p.channel);
}

// Replaces x by (x - mean) / std of its group, zero in the padded columns, and returns 1 / std.
DEVICE float normalise(Tile& x, const Place& p) {
    // Multiplying by 1 or 0 takes one instruction less than a selection.
    const float inside[2] = {p.inside[0] ? 1.0f : 0.0f, p.inside[1] ? 1.0f : 0.0f};
    float totals[2] = {0.0f, 0.0f}, squares[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // several accumulators: shorter dependency chains
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++) totals[e] += x.v[r][e] + x.v[r][2 + e];
    float mean = sum_over_four(totals[0] * inside[0] + totals[1] * inside[1]) * (1.0f / (2 * P));
    const float shift[2] = {-mean * inside[0], -mean * inside[1]};
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int q = 0; q < 4; q++) {
            x.v[r][q] = x.v[r][q] * inside[q % 2] + shift[q % 2];
            squares[q] += x.v[r][q] * x.v[r][q];
        }
    float variance = sum_over_four((squares[0] + squares[1]) + (squares[2] + squares[3])) * (1.0f / (2 * P));
    float rstd = rsqrtf(variance + EPS);
    scale(x, rstd);
    return rstd;
}

DEVICE void affine(Tile& x, const float2& scale, const float2& shift) {
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int q = 0; q < 4; q++) x.v[r][q] = x.v[r][q] * (q < 2 ? scale.x : scale.y) + (q < 2 ? shift.x : shift.y);
}

// Gradients of a norm's scale and shift for the thread's channel pair, summed over positions and evaluations.
struct AffineGradients {
    float2 scale, shift;
};

// Replaces the gradient d of scale * x + shift, where x is normalised, by the gradient of the norm's input,
//     rstd (scale d - mean(scale d) - x mean(scale d x)), with means over the group,
// and adds the gradients of scale and shift to ``sums``.
DEVICE void normalise_backward(Tile& d, const Bf16Tile& x, float rstd, const float2& scale, AffineGradients& sums,
                               const Place& p) {
    float d0 = 0.0f, d1 = 0.0f, dx0 = 0.0f, dx1 = 0.0f;
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++) {
            d0 += d.v[r][e];
            d1 += d.v[r][2 + e];
            dx0 += d.v[r][e] * low(x.v[r][e]);
            dx1 += d.v[r][2 + e] * high(x.v[r][e]);
        }
    d0 = sum_over_four(d0);
    d1 = sum_over_four(d1);
    dx0 = sum_over_four(dx0);
    dx1 = sum_over_four(dx1);
    sums.scale.x += dx0;
    sums.scale.y += dx1;
    sums.shift.x += d0;
    sums.shift.y += d1;
    float mean_d = (d0 * scale.x + d1 * scale.y) * (1.0f / (2 * P));
    float mean_dx = (dx0 * scale.x + dx1 * scale.y) * (1.0f / (2 * P));
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++) {
            float n0 = rstd * (d.v[r][e] * scale.x - mean_d - low(x.v[r][e]) * mean_dx);
            float n1 = rstd * (d.v[r][2 + e] * scale.y - mean_d - high(x.v[r][e]) * mean_dx);
            d.v[r][e] = p.inside[e] ? n0 : 0.0f;
            d.v[r][2 + e] = p.inside[e] ? n1 : 0.0f;
        }
}

// Sets d to zero where the ReLU was inactive.
DEVICE void relu_backward(Tile& d, const Bf16Tile& x, const float2& scale, const float2& shift, const Place& p) {
    UNROLL for (int r = 0; r < SIDE; r++)
        UNROLL for (int e = 0; e < 2; e++) {
            if (!(p.inside[e] && low(x.v[r][e]) * scale.x + shift.x > 0.0f)) d.v[r][e] = 0.0f;
            if (!(p.inside[e] && high(x.v[r][e]) * scale.y + shift.y > 0.0f)) d.v[r][2 + e] = 0.0f;
        }
}

}  // namespace
