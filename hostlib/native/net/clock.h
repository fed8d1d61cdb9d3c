// The monotonic clock, in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace netfold {

inline constexpr std::int64_t MILLISECOND_NS = 1000000;

inline std::int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace netfold
