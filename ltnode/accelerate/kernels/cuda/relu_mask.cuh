// ReLU masks from the sign bit of a GEMM result, for the backward passes of patch_norm.cu and stem_gradients.cu.
//
// The ReLU is active where slope x' + shift > 0, with x' = W patch + bias - mean and slope = rstd scale; that is, where x' +
// shift / slope has the sign of the slope. The GEMM runs with the rows of W negated where the scale is positive (`sign_flip`) and
// starts from `mask_start`. Its result is then negative exactly where the ReLU is active, and never a negative zero elsewhere.

namespace {

// Initial accumulator of a channel. With a slope of zero, the sign of the shift decides.
DEVICE float mask_start(float bias, float mean, float rstd, float scale, float shift) {
    const float slope = rstd * scale, from = bias - mean + shift / slope;
    if (slope == 0.0f) return shift > 0.0f ? -1e38f : 1e38f;
    return slope > 0.0f ? 0.0f - from : 0.0f + from;
}

// XOR mask that negates two bfloat16 weights of a channel with a positive scale.
DEVICE u32 sign_flip(float scale) { return scale > 0.0f ? 0x80008000u : 0u; }

// Keeps each of two bfloat16 values where the corresponding mask value is negative, and returns zero elsewhere.
DEVICE u32 where_negative(u32 pair, const float* mask) {
    return pair & permute_bytes(__float_as_uint(mask[0]), __float_as_uint(mask[1]), 0xffbbu);
}

}  // namespace

