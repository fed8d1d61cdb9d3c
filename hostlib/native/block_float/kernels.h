// The functions of block_float.h as a table: one for each kind of CPU for which they are compiled.
#pragma once

#include <cstddef>
#include <cstdint>

#include "block_float/block_float.h"

namespace netfold {

struct Kernels {
    decltype(&netfold::block_code) block_code;
    decltype(&netfold::may_overflow) may_overflow;
    decltype(&netfold::pack) pack;
    decltype(&netfold::check_of) check_of;
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
