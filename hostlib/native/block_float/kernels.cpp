// The loops, compiled once for each kind of CPU (CMakeLists.txt); NETFOLD_KERNELS is the namespace of this variant.
#include "block_float/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __F16C__
#include <immintrin.h>
#endif

#include "wire/layout.h"

#ifndef NETFOLD_KERNELS
#define NETFOLD_KERNELS baseline
#endif

namespace netfold::NETFOLD_KERNELS {
// No function here may be shared with a file compiled for another CPU: all are local to this file, and standard library
// functions are inlined (tests/process/hostlib/test_instruction_sets.py).
namespace {

constexpr int SUM_BITS = 30;  // of LARGEST_SUM
constexpr std::int32_t COUNT_PLUS_INF = 1;
constexpr std::int32_t COUNT_MINUS_INF = 1 << COUNT_SHIFT;
constexpr std::int32_t COUNT_NAN = 1 << 2 * COUNT_SHIFT;
constexpr std::int32_t COUNT_MASK = (1 << COUNT_SHIFT) - 1;
#ifdef __F16C__
constexpr int NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
constexpr std::size_t STAGE = 256;  // float16 is converted this many at a time, within L1
#endif

// With memcpy, because a packet's payload and a bucket's slice need not be aligned.
template <class T>
T load(const void *p, std::size_t i) {
    T value;
    std::memcpy(&value, static_cast<const std::uint8_t *>(p) + i * sizeof value, sizeof value);
    return value;
}

template <class T>
void store(void *p, std::size_t i, T value) {
    std::memcpy(static_cast<std::uint8_t *>(p) + i * sizeof value, &value, sizeof value);
}

// --- half types, as loops read and write them

struct BFloat16 {
    std::uint16_t bits;
    BFloat16() = default;
    // To nearest even. The only NaN that dequantising makes keeps its bits: it needs no rounding.
    explicit BFloat16(float x) {
        const auto wide = std::bit_cast<std::uint32_t>(x);
        bits = static_cast<std::uint16_t>((wide + 0x7fffu + (wide >> 16 & 1u)) >> 16);
    }
    operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }
};

struct Float16 {
    std::uint16_t bits;
    Float16() = default;
#ifdef __F16C__
    explicit Float16(float x) : bits(_cvtss_sh(x, NEAREST)) {}
    operator float() const { return _cvtsh_ss(bits); }
#else
    explicit Float16(float x) {
        const auto wide = std::bit_cast<std::uint32_t>(x), magnitude = wide & 0x7fffffffu;
        // Adding 0.5 leaves exactly the bits of a denormal half in float32, rounded to nearest even by the addition.
        const auto tiny = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
        const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
        const std::uint32_t huge = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
        const std::uint32_t half = magnitude < 0x38800000u ? tiny : magnitude < 0x47800000u ? normal : huge;
        bits = static_cast<std::uint16_t>(half | (wide >> 16 & 0x8000u));
    }
    operator float() const {
        // The exponent moves to float32's bias by an exact multiplication, which normalises denormals on its way.
        const std::uint32_t magnitude = bits & 0x7fffu, sign = (bits & 0x8000u) << 16;
        const float moved = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
        const std::uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(moved) | special | sign);
    }
#endif
};

#ifdef __F16C__
#ifdef __AVX512F__
constexpr __mmask16 ALL = 0xffff;  // gcc 12 warns about the intrinsics without a mask
#endif

// Explicit and in a pass of its own: gcc 12 vectorises neither F16C's single conversions nor those of _Float16.
void widen(const void *__restrict x, float *__restrict out, std::size_t count) {
    std::size_t i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16) _mm512_storeu_ps(out + i, _mm512_maskz_cvtph_ps(ALL, load<__m256i>(x, i / 16)));
#endif
    for (; i + 8 <= count; i += 8) _mm256_storeu_ps(out + i, _mm256_cvtph_ps(load<__m128i>(x, i / 8)));
    for (; i < count; i++) out[i] = load<Float16>(x, i);
}

void narrow(const float *__restrict x, void *__restrict out, std::size_t count) {
    std::size_t i = 0;
#ifdef __AVX512F__
    for (; i + 16 <= count; i += 16) store(out, i / 16, _mm512_maskz_cvtps_ph(ALL, _mm512_loadu_ps(x + i), NEAREST));
#endif
    for (; i + 8 <= count; i += 8) store(out, i / 8, _mm256_cvtps_ph(_mm256_loadu_ps(x + i), NEAREST));
    for (; i < count; i++) store(out, i, Float16(x[i]));
}
#endif

