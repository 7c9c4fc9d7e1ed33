// The im2col matrix of one image in shared memory, and its GEMM with the weights, for patch_norm.cu.
//
// A patch is the K = CHANNELS * FILTER^2 input values of an output position, one row of the matrix in bfloat16. Eight warps
// divide the output into parts of 32 channels and, 16 positions (a tile) at a time, into shares of the positions. The rows of a
// warp's two m16n8k16 products are permuted so that a thread holds four neighbouring channels, two groups of the norm:
//     channels 32 part + 4 (lane / 4) + 0 ... 3 at positions 2 (lane % 4) and the next, and eight further.
// Accumulators have the same layout as the left operand of a product over positions, which is the weight gradient.
//
// Defined by the host: HEIGHT, WIDTH and CHANNELS of the images, FILTER (size of the square filter), OUT channels (32, 64, 128 or
// 256).

namespace {

constexpr int THREADS = 256;
constexpr int ACROSS = WIDTH - FILTER + 1;
constexpr int POSITIONS = (HEIGHT - FILTER + 1) * ACROSS;
constexpr int K = CHANNELS * FILTER * FILTER;
constexpr int KS = (K + 15) / 16;           // k-steps of a product, one or two
constexpr int PITCH = (2 * KS + 1) * 16;    // bytes of a row: an odd number of 16-byte vectors avoids bank conflicts
constexpr int TILES = (POSITIONS + 15) / 16;
constexpr int PARTS = OUT / 32;
constexpr int SHARES = 8 / PARTS;           // warps with the same channels and different positions
constexpr int GROUPS = OUT / 2;
constexpr int COUNT = 2 * POSITIONS;        // values of a group
constexpr int PATCH_BYTES = TILES * 16 * PITCH;
constexpr int ROW = 16 * KS;                // values of a row of the weight gradient and of patches^T patches
// At the end of the backward pass, the weight gradient replaces the patches. It is at least as large as the eight warps' partial
// sums of patches^T patches, which are there before.
constexpr int GRADIENT_BYTES = SHARES * OUT * ROW * 4;
constexpr int SUMS_AT = PATCH_BYTES > GRADIENT_BYTES ? PATCH_BYTES : GRADIENT_BYTES;
constexpr int SUMS_BYTES = 8 * SHARES * OUT * 4;
constexpr int IMAGE_AT = SUMS_AT + SUMS_BYTES;
constexpr int STAGES = 2;                   // tiles of the output's gradient that are loaded ahead
constexpr u32 ONES = 0x3f803f80u;           // two ones: a right operand of ones makes the product a sum
// Slots of ``sums`` (see `partial_sum`) in the backward pass; patches^T patches occupies the first four.
constexpr int PATCH_PARTS = 4, D = 5, DX = 6, PATCH_SUMS = 7;

struct alignas(8) Four {
    u32 pair[2];  // channels 0 and 1, 2 and 3
};

struct Cell {
    int lane, share, column, channel, sample;
    // Whether position e of half a tile exists.
    DEVICE bool valid(int tile, int half, int e) const { return 16 * tile + 8 * half + column + e < POSITIONS; }
    // Index of its four channels in a (N, P, OUT) array of 32-bit words.
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

// im2col: writes the patches of the block's image, rounded to bfloat16, with zeros after the last value and the last position.
DEVICE void write_patches(char* shared, const float* images) {
    u16* image = reinterpret_cast<u16*>(shared + IMAGE_AT);
    constexpr int NUMBERS = CHANNELS * HEIGHT * WIDTH;
    const float* own = images + size_t(blockIdx.x) * NUMBERS;
#pragma unroll 12  // enough to have all loads of a 32x32 colour image in flight
    for (int first = 0; first < NUMBERS; first += THREADS) {
        int i = first + threadIdx.x;
        if (i < NUMBERS) image[i] = u16(bf16_pair(own[i], 0.0f));
    }
    block_barrier();
    for (int row = threadIdx.x; row < TILES * 16; row += THREADS) {
        const u16* corner = image + row / ACROSS * WIDTH + row % ACROSS;
        u32 words[8 * KS];
        UNROLL for (int k = 0; k < 16 * KS; k++) {
            u32 value = 0u;
            if (k < K && row < POSITIONS)
                value = corner[(k / (FILTER * FILTER) * HEIGHT + k / FILTER % FILTER) * WIDTH + k % FILTER];
            words[k / 2] = k % 2 ? words[k / 2] | value << 16 : value;
        }
        UNROLL for (int v = 0; v < 2 * KS; v++)
            *reinterpret_cast<uint4*>(shared + row * PITCH + 16 * v) =
                make_uint4(words[4 * v], words[4 * v + 1], words[4 * v + 2], words[4 * v + 3]);
    }
    block_barrier();
}

// Weights and bias of the thread's channels.
struct Layer {
    u32 weight[2][KS][4];
    float bias[4];
    // Left operand of a product.
    DEVICE uint4 left(int m, int s) const {
        return make_uint4(weight[m][s][0], weight[m][s][1], weight[m][s][2], weight[m][s][3]);
    }
    // Weight k = 8 n + column + j of channel i: the element that belongs to the thread's entry of a product over positions.
    DEVICE float at(int i, int n, int j) const {
        u32 pair = weight[i / 2][n / 2][2 * (n % 2) + i % 2];
        return j ? high(pair) : low(pair);
    }
};

// Product m has channels 2 m and 2 m + 1 of the thread's four in its rows lane / 4 and lane / 4 + 8.
DEVICE Layer load_layer(const float* weight, const float* bias, const Cell& c) {
    Layer layer;
    UNROLL for (int m = 0; m < 2; m++)
        UNROLL for (int s = 0; s < KS; s++)
            UNROLL for (int reg = 0; reg < 4; reg++) {
                int k = 16 * s + c.column + 8 * (reg / 2);
                const float* row = weight + (c.channel + 2 * m + reg % 2) * K;
                layer.weight[m][s][reg] = bf16_pair(k < K ? row[k] : 0.0f, k + 1 < K ? row[k + 1] : 0.0f);
            }
    UNROLL for (int i = 0; i < 4; i++) layer.bias[i] = bias[c.channel + i];
    return layer;
}

// Values before the norm: [half of a tile][channel pair][2 (channel of the pair) + (position of two)].
typedef float Values[2][2][4];

// x = start + W patch, at the 16 positions of a tile.
DEVICE void convolve(Values& x, const Layer& layer, const float (&start)[4], const char* patches, int tile, const Cell& c) {
    u32 b[2][2 * KS];
    const char* rows = patches + (16 * tile + c.lane % 8) * PITCH;
    if (KS == 2) {
        UNROLL for (int half = 0; half < 2; half++) {
            u32 loaded[4];
            ldmatrix(loaded, rows + 8 * half * PITCH + c.lane / 8 * 16);
            UNROLL for (int i = 0; i < 2 * KS; i++) b[half][i] = loaded[i];
        }
    } else {
        u32 loaded[4];
        ldmatrix(loaded, rows + c.lane / 16 * 8 * PITCH + c.lane / 8 % 2 * 16);
        UNROLL for (int i = 0; i < 4; i++) b[i / 2][i % 2] = loaded[i];
    }
    UNROLL for (int half = 0; half < 2; half++)
        UNROLL for (int m = 0; m < 2; m++) {
            UNROLL for (int i = 0; i < 4; i++) x[half][m][i] = start[2 * m + i / 2];
            UNROLL for (int s = 0; s < KS; s++) mma(x[half][m], layer.left(m, s), b[half][2 * s], b[half][2 * s + 1]);
        }
}

// The patches of a tile as the right operand of a product over positions: [n][position / 8] for k = 8 n to 8 n + 7.
typedef u32 Rights[2 * KS][2];

DEVICE void load_rights(Rights& right, const char* patches, int tile, const Cell& c) {
    UNROLL for (int s = 0; s < KS; s++) {
        u32 loaded[4];
        const char* row = patches + (16 * tile + c.lane / 8 % 2 * 8 + c.lane % 8) * PITCH + (2 * s + c.lane / 16) * 16;
        ldmatrix_transposed(loaded, row);
        UNROLL for (int i = 0; i < 4; i++) right[2 * s + i / 2][i % 2] = loaded[i];
    }
}

// The output's gradient at a tile: [half][position of two], zero after the last position. ``own`` points to the thread's first.
typedef Four Gradients[2][2];

DEVICE void load_gradients(Gradients& d, const Four* own, int tile, const Cell& c) {
    const Four* at = own + tile * (16 * OUT / 4);
    if (tile < POSITIONS / 16) {
        UNROLL for (int i = 0; i < 4; i++) d[i / 2][i % 2] = at[(8 * (i / 2) + i % 2) * (OUT / 4)];
    } else {
        UNROLL for (int i = 0; i < 4; i++) {
            d[i / 2][i % 2] = Four();
            if (c.valid(tile, i / 2, i % 2)) d[i / 2][i % 2] = at[(8 * (i / 2) + i % 2) * (OUT / 4)];
        }
    }
}

// The gradients where the ReLU is active (the mask is negative), as the left operand of a product over positions.
DEVICE uint4 active_gradients(const Gradients& d, const Values& mask, int m) {
    u32 word[4];
    UNROLL for (int i = 0; i < 4; i++) {
        u32 pair = permute_bytes(d[i / 2][0].pair[m], d[i / 2][1].pair[m], i % 2 ? 0x7632u : 0x5410u);
        word[i] = where_negative(pair, &mask[i / 2][m][2 * (i % 2)]);
    }
    return make_uint4(word[0], word[1], word[2], word[3]);
}

// Values k and k + 1 of a row, swizzled so that the accesses of a warp (four lanes per row) hit different banks.
DEVICE float2& pair_at(float* rows, int row, int k, const Cell& c) {
    return *reinterpret_cast<float2*>(rows + row * ROW + (k ^ 8 * (c.lane / 4 % (2 * KS))));
}

// Negates the weights of channels with a positive scale (relu_mask.cuh). A second call restores them.
DEVICE void flip_signs(Layer& layer, const float* scale, const Cell& c) {
    UNROLL for (int i = 0; i < 4; i++) {
        u32 mask = sign_flip(scale[c.channel + i]);
        UNROLL for (int n = 0; n < 2 * KS; n++) layer.weight[i / 2][n / 2][2 * (n % 2) + i % 2] ^= mask;
    }
}

// Sum over all positions of a block, per channel or group: `partial_sum` writes the warp's part to slot n, and after a barrier
// `total` adds the parts.
DEVICE void partial_sum(float v, float* sums, int n, int column, const Cell& c) {
    v = sum_over_four(v);
    if (c.lane % 4 == 0) sums[(n * SHARES + c.share) * OUT + column] = v;
}

DEVICE float total(const float* sums, int n, int column, const Cell& c) {
    float sum = 0.0f;
    UNROLL for (int s = 0; s < SHARES; s++) sum += sums[(n * SHARES + s) * OUT + column];
    return sum;
}

}  // namespace

