#include "kernel.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "layout.h"

namespace netfold {
namespace {

constexpr int SUM_BITS = 30;                    // no sum exceeds 2^30: one bit to spare below int32's sign
constexpr std::int32_t COUNT_PLUS_INF = 1;      // special blocks carry counts, 10 bits each
constexpr std::int32_t COUNT_MINUS_INF = 1 << 10;
constexpr std::int32_t COUNT_NAN = 1 << 20;
constexpr std::int32_t COUNT_MASK = (1 << 10) - 1;

int headroom(int world_size) {
    int bits = 0;
    while ((1 << bits) < world_size) bits++;
    return bits;
}

// 2^s as two factors that float32 can hold; s is within -100..178 for every code and world size.
struct Scale {
    float first, second;
    explicit Scale(int s) : first(std::ldexp(1.0f, s / 2)), second(std::ldexp(1.0f, s - s / 2)) {}
};

int shift(std::uint16_t code, int world_size) {
    return SUM_BITS - headroom(world_size) - (int{code} - int{layout::EXPONENT_BIAS});
}

std::int32_t special_count(float x) {
    if (std::isnan(x)) return COUNT_NAN;
    if (std::isinf(x)) return x > 0 ? COUNT_PLUS_INF : COUNT_MINUS_INF;
    return 0;
}

float special_value(std::int32_t counts) {
    bool plus = (counts & COUNT_MASK) != 0, minus = ((counts >> 10) & COUNT_MASK) != 0, nan = (counts >> 20) != 0;
    if (nan || plus == minus) return std::numeric_limits<float>::quiet_NaN();
    return plus ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity();
}

}  // namespace

std::uint16_t block_code(const float *x, std::size_t count) {
    // The bit patterns of magnitudes order like the magnitudes, with NaN and Inf on top.
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; i++) {
        std::uint32_t bits;
        std::memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    if (largest == 0) return layout::EXPONENT_ZERO;
    if (largest >= 0x7f800000u) return layout::EXPONENT_SPECIAL;
    float value;
    std::memcpy(&value, &largest, sizeof value);
    int exponent;
    std::frexp(value, &exponent);
    return static_cast<std::uint16_t>(exponent + layout::EXPONENT_BIAS);
}

std::uint16_t magnitude_code(const std::int32_t *x, std::size_t count) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; i++) {
        std::uint32_t magnitude = x[i] < 0 ? 0u - static_cast<std::uint32_t>(x[i]) : static_cast<std::uint32_t>(x[i]);
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest == 0) return layout::EXPONENT_ZERO;
    return static_cast<std::uint16_t>(layout::EXPONENT_BIAS + (32 - __builtin_clz(largest)));
}

bool may_overflow(std::uint16_t code, int world_size) {
    return code != layout::EXPONENT_ZERO && code - layout::EXPONENT_BIAS + headroom(world_size) > 31;
}

void quantise(const float *x, std::int32_t *q, std::size_t count, std::uint16_t code, int world_size) {
    if (code == layout::EXPONENT_ZERO) {
        std::memset(q, 0, count * sizeof *q);
        return;
    }
    if (code == layout::EXPONENT_SPECIAL) {
        for (std::size_t i = 0; i < count; i++) q[i] = special_count(x[i]);
        return;
    }
    const Scale scale(shift(code, world_size));
    // The magic-number form of rint would change the rounding of large values; this one compiles to cvtps2dq.
    for (std::size_t i = 0; i < count; i++)
        q[i] = static_cast<std::int32_t>(__builtin_rintf(x[i] * scale.first * scale.second));
}

void dequantise(const std::int32_t *sum, float *x, std::size_t count, std::uint16_t code, int world_size,
                bool average) {
    if (code == layout::EXPONENT_ZERO) {
        std::memset(x, 0, count * sizeof *x);
        return;
    }
    if (code == layout::EXPONENT_SPECIAL) {
        for (std::size_t i = 0; i < count; i++) x[i] = special_value(sum[i]);
        return;
    }
    const Scale scale(-shift(code, world_size));
    const float ranks = static_cast<float>(world_size);
    if (average) {
        for (std::size_t i = 0; i < count; i++)
            x[i] = static_cast<float>(sum[i]) * scale.first * scale.second / ranks;
    } else {
        for (std::size_t i = 0; i < count; i++) x[i] = static_cast<float>(sum[i]) * scale.first * scale.second;
    }
}

std::uint32_t pack(const std::int32_t *q, std::uint8_t *wire, std::size_t count) {
    std::uint32_t check = 0;
    for (std::size_t i = 0; i < count; i++) {
        const std::uint32_t value = static_cast<std::uint32_t>(q[i]), swapped = __builtin_bswap32(value);
        check += (2 * static_cast<std::uint32_t>(i) + 1) * value;
        std::memcpy(wire + 4 * i, &swapped, 4);
    }
    return check;
}

std::uint32_t unpack(const std::uint8_t *wire, std::int32_t *q, std::size_t count) {
    std::uint32_t check = 0;
    for (std::size_t i = 0; i < count; i++) {
        std::uint32_t value;
        std::memcpy(&value, wire + 4 * i, 4);
        value = __builtin_bswap32(value);
        check += (2 * static_cast<std::uint32_t>(i) + 1) * value;
        q[i] = static_cast<std::int32_t>(value);
    }
    return check;
}

}  // namespace netfold
