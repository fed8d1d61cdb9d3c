// Select the compiled kernels for this CPU, once, when the module is loaded.
#include "block_float/block_float.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "block_float/kernels.h"
#include "wire/layout.h"

namespace netfold {
namespace {

struct Choice {
    const char *name;
    const Kernels *kernels;
    bool runs_here;
};

Choice choose() noexcept {
    const Choice all[] = {
#ifdef NETFOLD_DISPATCH
        {"x86-64-v4", &x86_64_v4::KERNELS,
         __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd")
             && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")},
        {"x86-64-v3", &x86_64_v3::KERNELS,
         __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma")},
#endif
        {"baseline", &baseline::KERNELS, true},
    };
    const char *wanted = std::getenv("NETFOLD_KERNELS");
    for (const Choice &each : all)
        if (each.runs_here && wanted != nullptr && std::strcmp(each.name, wanted) == 0) return each;
    for (const Choice &each : all)
        if (each.runs_here) return each;
    std::abort();  // the last one runs on any CPU
}

const Choice CHOSEN = choose();
const Kernels &KERNELS = *CHOSEN.kernels;

}  // namespace

const char *kernels_name() { return CHOSEN.name; }

std::uint16_t block_code(DType type, const void *x, std::size_t count) { return KERNELS.block_code(type, x, count); }

bool may_overflow(std::uint16_t code, int world_size) { return KERNELS.may_overflow(code, world_size); }

std::uint32_t pack(DType type, const void *x, std::size_t count, std::uint8_t *wire, std::size_t elements,
                   std::uint16_t code, int world_size, const CheckWords &check) {
    const Products products = KERNELS.pack(type, x, count, wire, elements, code, world_size, check.weights());
    const bool zeros = type != DType::int32 && code == layout::EXPONENT_ZERO;
    return zeros ? 0 : check.vector_part(products, count, PACKED_OFFSET);
}

Limit limit_of(DType type, std::uint16_t code, int world_size) {
    const auto ranks = static_cast<std::uint32_t>(world_size);
    if (code == layout::EXPONENT_ZERO) return {0};
    if (type == DType::int32) {
        const int bits = std::clamp(int{code} - int{layout::EXPONENT_BIAS}, 0, 31);
        const std::uint64_t most = std::uint64_t{ranks} * ((std::uint64_t{1} << bits) - 1);
        return {static_cast<std::uint32_t>(std::min<std::uint64_t>(most, ANY_WORD.magnitude))};
    }
    if (code == layout::EXPONENT_SPECIAL) return {ranks << COUNT_SHIFT * 2, world_size};
    return {LARGEST_SUM};
}

// The elements are multiplied from the smallest that there may be: then one comparison shows what is out of range.
Weighed weigh(const std::uint8_t *wire, std::size_t elements, const Limit &limit, const CheckWords &check) {
    const Kernels::Weighed weighed = KERNELS.weigh(wire, elements, check.weights(), limit.magnitude);
    const bool within = weighed.largest <= 2 * std::uint64_t{limit.magnitude};
    const std::uint32_t part = check.vector_part(weighed.products, elements, limit.magnitude);
    return {part, within && (limit.counting == 0 || KERNELS.are_counts(wire, elements, limit.counting))};
}

void unpack(DType type, const std::uint8_t *wire, void *x, std::size_t count, std::uint16_t code, int world_size,
            bool average) {
    KERNELS.unpack(type, wire, x, count, code, world_size, average);
}

void quantise(DType type, const void *x, std::int32_t *q, std::size_t count, std::uint16_t code, int world_size) {
    KERNELS.quantise(type, x, q, count, code, world_size);
}

void dequantise(DType type, const std::int32_t *sum, void *x, std::size_t count, std::uint16_t code, int world_size,
                bool average) {
    KERNELS.dequantise(type, sum, x, count, code, world_size, average);
}

}  // namespace netfold
