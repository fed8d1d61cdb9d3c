// Block floating point and check words on plain arrays. Must equal the numpy reference in
// hostlib/protocol/block_float.py bit for bit. Source: docs/protocol.md, "Numbers" and "Check word".
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/check_words.h"

namespace netfold {

// The dtypes of tensors. All are sent as blocks of int32 words; float16 and bfloat16 are computed as float32.
enum class DType : std::uint8_t { float32, float16, bfloat16, int32 };

constexpr std::size_t bytes_of(DType type) { return type == DType::float32 || type == DType::int32 ? 4 : 2; }

// `x` and `wire` below need not be aligned; arrays of one call must not overlap. `code` is an agreed code, which no
// rank's own code exceeds. world_size is in 1..512.

// Exponent code of a block of floats: 0 all zero, EXPONENT_SPECIAL with NaN or Inf inside, else e + EXPONENT_BIAS,
// max|x| < 2^e. Magnitude code of int32: EXPONENT_BIAS + bit length of the largest magnitude; 0 all zero.
std::uint16_t block_code(DType type, const void *x, std::size_t count);

// Whether the sum of `world_size` int32 tensors of this magnitude code might overflow int32.
bool may_overflow(std::uint16_t code, int world_size);

// `count` values -> `elements` wire words in network order (zeros after count), quantised under an agreed code for a
// sum over `world_size` ranks (int32: as they are). Returns the vector's part of the check word; `check` must have a
// weight for each of the elements.
std::uint32_t pack(DType type, const void *x, std::size_t count, std::uint8_t *wire, std::size_t elements,
                   std::uint16_t code, int world_size, const CheckWords &check);

// A received vector's part of the check word, and whether every element is what a sum may be.
struct Weighed {
    std::uint32_t part;
    bool possible;
};

// What the elements of a sum may be.
struct Limit {
    std::uint32_t magnitude;  // the largest
    int counting = 0;         // if not 0, they are counts of a special block's values on so many ranks
};

constexpr Limit ANY_WORD{std::uint32_t{1} << 31};

// Of a sum over `world_size` ranks under an agreed code: of a block, or of an int32 tensor.
Limit limit_of(DType type, std::uint16_t code, int world_size);

Weighed weigh(const std::uint8_t *wire, std::size_t elements, const Limit &limit, const CheckWords &check);

// The inverse, after the check word was verified: sum -> `count` values, divided by world_size when `average` (floats
// only).
void unpack(DType type, const std::uint8_t *wire, void *x, std::size_t count, std::uint16_t code, int world_size,
            bool average);

// The same two steps without network order, for the fallback over the hosts: int32 in host order.
void quantise(DType type, const void *x, std::int32_t *q, std::size_t count, std::uint16_t code, int world_size);
void dequantise(DType type, const std::int32_t *sum, void *x, std::size_t count, std::uint16_t code, int world_size,
                bool average);

}  // namespace netfold
