// Definitions without PTX, which also compile for a CPU.

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")

typedef unsigned int u32;
typedef unsigned short u16;

// A u32 often holds two bfloat16 values. These return its low and its high half as float32.
DEVICE float low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

// Writes the components of a float4 or uint4 to four values of an array.
template <typename Number, typename Vector>
DEVICE void unpack(Number* to, Vector v) {
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

template <int N>
DEVICE void zero(float (&sums)[N][4]) {
    UNROLL for (int i = 0; i < 4 * N; i++) sums[i / 4][i % 4] = 0.0f;
}

// Sum over the four lanes with the same lane / 4.
DEVICE float shuffle_xor(float x, int distance);
DEVICE float sum_over_four(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

// The element of the weight matrices that a packed 32-bit word holds: tap, channel of its row, the first of two values of k.
struct Origin {
    int tap, row, k;
};
