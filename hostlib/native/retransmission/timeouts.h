// When what is not answered goes again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "net/clock.h"
#include "retransmission/round_trip.h"

namespace netfold {

// No longer than this: of an all-reduce's packets, which wait for the slowest rank, and of what a receiver asks for
// again.
inline constexpr std::int64_t LONGEST_LANE_TIMEOUT_NS = 4000 * MILLISECOND_NS;
inline constexpr std::int64_t LONGEST_STREAM_TIMEOUT_NS = 500 * MILLISECOND_NS;

// Timeouts that follow from a round trip, of RFC 6298; its margin is that a process may be off its core.
class Timeouts {
public:
    // No timeout is longer than this, but for one that a round trip takes.
    explicit Timeouts(std::int64_t longest_ns) : longest_ns_(longest_ns) {}

    // Of what goes for the first time.
    std::int64_t first_ns(const RoundTrip &round_trip) const {
        return std::min(estimate_ns(round_trip) << doublings_, limit_ns(round_trip));
    }

    // Of what goes again after so long.
    std::int64_t next_ns(const RoundTrip &round_trip, std::int64_t last_ns) const {
        return std::min(2 * last_ns, limit_ns(round_trip));
    }

    // A timeout doubles that of later packets, too, until one is measured (RFC 6298, 5.5 to 5.7): where the round trip
    // takes longer than the estimate, every packet would go twice and none ever be measured. Once per timeout: those
    // that were sent together are late together.
    void back_off(const RoundTrip &round_trip, std::int64_t now_ns) {
        const std::int64_t current_ns = first_ns(round_trip);
        if (now_ns - backed_off_ns_ < current_ns) return;
        backed_off_ns_ = now_ns;
        if (current_ns < limit_ns(round_trip)) doublings_++;
    }

    void measured() { doublings_ = 0; }

private:
    static constexpr std::int64_t START_NS = 20 * MILLISECOND_NS, MARGIN_NS = 5 * MILLISECOND_NS;

    static std::int64_t estimate_ns(const RoundTrip &round_trip) {
        const std::int64_t rtt_ns = round_trip.estimate_ns();
        return round_trip.known() ? rtt_ns + rtt_ns / 2 + std::max(4 * round_trip.variation_ns(), MARGIN_NS) : START_NS;
    }

    std::int64_t limit_ns(const RoundTrip &round_trip) const { return std::max(longest_ns_, estimate_ns(round_trip)); }

    std::int64_t longest_ns_;
    std::int64_t backed_off_ns_ = 0;
    int doublings_ = 0;
};

}  // namespace netfold
