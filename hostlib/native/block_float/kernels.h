// The functions of block_float.h as a table: one for each kind of CPU for which they are compiled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "block_float/block_float.h"

namespace netfold {

constexpr std::uint32_t LARGEST_SUM = std::uint32_t{1} << 30;    // of a float block: a bit to spare below int32's
constexpr std::uint32_t PACKED_OFFSET = std::uint32_t{1} << 31;  // of the products that pack() returns
constexpr int COUNT_SHIFT = 10;                                  // special blocks carry counts, 10 bits each

// Products are over `weights`, and under an offset; reducing them is left to wire/check_words.h.
struct Kernels {
    struct Weighed {
        Products products;
        std::uint32_t largest;  // of the elements with the offset added, mod 2^32
    };

    decltype(&netfold::block_code) block_code;
    decltype(&netfold::may_overflow) may_overflow;
    Products (*pack)(DType type, const void *x, std::size_t count, std::uint8_t *wire, std::size_t elements,
                     std::uint16_t code, int world_size, Weights weights);
    Weighed (*weigh)(const std::uint8_t *wire, std::size_t elements, Weights weights, std::uint32_t offset);
    bool (*are_counts)(const std::uint8_t *wire, std::size_t elements, int world_size);
    decltype(&netfold::unpack) unpack;
    decltype(&netfold::quantise) quantise;
    decltype(&netfold::dequantise) dequantise;
};

// Baseline of the architecture: plain x86-64, or 64-bit ARM with Neon.
namespace baseline {
extern const Kernels KERNELS;
}
#ifdef NETFOLD_DISPATCH
namespace x86_64_v3 {  // AVX2, F16C: Intel since 2013, AMD since 2015
extern const Kernels KERNELS;
}
namespace x86_64_v4 {  // AVX-512
extern const Kernels KERNELS;
}
#endif

// Name of this CPU's variant: baseline, x86-64-v3 or x86-64-v4.
const char *kernels_name();

}  // namespace netfold
