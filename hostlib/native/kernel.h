// Block floating point and check words, on plain arrays. The numpy twins in hostlib/kernel.py are the oracle: equal
// bit for bit. Source: docs/protocol.md, "Numbers" and "Check word".
#pragma once

#include <cstddef>
#include <cstdint>

namespace netfold {

// Exponent code of a block: 0 all zero, EXPONENT_SPECIAL with NaN or Inf inside, else e + EXPONENT_BIAS, max|x| < 2^e.
std::uint16_t block_code(const float *x, std::size_t count);

// Code of an int32 tensor: EXPONENT_BIAS + bit length of the largest magnitude; 0 all zero.
std::uint16_t magnitude_code(const std::int32_t *x, std::size_t count);

// Whether the sum of `world_size` tensors of this magnitude code might not fit int32.
bool may_overflow(std::uint16_t code, int world_size);

// x -> q (host order) under an agreed code, for a sum over `world_size` ranks.
void quantise(const float *x, std::int32_t *q, std::size_t count, std::uint16_t code, int world_size);

// Sum of q -> float32; divided by world_size when `average`.
void dequantise(const std::int32_t *sum, float *x, std::size_t count, std::uint16_t code, int world_size, bool average);

// Host order -> wire, and the vector's part of the check word: sum of (2i + 1) * q[i] mod 2^32.
std::uint32_t pack(const std::int32_t *q, std::uint8_t *wire, std::size_t count);

// The way back.
std::uint32_t unpack(const std::uint8_t *wire, std::int32_t *q, std::size_t count);

}  // namespace netfold
