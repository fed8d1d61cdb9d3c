// How long an idle thread sleeps.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

#include "net/clock.h"

namespace netfold {

inline constexpr std::int64_t LONGEST_WAIT_NS = 1000 * MILLISECOND_NS;  // even if nothing is due

// With long round trips, packets arrive one by one, and waking up for each would cost more than its processing. Not for
// a thread that has left packets in its socket: it would sleep once for every few of them, round trips would stay long
// for that alone, and it would go on sleeping.
inline void let_packets_gather(std::int64_t round_trip_ns) {
    constexpr std::int64_t SLOW_NS = 1 * MILLISECOND_NS, LONGEST_NS = MILLISECOND_NS / 2;
    if (round_trip_ns < SLOW_NS) return;
    std::this_thread::sleep_for(std::chrono::nanoseconds(std::min(round_trip_ns / 16, LONGEST_NS)));
}

}  // namespace netfold
