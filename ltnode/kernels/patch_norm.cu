// A convolution of images with few channels, GroupNorm with two channels a group, and ReLU, in one kernel per direction.
//
// A block has one sample. Its neighbourhoods, POSITIONS rows of K = CHANNELS * SIZE^2 values, are a matrix in shared memory, and
// the convolution is a product with it: cheap enough to be made again in every sweep over the positions, so that the values
// before the norm never reach memory. Eight warps share the 32-channel parts and, 16 positions at a time, the positions. The
// rows of a warp's two mma tiles are permuted so that a thread holds four channels, two groups, side by side:
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
constexpr int PITCH = (2 * KS + 1) * 16;    // bytes of a row: an odd number of 16-byte pieces, so that eight rows never share a bank
constexpr int TILES = (POSITIONS + 15) / 16;
constexpr int PARTS = OUT / 32;
constexpr int SHARES = 8 / PARTS;           // warps that have the same channels and other positions
constexpr int GROUPS = OUT / 2;
constexpr int COUNT = 2 * POSITIONS;        // numbers of a group
constexpr int PATCH_BYTES = TILES * 16 * PITCH;
constexpr int GRADIENT_BYTES = SHARES * OUT * KS * 16 * 4;  // of the weight, in the place of the neighbourhoods
constexpr int SUMS_AT = PATCH_BYTES > GRADIENT_BYTES ? PATCH_BYTES : GRADIENT_BYTES;
constexpr int SUMS_BYTES = 8 * SHARES * OUT * 4;
constexpr int IMAGE_AT = SUMS_AT + SUMS_BYTES;

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
    for (int i = threadIdx.x; i < CHANNELS * HEIGHT * WIDTH; i += THREADS) image[i] = u16(bf16_pair(own[i], 0.0f));
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
    uint4 weight[2][KS];
    float bias[4];
};

// Tile m has channels 2 m and 2 m + 1 of the thread's four in its rows lane / 4 and lane / 4 + 8.
DEVICE Layer load_layer(const float* weight, const float* bias, const Cell& c) {
    Layer layer;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int s = 0; s < KS; s++) {
            u32 word[4];
#pragma unroll
            for (int reg = 0; reg < 4; reg++) {
                int k = 16 * s + c.column + 8 * (reg / 2);
                const float* row = weight + (c.channel + 2 * m + reg % 2) * K;
                word[reg] = bf16_pair(k < K ? row[k] : 0.0f, k + 1 < K ? row[k + 1] : 0.0f);
            }
            layer.weight[m][s] = make_uint4(word[0], word[1], word[2], word[3]);
        }
#pragma unroll
    for (int i = 0; i < 4; i++) layer.bias[i] = bias[c.channel + i];
    return layer;
}

// Values before the norm: [half of 8 positions][two channels][2 (channel of the two) + (position of the two)].
typedef float Values[2][2][4];

DEVICE void convolve(Values& x, const Layer& layer, const char* patches, int tile, const Cell& c) {
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
            for (int i = 0; i < 4; i++) x[half][m][i] = layer.bias[2 * m + i / 2];
#pragma unroll
            for (int s = 0; s < KS; s++) mma(x[half][m], layer.weight[m][s], b[half][2 * s], b[half][2 * s + 1]);
        }
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

// out (N, POSITIONS, OUT) in bfloat16; means and rstds (N, GROUPS) for the backward pass. images (N, CHANNELS, HEIGHT, WIDTH),
// weight (OUT, K).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    patch_norm_forward(const float* images, const float* weight, const float* bias, const float* scale, const float* shift,
                       float eps, u32* out, float* means, float* rstds) {
    SHARED_MEMORY(shared);
    float* sums = reinterpret_cast<float*>(shared + SUMS_AT);
    const Cell c = cell();
    const int group = c.channel / 2;
    const Layer layer = load_layer(weight, bias, c);
    write_patches(shared, images);

    // Sums of x - s and its square, with s a value of the group: no cancellation where the mean is large.
    float near[2] = {0.0f, 0.0f}, sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f}, count = 0.0f;
    for (int tile = c.share; tile < TILES; tile += SHARES) {
        Values x;
        convolve(x, layer, shared, tile, c);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!c.valid(tile, half, e)) continue;
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    if (count == 0.0f) near[m] = x[half][m][e];
                    float first = x[half][m][e] - near[m], second = x[half][m][2 + e] - near[m];
                    sum[m] += first + second;
                    squares[m] += first * first + second * second;
                }
                count += 2.0f;
            }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) deposit(count * near[m] + sum[m], sums, 0, group + m, c);
    block_barrier();
    float mean[2], rstd[2];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        mean[m] = total(sums, 0, group + m, c) * (1.0f / COUNT);
        float off = mean[m] - near[m];
        deposit(squares[m] + off * (count * off - 2.0f * sum[m]), sums, 1, group + m, c);
    }
    block_barrier();
#pragma unroll
    for (int m = 0; m < 2; m++) {
        rstd[m] = rsqrtf(total(sums, 1, group + m, c) * (1.0f / COUNT) + eps);
        if (c.share == 0 && c.lane % 4 == 0) {
            means[c.sample * GROUPS + group + m] = mean[m];
            rstds[c.sample * GROUPS + group + m] = rstd[m];
        }
    }

    float slope[4], level[4];  // relu(slope x + level)
#pragma unroll
    for (int i = 0; i < 4; i++) {
        slope[i] = rstd[i / 2] * scale[c.channel + i];
        level[i] = shift[c.channel + i] - mean[i / 2] * slope[i];
    }
    for (int tile = c.share; tile < TILES; tile += SHARES) {
        Values x;
        convolve(x, layer, shared, tile, c);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!c.valid(tile, half, e)) continue;
                Four y;
