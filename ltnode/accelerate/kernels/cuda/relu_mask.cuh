// Where ReLU was open, from the sign of a number that a product makes. Its input is slope x' + shift, with x' = x - mean and
// slope = rstd scale.

namespace {

// What the product of the weight and a neighbourhood begins with. Where ReLU is open, x' + shift / slope has the sign of the
// slope; the weight's rows with a positive scale have the other sign (`turned_signs`), so that the sum is negative there, and no
// negative zero elsewhere. A slope of zero leaves the sign of the shift.
DEVICE float turned_start(float bias, float mean, float rstd, float scale, float shift) {
    const float slope = rstd * scale, from = bias - mean + shift / slope;
    if (slope == 0.0f) return shift > 0.0f ? -1e38f : 1e38f;
    return slope > 0.0f ? 0.0f - from : 0.0f + from;
}

DEVICE u32 turned_signs(float scale) { return scale > 0.0f ? 0x80008000u : 0u; }

// Two bfloat16 values where two others are negative, zero elsewhere.
DEVICE u32 where_negative(u32 pair, const float* two) {
    return pair & bytes(__float_as_uint(two[0]), __float_as_uint(two[1]), 0xffbbu);
}

}  // namespace

