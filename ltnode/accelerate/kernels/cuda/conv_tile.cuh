// A sample in the registers of four warps: C = 64 channels by at most 7 x 7 positions, two channels to a normalisation group.
//
// It is the accumulator of mma.m16n8k16: a warp has 16 output channels, an image row (padded to 8 columns) is one n-tile. The
// rows of a warp's matrix are permuted so that a thread holds both channels of a group,
//     channels c0 = 16 warp + 2 (lane / 4) and c0 + 1, columns 2 (lane % 4) and the next, every image row,
// so that a group's statistics are sums within a thread and over four lanes.
//
// Defined by the host: SIDE (height = width, at most 7), STAGES of the Runge-Kutta method.

namespace {

constexpr int C = 64;
constexpr int P = SIDE * SIDE;
constexpr int SAMPLE = P * C;
constexpr int LANES = 128;              // threads of one sample
constexpr int KEPT = SIDE * LANES;      // pieces of 16 bytes: a sample's tiles in float32; in bfloat16, of 8 bytes
constexpr float EPS = 1e-5f;

struct Tile {
    float v[SIDE][4];  // [image row][2 (channel of the pair) + (column of the pair)]
};

struct Place {
    int slot, thread, warp, lane, pair, column, channel;
    bool ok[2];
};

DEVICE Place place() {
    Place p;
    p.slot = same_in_warp(threadIdx.x / LANES);
    p.thread = threadIdx.x % LANES;
    p.warp = p.thread / 32;
    p.lane = p.thread % 32;
    p.pair = p.warp * 8 + p.lane / 4;
    p.column = 2 * (p.lane % 4);
    p.channel = 2 * p.pair;
    p.ok[0] = SIDE > 6 || p.column < SIDE;  // known beforehand for the largest side
    p.ok[1] = p.column + 1 < SIDE;
    return p;
}

DEVICE float over_columns(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// Offset of the thread's first value in a sample; image row r and column e of the pair are (r * SIDE + e) * C further.
DEVICE int corner(const Place& p) { return p.column * C + p.channel; }

DEVICE Tile load(const float* from, const Place& p) {
    Tile x;
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float2 q = make_float2(0.0f, 0.0f);
            if (p.ok[e]) q = *reinterpret_cast<const float2*>(from + (r * SIDE + e) * C);
            x.v[r][e] = q.x;
            x.v[r][2 + e] = q.y;
        }
    return x;
}

DEVICE void add_scaled(Tile& x, float a, const Tile& y) {
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) x.v[r][q] += a * y.v[r][q];
}

// Of the Runge-Kutta method: a row for each stage's argument, one for the error, one of times.
struct Coefficients {
    float values[(STAGES + 2) * STAGES];
    DEVICE float at(int row, int j) const { return values[row * STAGES + j]; }
};

// x += the sum over j from begin to end of a row's coefficient j times length times tile j, which are ``every`` apart. Two tiles
// are on their way at a time; those with a factor of zero are not read.
DEVICE void add_tiles(Tile& x, const Coefficients& method, int row, float length, const float* tiles, size_t every, int begin,
                      int end, const Place& p) {
    for (int j = begin; j < end; j += 2) {
        if (method.at(row, j) == 0.0f) j++;
        const float a0 = j < end ? method.at(row, j) * length : 0.0f, a1 = j + 1 < end ? method.at(row, j + 1) * length : 0.0f;
        Tile t0, t1;
        if (a0 != 0.0f) t0 = load(tiles + j * every, p);
        if (a1 != 0.0f) t1 = load(tiles + (j + 1) * every, p);
        if (a0 != 0.0f) add_scaled(x, a0, t0);
        if (a1 != 0.0f) add_scaled(x, a1, t1);
    }
}

DEVICE void scale(Tile& x, float a) {
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) x.v[r][q] *= a;
}

DEVICE Tile zeros() {
    Tile x;
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) x.v[r][q] = 0.0f;
    return x;
}

DEVICE void store(float* to, const Tile& x, const Place& p) {
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++)
            if (p.ok[e]) *reinterpret_cast<float2*>(to + (r * SIDE + e) * C) = make_float2(x.v[r][e], x.v[r][2 + e]);
}

// Tiles that only their own thread reads again lie in memory as it holds them. In float32 an image row is a piece of 16 bytes, in
// bfloat16 two are; the last one of an odd side is one of 8 bytes. Pieces of the threads of a sample are side by side.
DEVICE void keep(float4* to, const Tile& x) {
#pragma unroll
    for (int r = 0; r < SIDE; r++) to[r * LANES] = make_float4(x.v[r][0], x.v[r][1], x.v[r][2], x.v[r][3]);
}

DEVICE Tile kept(const float4* from) {
    Tile x;
#pragma unroll
    for (int r = 0; r < SIDE; r++) {
        float4 q = from[r * LANES];
        x.v[r][0] = q.x;
        x.v[r][1] = q.y;
        x.v[r][2] = q.z;
        x.v[r][3] = q.w;
    }
    return x;
}

DEVICE void add_kept(Tile& x, float a, const float4* from) { add_scaled(x, a, kept(from)); }

struct Packed {
    u32 v[SIDE][2];  // [image row][column of the pair]: both channels
};

DEVICE int half_piece(const Place& p) { return 2 * (SIDE / 2) * LANES + p.thread; }  // in pieces of 8 bytes