#pragma unroll
                for (int m = 0; m < 2; m++)
                    y.pair[m] = bf16_pair(fmaxf(slope[2 * m] * x[half][m][e] + level[2 * m], 0.0f),
                                          fmaxf(slope[2 * m + 1] * x[half][m][2 + e] + level[2 * m + 1], 0.0f));
                *reinterpret_cast<Four*>(out + c.at(tile, half, e)) = y;
            }
    }
}

// gradients (N, OUT (3 + K)): per sample those of scale, shift, bias and weight. d_out like out.
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    patch_norm_backward(const float* images, const float* weight, const float* bias, const float* scale, const float* shift,
                        const float* means, const float* rstds, const u32* d_out, float* gradients) {
    SHARED_MEMORY(shared);
    float* sums = reinterpret_cast<float*>(shared + SUMS_AT);
    const Cell c = cell();
    const Layer layer = load_layer(weight, bias, c);
    float mean[2], rstd[2], g[4], b[4];
#pragma unroll
    for (int m = 0; m < 2; m++) {
        mean[m] = means[c.sample * GROUPS + c.channel / 2 + m];
        rstd[m] = rstds[c.sample * GROUPS + c.channel / 2 + m];
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        g[i] = scale[c.channel + i];
        b[i] = shift[c.channel + i];
    }
    write_patches(shared, images);

    float sum_d[4] = {0.0f, 0.0f, 0.0f, 0.0f}, sum_dn[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int tile = c.share; tile < TILES; tile += SHARES) {
        Values x;
        convolve(x, layer, shared, tile, c);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                if (!c.valid(tile, half, e)) continue;
                Four d = *reinterpret_cast<const Four*>(d_out + c.at(tile, half, e));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float normal = (x[half][i / 2][2 * (i % 2) + e] - mean[i / 2]) * rstd[i / 2];
                    float open = normal * g[i] + b[i] > 0.0f ? (i % 2 ? high(d.pair[i / 2]) : low(d.pair[i / 2])) : 0.0f;
                    sum_d[i] += open;
                    sum_dn[i] += open * normal;
                }
            }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        deposit(sum_d[i], sums, 0, c.channel + i, c);
        deposit(sum_dn[i], sums, 1, c.channel + i, c);
    }
    block_barrier();
    float* own = gradients + size_t(c.sample) * OUT * (3 + K);
    float mean_d[2] = {0.0f, 0.0f}, mean_dn[2] = {0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float d = total(sums, 0, c.channel + i, c), dn = total(sums, 1, c.channel + i, c);
        mean_d[i / 2] += d * g[i] * (1.0f / COUNT);
        mean_dn[i / 2] += dn * g[i] * (1.0f / COUNT);
        if (c.share == 0 && c.lane % 4 == 0) {
            own[c.channel + i] = dn;
            own[OUT + c.channel + i] = d;
        }
    }

    float d_weight[2][2 * KS][4], d_bias[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2 * KS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) d_weight[m][n][i] = 0.0f;
    for (int tile = c.share; tile < TILES; tile += SHARES) {
        Values x;
        convolve(x, layer, shared, tile, c);
#pragma unroll
        for (int half = 0; half < 2; half++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const bool valid = c.valid(tile, half, e);
                Four d = Four();
                if (valid) d = *reinterpret_cast<const Four*>(d_out + c.at(tile, half, e));
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float& v = x[half][i / 2][2 * (i % 2) + e];
                    float normal = (v - mean[i / 2]) * rstd[i / 2];
                    float open = normal * g[i] + b[i] > 0.0f ? (i % 2 ? high(d.pair[i / 2]) : low(d.pair[i / 2])) : 0.0f;
                    v = valid ? rstd[i / 2] * (open * g[i] - mean_d[i / 2] - normal * mean_dn[i / 2]) : 0.0f;
                    d_bias[i] += v;
                }
            }
        uint4 left[2];
#pragma unroll
        for (int m = 0; m < 2; m++)
            left[m] = make_uint4(bf16_pair(x[0][m][0], x[0][m][1]), bf16_pair(x[0][m][2], x[0][m][3]),
                                 bf16_pair(x[1][m][0], x[1][m][1]), bf16_pair(x[1][m][2], x[1][m][3]));
#pragma unroll
        for (int s = 0; s < KS; s++) {
            u32 right[4];
            const char* row = shared + (16 * tile + c.lane / 8 % 2 * 8 + c.lane % 8) * PITCH + (2 * s + c.lane / 16) * 16;
            load_matrices_transposed(right, row);
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int n = 0; n < 2; n++) mma(d_weight[m][2 * s + n], left[m], right[2 * n], right[2 * n + 1]);
        }
    }
    block_barrier();  // the neighbourhoods are no longer read
    float* parts = reinterpret_cast<float*>(shared);  // (SHARES, OUT, 16 KS)
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < 2 * KS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int channel = c.channel + 2 * m + i / 2, k = 8 * n + c.column + i % 2;
                parts[(c.share * OUT + channel) * 16 * KS + k] = d_weight[m][n][i];
            }
#pragma unroll
    for (int i = 0; i < 4; i++) deposit(d_bias[i], sums, 2, c.channel + i, c);
    block_barrier();
    for (int i = threadIdx.x; i < OUT * K; i += THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int s = 0; s < SHARES; s++) sum += parts[(s * OUT + i / K) * 16 * KS + i % K];
        own[3 * OUT + i] = sum;
    }
    if (c.share == 0 && c.lane % 4 == 0)
#pragma unroll
        for (int i = 0; i < 4; i++) own[2 * OUT + c.channel + i] = total(sums, 2, c.channel + i, c);
}
