// The neighbourhoods of an image as a matrix in shared memory, and 16 of them at a time as products of a warp: POSITIONS rows of
// K = CHANNELS * SIZE^2 values. Eight warps share the 32-channel parts and, 16 positions at a time, the positions. The rows of a
// warp's two mma tiles are permuted so that a thread holds four channels, two groups, side by side:
//     channels 32 part + 4 (lane / 4) + 0 ... 3 at positions 2 (lane % 4) and the next, and eight further.
// The same arrangement is that of the left factor in the weight's gradient, a product over the positions.
//
// Defined by the host: HEIGHT, WIDTH, CHANNELS of the images, SIZE of the kernel, OUT channels (32, 64, 128 or 256).

namespace {

constexpr int THREADS = 256;
constexpr int ACROSS = WIDTH - SIZE + 1;
constexpr int POSITIONS = (HEIGHT - SIZE + 1) * ACROSS;
constexpr int K = CHANNELS * SIZE * SIZE;
constexpr int KS = (K + 15) / 16;           // k-steps of a product, one or two
constexpr int PITCH = (2 * KS + 1) * 16;    // bytes of a row: an odd number of 16-byte pieces, so that rows do not share banks
constexpr int TILES = (POSITIONS + 15) / 16;
constexpr int PARTS = OUT / 32;
constexpr int SHARES = 8 / PARTS;           // warps that have the same channels and other positions
constexpr int GROUPS = OUT / 2;
constexpr int COUNT = 2 * POSITIONS;        // numbers of a group
constexpr int PATCH_BYTES = TILES * 16 * PITCH;
constexpr int ROW = 16 * KS;                // numbers of a row of the weight's gradient and of the neighbourhoods' products
constexpr int GRADIENT_BYTES = SHARES * OUT * ROW * 4;  // of the weight, in the place of the neighbourhoods: no less than the
                                                        // products' eight parts, which are there before
constexpr int SUMS_AT = PATCH_BYTES > GRADIENT_BYTES ? PATCH_BYTES : GRADIENT_BYTES;
constexpr int SUMS_BYTES = 8 * SHARES * OUT * 4;
constexpr int IMAGE_AT = SUMS_AT + SUMS_BYTES;
constexpr int STAGES = 2;                   // tiles of the output's gradient that are on their way
constexpr u32 ONES = 0x3f803f80u;           // a right factor of ones: the product is the left factor's sum
// Numbers of `sums` (see `deposit`) in the backward pass; the neighbourhoods' products have the first four.
constexpr int PATCH_PARTS = 4, D = 5, DX = 6, PATCH_SUMS = 7;

struct alignas(8) Four {
    u32 pair[2];  // channels 0 and 1, 2 and 3
};

struct Cell {
    int lane, share, column, channel, sample;
    // Whether the position of value e of half a tile is one of the image's.
    DEVICE bool valid(int tile, int half, int e) const { return 16 * tile + 8 * half + column + e < POSITIONS; }
    // Its four channels in a (N, P, OUT) array of words.
    DEVICE size_t at(int tile, int half, int e) const {
        return ((size_t(sample) * POSITIONS + 16 * tile + 8 * half + column + e) * OUT + channel) / 2;
    }
};

DEVICE Cell cell() {
    Cell c;
    int warp = threadIdx.x / 32;
    c.lane = threadIdx.x % 32;
    c.share = warp / PARTS;
    c.column = 2 * (c.lane % 4);
    c.channel = 32 * (warp % PARTS) + 4 * (c.lane / 4);
    c.sample = blockIdx.x;
    return c;
}

// The neighbourhoods of one image, rounded to bfloat16; zeros behind the last value and the last position.
DEVICE void write_patches(char* shared, const float* images) {
    u16* image = reinterpret_cast<u16*>(shared + IMAGE_AT);
    const float* own = images + size_t(blockIdx.x) * CHANNELS * HEIGHT * WIDTH;
    constexpr int NUMBERS = CHANNELS * HEIGHT * WIDTH;
#pragma unroll 12  // all of a usual image is on its way at once
    for (int first = 0; first < NUMBERS; first += THREADS) {
        int i = first + threadIdx.x;
        if (i < NUMBERS) image[i] = u16(bf16_pair(own[i], 0.0f));
    }
    block_barrier();
    for (int row = threadIdx.x; row < TILES * 16; row += THREADS) {
        const u16* corner = image + row / ACROSS * WIDTH + row % ACROSS;
        u32 words[8 * KS];
#pragma unroll
        for (int k = 0; k < 16 * KS; k++) {
            u32 value = 0u;
            if (k < K && row < POSITIONS) value = corner[(k / (SIZE * SIZE) * HEIGHT + k / SIZE % SIZE) * WIDTH + k % SIZE];
            words[k / 2] = k % 2 ? words[k / 2] | value << 16 : value;
        }
#pragma unroll
        for (int piece = 0; piece < 2 * KS; piece++)
            *reinterpret_cast<uint4*>(shared + row * PITCH + 16 * piece) =
                make_uint4(words[4 * piece], words[4 * piece + 1], words[4 * piece + 2], words[4 * piece + 3]);
    }
    block_barrier();
}

struct Layer {
    u32 weight[2][KS][4];
    float bias[4];
    // The left factor of a product.
    DEVICE uint4 left(int m, int s) const {
        return make_uint4(weight[m][s][0], weight[m][s][1], weight[m][s][2], weight[m][s][3]);
    }
    // Of channel i of the thread's four at 8 n + column + j: where a product over the positions has that number.
    DEVICE float at(int i, int n, int j) const {
        u32 pair = weight[i / 2][n / 2][2 * (n % 2) + i % 2];
        return j ? high(pair) : low(pair);
    }
};

// Tile m has channels 2 m and 2 m + 1 of the thread's four in its rows lane / 4 and lane / 4 + 8.
DEVICE Layer load_layer(const float* weight, const float* bias, const Cell& c) {
    Layer layer;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int s = 0; s < KS; s++)
#pragma unroll
            for (int reg = 0; reg < 4; reg++) {
                int k = 16 * s + c.column + 8 * (reg / 2);
                const float* row = weight + (c.channel + 2 * m + reg % 2) * K;
                layer.weight[m][s][reg] = bf16_pair(k < K ? row[k] : 0.0f, k + 1 < K ? row[k + 1] : 0.0f);
            }
#pragma unroll
    for (int i = 0; i < 4; i++) layer.bias[i] = bias[c.channel + i];
    return layer;
}

