// What the sources of this folder share and plain C++ has too.

#define DEVICE __device__ __forceinline__

typedef unsigned int u32;
typedef unsigned short u16;

// The two bfloat16 values of a word.
DEVICE float low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