// --- vectors, for what gcc 12 does not vectorise well by itself: products of 32 bits by 32

#if defined(__AVX512F__)
#define NETFOLD_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define NETFOLD_VECTOR_BYTES 32
#endif

#ifdef NETFOLD_VECTOR_BYTES
constexpr std::size_t LANES = NETFOLD_VECTOR_BYTES / 4;
using Words = std::uint32_t __attribute__((vector_size(NETFOLD_VECTOR_BYTES)));
using Wide = std::uint64_t __attribute__((vector_size(NETFOLD_VECTOR_BYTES)));
using Floats = float __attribute__((vector_size(NETFOLD_VECTOR_BYTES)));
using Halves = std::uint16_t __attribute__((vector_size(NETFOLD_VECTOR_BYTES / 2)));
using Bytes = std::uint8_t __attribute__((vector_size(NETFOLD_VECTOR_BYTES)));

#ifdef __AVX512F__
// Of the lower 32 bits of each 64.
Wide product(Words a, Words b) { return Wide(_mm512_maskz_mul_epu32(0xff, __m512i(a), __m512i(b))); }
Words nearest(Floats x) { return Words(_mm512_maskz_cvtps_epi32(ALL, __m512(x))); }
Words shuffled(Words words, Bytes from) {
    return Words(_mm512_maskz_shuffle_epi8(~__mmask64{0}, __m512i(words), __m512i(from)));
}
#else
Wide product(Words a, Words b) { return Wide(_mm256_mul_epu32(__m256i(a), __m256i(b))); }
Words nearest(Floats x) { return Words(_mm256_cvtps_epi32(__m256(x))); }
Words shuffled(Words words, Bytes from) { return Words(_mm256_shuffle_epi8(__m256i(words), __m256i(from))); }
#endif

Words swapped(Words words) {
    Bytes from{};
    for (std::size_t i = 0; i < sizeof from; i++)
        from[i] = static_cast<std::uint8_t>((i % 16) ^ 3);  // of 16 bytes each
    return shuffled(words, from);
}

Words larger(Words a, Words b) { return a > b ? a : b; }

// The products of words by weights, summed: those of even and of odd words side by side.
class Summed {
public:
    explicit Summed(bool pairs_fit) : pairs_fit_(pairs_fit) {}

    // Reads a weight more than there are lanes.
    void add(Words words, const std::uint32_t *weights) {
        const Wide even = product(words, load<Words>(weights, 0));
        const Wide odd = product(Words(Wide(words) >> 32), load<Words>(weights + 1, 0));
        if (pairs_fit_) {
            take(even + odd);
        } else {
            take(even);
            take(odd);
        }
    }

    Products products() const {
        Products sum;
        for (std::size_t i = 0; i < LANES / 2; i++) {
            sum.whole += whole_[i];
            sum.high += high_[i];
        }
        return sum;
    }

private:
    void take(Wide product) {
        whole_ += product;
        high_ += product >> 32;
    }

    bool pairs_fit_;
    Wide whole_{}, high_{};
};
#endif

// --- one value -> one word, and one word of the sum -> one value

int headroom(int world_size) { return std::bit_width(static_cast<unsigned>(world_size - 1)); }

// 2^s as two factors that float32 can hold; s is within -107..178 for every code and world size, and a damaged code
// must not cause undefined behaviour. Built from bits: a call of ldexp takes as long as 100 bytes of the block.
struct Scale {
    float first, second;
    explicit Scale(int s) {
        s = std::clamp(s, -252, 252);
        first = power_of_two(s / 2);
        second = power_of_two(s - s / 2);
    }
    static float power_of_two(int s) { return std::bit_cast<float>(static_cast<std::uint32_t>(127 + s) << 23); }
};

int shift(std::uint16_t code, int world_size) {
    return SUM_BITS - headroom(world_size) - (int{code} - int{layout::EXPONENT_BIAS});
}

// Maps that also take vectors have `Vector`, the type of those.
struct Same {
    std::int32_t operator()(std::int32_t x) const { return x; }
#ifdef NETFOLD_VECTOR_BYTES
    using Vector = Words;
    Words operator()(Words x) const { return x; }
#endif
};