DEVICE void keep_bf16(uint4* to, const Tile& x, const Place& p) {
    u32 v[SIDE][2];
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) v[r][e] = bf16_pair(x.v[r][e], x.v[r][2 + e]);
#pragma unroll
    for (int r = 0; r + 1 < SIDE; r += 2) to[r / 2 * LANES + p.thread] = make_uint4(v[r][0], v[r][1], v[r + 1][0], v[r + 1][1]);
    if (SIDE % 2) reinterpret_cast<uint2*>(to)[half_piece(p)] = make_uint2(v[SIDE - 1][0], v[SIDE - 1][1]);
}

// On their way back they pass through a slot of shared memory: they come while the convolution runs, and take no registers before
// they are used.
DEVICE void fetch(uint4* slot, const uint4* from, const Place& p) {
#pragma unroll
    for (int k = 0; k < SIDE / 2; k++) start_copy(slot + k * LANES + p.thread, from + k * LANES + p.thread);
    if (SIDE % 2)
        start_half_copy(reinterpret_cast<uint2*>(slot) + half_piece(p), reinterpret_cast<const uint2*>(from) + half_piece(p));
}

DEVICE Packed fetched(const uint4* slot, const Place& p) {
    copies_done();
    Packed x;
#pragma unroll
    for (int r = 0; r + 1 < SIDE; r += 2) {
        uint4 piece = slot[r / 2 * LANES + p.thread];
        x.v[r][0] = piece.x;
        x.v[r][1] = piece.y;
        x.v[r + 1][0] = piece.z;
        x.v[r + 1][1] = piece.w;
    }
    if (SIDE % 2) {
        uint2 piece = reinterpret_cast<const uint2*>(slot)[half_piece(p)];
        x.v[SIDE - 1][0] = piece.x;
        x.v[SIDE - 1][1] = piece.y;
    }
    return x;
}

DEVICE float2 pair_of(const float* values, const Place& p) { return *reinterpret_cast<const float2*>(values + p.channel); }

// x becomes (x - mean) / std of its group, and zero in the padded columns; returns 1 / std.
DEVICE float normalise(Tile& x, const Place& p) {
    // Products with 1 or 0, where a selection would take an instruction more.
    const float inside[2] = {p.ok[0] ? 1.0f : 0.0f, p.ok[1] ? 1.0f : 0.0f};
    float totals[2] = {0.0f, 0.0f}, squares[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // several: sums wait for one another
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) totals[e] += x.v[r][e] + x.v[r][2 + e];
    float mean = over_columns(totals[0] * inside[0] + totals[1] * inside[1]) * (1.0f / (2 * P));
    const float shift[2] = {-mean * inside[0], -mean * inside[1]};
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            x.v[r][q] = x.v[r][q] * inside[q % 2] + shift[q % 2];
            squares[q] += x.v[r][q] * x.v[r][q];
        }
    float variance = over_columns((squares[0] + squares[1]) + (squares[2] + squares[3])) * (1.0f / (2 * P));
    float rstd = rsqrtf(variance + EPS);
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) x.v[r][q] *= rstd;
    return rstd;
}

DEVICE void affine(Tile& x, const float2& scale, const float2& shift) {
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) x.v[r][q] = x.v[r][q] * (q < 2 ? scale.x : scale.y) + (q < 2 ? shift.x : shift.y);
}

// Gradients of a normalisation's scale and shift, summed over the evaluations.
struct Affine {
    float2 scale, shift;
};

// From the gradient d of scale * x + shift, with x normalised: that of the normalisation's input.
DEVICE void normalise_backward(Tile& d, const Packed& x, float rstd, const float2& scale, Affine& sums, const Place& p) {
    float d0 = 0.0f, d1 = 0.0f, dx0 = 0.0f, dx1 = 0.0f;
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            d0 += d.v[r][e];
            d1 += d.v[r][2 + e];
            dx0 += d.v[r][e] * low(x.v[r][e]);
            dx1 += d.v[r][2 + e] * high(x.v[r][e]);
        }
    d0 = over_columns(d0);
    d1 = over_columns(d1);
    dx0 = over_columns(dx0);
    dx1 = over_columns(dx1);
    sums.scale.x += dx0;
    sums.scale.y += dx1;
    sums.shift.x += d0;
    sums.shift.y += d1;
    float mean_d = (d0 * scale.x + d1 * scale.y) * (1.0f / (2 * P));
    float mean_dx = (dx0 * scale.x + dx1 * scale.y) * (1.0f / (2 * P));
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float n0 = rstd * (d.v[r][e] * scale.x - mean_d - low(x.v[r][e]) * mean_dx);
            float n1 = rstd * (d.v[r][2 + e] * scale.y - mean_d - high(x.v[r][e]) * mean_dx);
            d.v[r][e] = p.ok[e] ? n0 : 0.0f;
            d.v[r][2 + e] = p.ok[e] ? n1 : 0.0f;
        }
}

// d stays where the activation was positive.
DEVICE void relu_backward(Tile& d, const Packed& x, const float2& scale, const float2& shift, const Place& p) {
#pragma unroll
    for (int r = 0; r < SIDE; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (!(p.ok[e] && low(x.v[r][e]) * scale.x + shift.x > 0.0f)) d.v[r][e] = 0.0f;
            if (!(p.ok[e] && high(x.v[r][e]) * scale.y + shift.y > 0.0f)) d.v[r][2 + e] = 0.0f;
        }
}

}  // namespace

