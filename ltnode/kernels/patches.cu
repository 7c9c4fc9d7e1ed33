// The neighbourhoods that a convolution without padding looks at, as rows of a matrix: bfloat16 images (N, HEIGHT, WIDTH, CHANNELS)
// to (N, HEIGHT - SIZE + 1, WIDTH - SIZE + 1, COLUMNS), where a row is (SIZE, SIZE, CHANNELS) and then zeros. A thread writes
// eight columns.
//
// Defined by the host: HEIGHT, WIDTH, CHANNELS, SIZE (of the kernel, square), COLUMNS (a multiple of 8).

extern "C" __global__ void patches(const unsigned short* images, uint4* rows, int threads) {
    constexpr int PIECES = COLUMNS / 8, ACROSS = WIDTH - SIZE + 1, DOWN = HEIGHT - SIZE + 1;
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= threads) return;
    int piece = thread % PIECES, cell = thread / PIECES;
    int column = cell % ACROSS, line = cell / ACROSS % DOWN, image = cell / (ACROSS * DOWN);
    const unsigned short* corner = images + ((size_t(image) * HEIGHT + line) * WIDTH + column) * CHANNELS;
    unsigned int words[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        words[w] = 0u;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int at = 8 * piece + 2 * w + h;  // a line of the neighbourhood is SIZE * CHANNELS values side by side
            if (at < SIZE * SIZE * CHANNELS)
                words[w] |= (unsigned int)corner[at / (SIZE * CHANNELS) * (WIDTH * CHANNELS) + at % (SIZE * CHANNELS)] << 16 * h;
        }
    }
    rows[thread] = make_uint4(words[0], words[1], words[2], words[3]);
}