struct Quantised {
    Scale scale;
    // rint's usual magic-number form would change the rounding of large values; these compile to cvtps2dq.
    std::int32_t operator()(float x) const {
#ifdef __clang__
        return static_cast<std::int32_t>(__builtin_lrintf(x * scale.first * scale.second));
#else
        return __builtin_irintf(x * scale.first * scale.second);
#endif
    }
#ifdef NETFOLD_VECTOR_BYTES
    using Vector = Floats;
    Words operator()(Floats x) const { return nearest(x * scale.first * scale.second); }
#endif
};

struct Counted {
    std::int32_t operator()(float x) const {
        const std::int32_t infinite = x > 0 ? COUNT_PLUS_INF : COUNT_MINUS_INF;
        return std::isnan(x) ? COUNT_NAN : std::isinf(x) ? infinite : 0;
    }
};

struct Scaled {
    Scale scale;
    float part;  // scale of the sum: 1, or 1 / n for an average over n = 2^k, where multiplying is as exact as dividing
    float operator()(std::int32_t sum) const { return static_cast<float>(sum) * scale.first * scale.second * part; }
};

struct Averaged {
    Scale scale;
    float ranks;
    float operator()(std::int32_t sum) const { return static_cast<float>(sum) * scale.first * scale.second / ranks; }
};

struct Special {
    float operator()(std::int32_t counts) const {
        const bool plus = (counts & COUNT_MASK) != 0, minus = (counts >> 10 & COUNT_MASK) != 0, nan = counts >> 20 != 0;
        const float infinity = std::numeric_limits<float>::infinity();
        return nan || plus == minus ? std::numeric_limits<float>::quiet_NaN() : plus ? infinity : -infinity;
    }
};

// --- loops; all of them vectorise. `words` are in network order, or in the host's.

enum class Order { host, network };

template <Order ORDER>
std::uint32_t ordered(std::uint32_t word) {
    return ORDER == Order::network ? __builtin_bswap32(word) : word;
}

template <class T, class Map>
void encode(const void *__restrict x, void *__restrict words, std::size_t count, const Map map) {
    for (std::size_t i = 0; i < count; i++) store(words, i, map(load<T>(x, i)));
}

void count_in(Products &sum, std::uint64_t product) {
    sum.whole += product;
    sum.high += product >> 32;
}

#ifdef NETFOLD_VECTOR_BYTES
template <class T>
auto load_vector(const void *x, std::size_t i) {
    const void *from = static_cast<const std::uint8_t *>(x) + i * sizeof(T);
    if constexpr (std::is_same_v<T, float>)
        return load<Floats>(from, 0);
    else if constexpr (std::is_same_v<T, BFloat16>)
        return Floats(__builtin_convertvector(load<Halves>(from, 0), Words) << 16);
    else
        return load<Words>(from, 0);
}
#endif

// In network order, and weighed for the check word.
template <class T, class Map>
Products encode(const void *__restrict x, void *__restrict wire, std::size_t count, const Weights weights,
                const Map map) {
    std::size_t i = 0;
    Products sum;
#ifdef NETFOLD_VECTOR_BYTES
    if constexpr (requires { typename Map::Vector; }) {
        Summed summed(weights.pairs_fit);
        for (; i + LANES <= count; i += LANES) {
            const Words words = map(load_vector<T>(x, i));
            summed.add(words + PACKED_OFFSET, weights.of + i);
            store(wire, i / LANES, swapped(words));
        }
        sum = summed.products();
    }
#endif
    for (; i < count; i++) {
        const auto word = static_cast<std::uint32_t>(map(load<T>(x, i)));
        count_in(sum, std::uint64_t{weights.of[i]} * (word + PACKED_OFFSET));
        store(wire, i, ordered<Order::network>(word));
    }
    return sum;
}

template <Order ORDER, class T, class Map>
void decode(const void *__restrict words, void *__restrict x, std::size_t count, const Map map) {
    for (std::size_t i = 0; i < count; i++)
        store(x, i, T(map(static_cast<std::int32_t>(ordered<ORDER>(load<std::uint32_t>(words, i))))));
}