// Values before the norm: [half of 8 positions][two channels][2 (channel of the two) + (position of the two)].
typedef float Values[2][2][4];

// The products, each channel's added to its number of `start`.
DEVICE void convolve(Values& x, const Layer& layer, const float (&start)[4], const char* patches, int tile, const Cell& c) {
    u32 b[2][2 * KS];
    const char* rows = patches + (16 * tile + c.lane % 8) * PITCH;
    if (KS == 2) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            u32 found[4];
            load_matrices(found, rows + 8 * half * PITCH + c.lane / 8 * 16);
#pragma unroll
            for (int i = 0; i < 2 * KS; i++) b[half][i] = found[i];
        }
    } else {
        u32 found[4];
        load_matrices(found, rows + c.lane / 16 * 8 * PITCH + c.lane / 8 % 2 * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) b[i / 2][i % 2] = found[i];
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int i = 0; i < 4; i++) x[half][m][i] = start[2 * m + i / 2];
#pragma unroll
            for (int s = 0; s < KS; s++) mma(x[half][m], layer.left(m, s), b[half][2 * s], b[half][2 * s + 1]);
        }
}

// A tile's neighbourhoods as the right factor of a product over the positions: [n][position / 8] for values 8 n ... 8 n + 7.
typedef u32 Rights[2 * KS][2];

DEVICE void load_rights(Rights& right, const char* patches, int tile, const Cell& c) {
#pragma unroll
    for (int s = 0; s < KS; s++) {
        u32 found[4];
        const char* row = patches + (16 * tile + c.lane / 8 % 2 * 8 + c.lane % 8) * PITCH + (2 * s + c.lane / 16) * 16;
        load_matrices_transposed(found, row);
#pragma unroll
        for (int i = 0; i < 4; i++) right[2 * s + i / 2][i % 2] = found[i];
    }
}

// The output's gradient at a tile: [half][position of the two]; zeros behind the last position. `own` is the thread's first.
typedef Four Pieces[2][2];

DEVICE void load_pieces(Pieces& d, const Four* own, int tile, const Cell& c) {
    const Four* at = own + tile * (16 * OUT / 4);
    if (tile < POSITIONS / 16) {
#pragma unroll
        for (int i = 0; i < 4; i++) d[i / 2][i % 2] = at[(8 * (i / 2) + i % 2) * (OUT / 4)];
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            d[i / 2][i % 2] = Four();
            if (c.valid(tile, i / 2, i % 2)) d[i / 2][i % 2] = at[(8 * (i / 2) + i % 2) * (OUT / 4)];
        }
    }
}

// The gradient where `x` is negative, with the positions side by side: the left factor of a product over them.
DEVICE uint4 open_ones(const Pieces& d, const Values& x, int m) {
    u32 word[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float* two = &x[i / 2][m][2 * (i % 2)];
        u32 pair = bytes(d[i / 2][0].pair[m], d[i / 2][1].pair[m], i % 2 ? 0x7632u : 0x5410u);
        word[i] = where_negative(pair, two);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Numbers k and k + 1 of a row: those that a warp touches at once, a row for four lanes, are in different banks.
DEVICE float2& pair_at(float* rows, int row, int k, const Cell& c) {
    return *reinterpret_cast<float2*>(rows + row * ROW + (k ^ 8 * (c.lane / 4 % (2 * KS))));
}

// Changes the signs of the weight's rows with a positive scale.
DEVICE void turn_rows(Layer& layer, const float* scale, const Cell& c) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 mask = turned_signs(scale[c.channel + i]);
#pragma unroll
        for (int n = 0; n < 2 * KS; n++) layer.weight[i / 2][n / 2][2 * (n % 2) + i % 2] ^= mask;
    }
}

template <int N>
DEVICE void zero(float (&sums)[N][4]) {
#pragma unroll
    for (int i = 0; i < 4 * N; i++) sums[i / 4][i % 4] = 0.0f;
}

// A sum over all positions of each channel or group, in two halves with a barrier between them: number n of the memory for the
// thread's column, then its value.
DEVICE void deposit(float v, float* sums, int n, int column, const Cell& c) {
    v += shuffle_xor(v, 1);
    v += shuffle_xor(v, 2);
    if (c.lane % 4 == 0) sums[(n * SHARES + c.share) * OUT + column] = v;
}

DEVICE float total(const float* sums, int n, int column, const Cell& c) {
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < SHARES; s++) sum += sums[(n * SHARES + s) * OUT + column];
    return sum;
}

}  // namespace

