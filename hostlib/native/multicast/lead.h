// How far sources that send at once may be ahead of what has arrived.
#pragma once

#include <algorithm>
#include <cstdint>

#include "net/clock.h"

namespace netfold {

// All that is ahead meets in the queue of a link to a receiver. So it is bounded for all sources together: it grows
// slowly while nothing is lost, and is cut as a stream's window is (RFC 9438, 4.6) once per round trip with losses.
class Lead {
public:
    // Chunks by which each of so many sources may be ahead.
    std::uint64_t of_each(std::size_t sources) const {
        return std::max<std::uint64_t>(static_cast<std::uint64_t>(chunks_) / std::max<std::size_t>(sources, 1), LEAST);
    }

    // A chunk has come in time.
    void came() { chunks_ = std::min(chunks_ + INCREASE / chunks_, MOST_TOGETHER); }

    // A chunk has not.
    void lost(std::int64_t now_ns, std::int64_t round_trip_ns) {
        if (now_ns - decreased_ns_ < round_trip_ns) return;
        decreased_ns_ = now_ns;
        chunks_ = std::max(DECREASE * chunks_, LEAST_TOGETHER);
    }

private:
    static constexpr double START = 96, LEAST_TOGETHER = 64, MOST_TOGETHER = 4096;  // of all sources
    static constexpr double DECREASE = 0.7, INCREASE = 4;                           // once per round trip
    static constexpr std::uint64_t LEAST = 2;

    double chunks_ = START;
    std::int64_t decreased_ns_ = 0;
};

}  // namespace netfold