// Calls convert<T>(x, start, count) for all of a block's values, once or piece by piece.
template <class Convert>
void in_pieces(DType type, const void *x, std::size_t count, const Convert convert) {
    if (type == DType::float32) return convert.template operator()<float>(x, 0, count);
    if (type == DType::bfloat16) return convert.template operator()<BFloat16>(x, 0, count);
#ifdef __F16C__
    alignas(64) float stage[STAGE];
    for (std::size_t start = 0; start < count; start += STAGE) {
        const std::size_t size = std::min(STAGE, count - start);
        widen(static_cast<const std::uint8_t *>(x) + 2 * start, stage, size);
        convert.template operator()<float>(stage, start, size);
    }
#else
    convert.template operator()<Float16>(x, 0, count);
#endif
}

template <class Map>
void encode_floats(DType type, const void *x, std::int32_t *words, std::size_t count, const Map map) {
    in_pieces(type, x, count, [=]<class T>(const void *piece, std::size_t start, std::size_t size) {
        encode<T>(piece, words + start, size, map);
    });
}

template <class Map>
Products encode_floats(DType type, const void *x, std::uint8_t *wire, std::size_t count, const Weights weights,
                       const Map map) {
    Products sum;
    in_pieces(type, x, count, [=, &sum]<class T>(const void *piece, std::size_t start, std::size_t size) {
        const Weights its{weights.of + start, weights.pairs_fit};
        const Products of_piece = encode<T>(piece, wire + 4 * start, size, its, map);
        sum.whole += of_piece.whole;
        sum.high += of_piece.high;
    });
    return sum;
}

template <Order ORDER, class Map>
void decode_floats(DType type, const void *words, void *x, std::size_t count, const Map map) {
    if (type == DType::float32) return decode<ORDER, float>(words, x, count, map);
    if (type == DType::bfloat16) return decode<ORDER, BFloat16>(words, x, count, map);
#ifdef __F16C__
    alignas(64) float stage[STAGE];
    for (std::size_t start = 0; start < count; start += STAGE) {
        const std::size_t size = std::min(STAGE, count - start);
        decode<ORDER, float>(static_cast<const std::uint8_t *>(words) + 4 * start, stage, size, map);
        narrow(stage, static_cast<std::uint8_t *>(x) + 2 * start, size);
    }
#else
    decode<ORDER, Float16>(words, x, count, map);
#endif
}

void zero(void *p, std::size_t bytes) { std::fill_n(static_cast<std::uint8_t *>(p), bytes, std::uint8_t{0}); }

template <Order ORDER>
void decode_block(DType type, const void *words, void *x, std::size_t count, std::uint16_t code, int world_size,
                  bool average) {
    if (type == DType::int32) return decode<ORDER, std::int32_t>(words, x, count, Same{});
    if (code == layout::EXPONENT_SPECIAL) return decode_floats<ORDER>(type, words, x, count, Special{});
    if (code == layout::EXPONENT_ZERO) return zero(x, bytes_of(type) * count);
    const Scale scale(-shift(code, world_size));
    const auto ranks = static_cast<float>(world_size);
    if (average && !std::has_single_bit(static_cast<unsigned>(world_size)))
        return decode_floats<ORDER>(type, words, x, count, Averaged{scale, ranks});
    decode_floats<ORDER>(type, words, x, count, Scaled{scale, average ? 1 / ranks : 1});
}

