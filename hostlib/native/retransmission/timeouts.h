// When unanswered packets are retransmitted.
#pragma once

#include <algorithm>
#include <cstdint>

#include "net/clock.h"
#include "retransmission/round_trip.h"

namespace netfold {

// Upper limits for packets of all-reduces, which wait for the slowest rank, and for receivers' repeated requests.
inline constexpr std::int64_t LONGEST_LANE_TIMEOUT_NS = 4000 * MILLISECOND_NS;
inline constexpr std::int64_t LONGEST_STREAM_TIMEOUT_NS = 500 * MILLISECOND_NS;

// Timeouts derived from the round trip as in RFC 6298; the margin allows for a process that is off its core.
class Timeouts {
public:
    // No timeout is longer than this, unless the round trip is.
    explicit Timeouts(std::int64_t longest_ns) : longest_ns_(longest_ns) {}

    // For packets that are sent for the first time.
    std::int64_t first_ns(const RoundTrip &round_trip) const {
        return std::min(estimate_ns(round_trip) << doublings_, limit_ns(round_trip));
    }

    // For packets that are retransmitted after this time.
    std::int64_t next_ns(const RoundTrip &round_trip, std::int64_t last_ns) const {
        return std::min(2 * last_ns, limit_ns(round_trip));
    }

    // A timeout doubles that of later packets, too, until one is measured (RFC 6298, 5.5 to 5.7). If the round trip
    // exceeds the estimate, every packet would otherwise be sent twice and none could be measured. Once per timeout:
    // packets that were sent together are late together.
    void back_off(const RoundTrip &round_trip, std::int64_t now_ns) {
        const std::int64_t current_ns = first_ns(round_trip);
        if (now_ns - backed_off_ns_ < current_ns) return;
        backed_off_ns_ = now_ns;
        if (current_ns < limit_ns(round_trip)) doublings_++;
    }

    void measured() { doublings_ = 0; }

    // How long nothing may come before one packet is sent again to find out why. As long as nothing could be measured
    // it doubles with the other timeouts: questions would fill a slow switch's queue, and nothing could ever be.
    std::int64_t first_tail_ns(const RoundTrip &round_trip) const {
        if (!round_trip.known()) return std::min(START_NS << doublings_, LONGEST_TAIL_NS);
        return 2 * round_trip.estimate_ns() + TAIL_MARGIN_NS;
    }
    std::int64_t next_tail_ns(const RoundTrip &round_trip, std::int64_t last_ns) const {
        return std::min(2 * last_ns, std::max(LONGEST_TAIL_NS, first_tail_ns(round_trip)));
    }

private:
    static constexpr std::int64_t START_NS = 20 * MILLISECOND_NS, MARGIN_NS = 5 * MILLISECOND_NS;
    static constexpr std::int64_t TAIL_MARGIN_NS = 1 * MILLISECOND_NS, LONGEST_TAIL_NS = 100 * MILLISECOND_NS;

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
