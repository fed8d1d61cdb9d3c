// How long a thread sleeps that has nothing to do.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "net/clock.h"

namespace netfold {

inline constexpr std::int64_t LONGEST_WAIT_NS = 1000 * MILLISECOND_NS;  // even when nothing is due

// Where a round trip takes long, packets come one by one, and waking up for each would take more time than its work.
inline void let_packets_gather(std::int64_t round_trip_ns) {
    constexpr std::int64_t SLOW_NS = 1 * MILLISECOND_NS, LONGEST_NS = MILLISECOND_NS / 2;
    if (round_trip_ns < SLOW_NS) return;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(round_trip_ns / 16, LONGEST_NS)));
}

}  // namespace netfold