// The bit patterns of magnitudes order like the magnitudes, with NaN and Inf on top.
template <class Bits>
Bits largest_magnitude(const void *x, std::size_t count) {
    constexpr Bits MAGNITUDE = std::numeric_limits<Bits>::max() >> 1;
    Bits largest = 0;
    for (std::size_t i = 0; i < count; i++) {
        const Bits bits = load<Bits>(x, i) & MAGNITUDE;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

std::uint16_t magnitude_code(const void *x, std::size_t count) {
    std::uint32_t largest = 0;
    for (std::size_t i = 0; i < count; i++) {
        const auto value = load<std::int32_t>(x, i);
        const auto bits = static_cast<std::uint32_t>(value), magnitude = value < 0 ? 0u - bits : bits;
        largest = magnitude > largest ? magnitude : largest;
    }
    if (largest == 0) return layout::EXPONENT_ZERO;
    return static_cast<std::uint16_t>(layout::EXPONENT_BIAS + std::bit_width(largest));
}

std::uint16_t block_code(DType type, const void *x, std::size_t count) {
    if (type == DType::int32) return magnitude_code(x, count);
    std::uint32_t bits;
    if (type == DType::float32) {
        bits = largest_magnitude<std::uint32_t>(x, count);
    } else {
        const auto half = largest_magnitude<std::uint16_t>(x, count);
        bits = std::bit_cast<std::uint32_t>(type == DType::bfloat16 ? float{std::bit_cast<BFloat16>(half)}
                                                                    : float{std::bit_cast<Float16>(half)});
    }
    if (bits == 0) return layout::EXPONENT_ZERO;
    if (bits >= 0x7f800000u) return layout::EXPONENT_SPECIAL;
    // frexp's exponent; a denormal's is the position of its highest bit.
    const int exponent = bits >> 23 != 0 ? static_cast<int>(bits >> 23) - 126 : std::bit_width(bits) - 149;
    return static_cast<std::uint16_t>(exponent + layout::EXPONENT_BIAS);
}

bool may_overflow(std::uint16_t code, int world_size) {
    return code != layout::EXPONENT_ZERO && code - layout::EXPONENT_BIAS + headroom(world_size) > 31;
}

Products pack(DType type, const void *x, std::size_t count, std::uint8_t *wire, std::size_t elements,
              std::uint16_t code, int world_size, const Weights weights) {
    if (count < elements) zero(wire + 4 * count, 4 * (elements - count));
    if (type == DType::int32) return encode<std::int32_t>(x, wire, count, weights, Same{});
    if (code == layout::EXPONENT_SPECIAL) return encode_floats(type, x, wire, count, weights, Counted{});
    if (code == layout::EXPONENT_ZERO) return zero(wire, 4 * count), Products{};
    return encode_floats(type, x, wire, count, weights, Quantised{Scale(shift(code, world_size))});
}

Kernels::Weighed weigh(const std::uint8_t *__restrict wire, std::size_t elements, const Weights weights,
                       std::uint32_t offset) {
    std::size_t i = 0;
    Kernels::Weighed found{};
#ifdef NETFOLD_VECTOR_BYTES
    Summed summed(weights.pairs_fit);
    Words largest{};
    for (; i + LANES <= elements; i += LANES) {
        const Words words = swapped(load<Words>(wire, i / LANES)) + offset;
        summed.add(words, weights.of + i);
        largest = larger(words, largest);
    }
    found.products = summed.products();
    for (std::size_t lane = 0; lane < LANES; lane++)
        found.largest = std::max(found.largest, std::uint32_t{largest[lane]});
#endif
    for (; i < elements; i++) {
        const std::uint32_t word = ordered<Order::network>(load<std::uint32_t>(wire, i)) + offset;
        count_in(found.products, std::uint64_t{weights.of[i]} * word);
        found.largest = std::max(found.largest, word);
    }
    return found;
}

// Each rank counts a value once, or not at all.
bool are_counts(const std::uint8_t *wire, std::size_t elements, int world_size) {
    std::uint32_t most = 0;
    for (std::size_t i = 0; i < elements; i++) {
        const auto counts = ordered<Order::network>(load<std::uint32_t>(wire, i));
        const std::uint32_t together =
            (counts & COUNT_MASK) + (counts >> COUNT_SHIFT & COUNT_MASK) + (counts >> 2 * COUNT_SHIFT);
        most = together > most ? together : most;
    }
    return most <= static_cast<std::uint32_t>(world_size);
}

void unpack(DType type, const std::uint8_t *wire, void *x, std::size_t count, std::uint16_t code, int world_size,
            bool average) {
    decode_block<Order::network>(type, wire, x, count, code, world_size, average);
}

void quantise(DType type, const void *x, std::int32_t *q, std::size_t count, std::uint16_t code, int world_size) {
    if (type == DType::int32) return encode<std::int32_t>(x, q, count, Same{});
    if (code == layout::EXPONENT_SPECIAL) return encode_floats(type, x, q, count, Counted{});
    if (code == layout::EXPONENT_ZERO) return zero(q, 4 * count);
    encode_floats(type, x, q, count, Quantised{Scale(shift(code, world_size))});
}

void dequantise(DType type, const std::int32_t *sum, void *x, std::size_t count, std::uint16_t code, int world_size,
                bool average) {
    decode_block<Order::host>(type, sum, x, count, code, world_size, average);
}

}  // namespace

const Kernels KERNELS{block_code, may_overflow, pack, weigh, are_counts, unpack, quantise, dequantise};

}  // namespace netfold::NETFOLD_KERNELS
