// Definitions that need no GPU instruction.

#define DEVICE __device__ __forceinline__

typedef unsigned int u32;
typedef unsigned short u16;

// A u32 often holds two bfloat16 values. These return its low and its high half as float32.
DEVICE float low(u32 pair) { return __uint_as_float(pair << 16); }
DEVICE float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
