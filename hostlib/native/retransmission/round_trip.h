// The estimate of a round trip.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

#include "net/clock.h"

namespace netfold {

// Jacobson's estimator (RFC 6298). Only packets that were sent once may be measured (Karn).
class RoundTrip {
public:
    void measure(std::int64_t rtt_ns) {
        if (!known()) {
            smoothed_ns_ = rtt_ns;
            variation_ns_ = rtt_ns / 2;
            return;
        }
        variation_ns_ += (std::abs(smoothed_ns_ - rtt_ns) - variation_ns_) / 4;
        smoothed_ns_ += (rtt_ns - smoothed_ns_) / 8;
    }

    // A result waits for every rank, including one that retransmits a loss, so only the shortest of many samples
    // counts, once per round trip. Otherwise each rank's timeout would exceed the others', without limit. Returns
    // whether the estimate has changed.
    bool measure_shortest(std::int64_t rtt_ns, std::int64_t now_ns) {
        shortest_ns_ = samples_++ == 0 ? rtt_ns : std::min(shortest_ns_, rtt_ns);
        if (known() && (samples_ < SAMPLES || now_ns - measured_ns_ < smoothed_ns_)) return false;
        measure(shortest_ns_);
        recent_ns_ = shortest_ns_;
        least_ns_ = least_ns_ == 0 ? smoothed_ns_ : std::min(least_ns_, smoothed_ns_);
        samples_ = 0;
        measured_ns_ = now_ns;
        return true;
    }

    bool known() const { return smoothed_ns_ != 0; }
    std::int64_t estimate_ns() const { return smoothed_ns_; }
    std::int64_t variation_ns() const { return variation_ns_; }
    // The shortest of the samples that were last taken together, and the least estimate that there was.
    std::int64_t recent_ns() const { return recent_ns_; }
    std::int64_t least_ns() const { return least_ns_; }
    // How long a network may delay a packet behind others.
    std::int64_t reordering_ns() const { return std::max(REORDERING_NS, smoothed_ns_ / 2); }

private:
    static constexpr int SAMPLES = 16;
    static constexpr std::int64_t REORDERING_NS = MILLISECOND_NS / 4;

    std::int64_t smoothed_ns_ = 0, variation_ns_ = 0;
    std::int64_t shortest_ns_ = 0, measured_ns_ = 0;  // of the samples since the last measurement; when that was
    std::int64_t recent_ns_ = 0, least_ns_ = 0;
    int samples_ = 0;
};

}  // namespace netfold
