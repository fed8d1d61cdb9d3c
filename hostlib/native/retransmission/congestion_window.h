// How many packets may be outstanding, so that a rank shares queues with others.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "retransmission/round_trip.h"

namespace netfold {

// Additive increase, multiplicative decrease, once per round trip (RFC 5681). The decrease is CUBIC's, and the increase
// what CUBIC has beside Reno, for as many bytes as a stream of full frames gets in the same queue (RFC 9438, 4.3).
// Where our packets are longer than such frames the network's MTU is larger, and other frames are as long.
//
// Switches that mark packets (ECN) tell of a queue before it is full, and nothing has to be sent again.
//
// Not every loss tells of a full queue: links also damage packets, and a sum is late if any rank's packet is. What is
// lost while the queue is short changes nothing, unless it is much.
class CongestionWindow {
public:
    static constexpr int LEAST = 2;  // packets, unless a caller needs more

    CongestionWindow() = default;
    // Of `fixed` packets of so many bytes or, if that is 0, of `least` to `most`. Until a round trip is known it has
    // `start`.
    CongestionWindow(int least, int most, int fixed, int start, std::size_t packet_bytes)
        : fixed_(fixed != 0),
          least_(std::min(least, most)),
          most_(fixed_ ? fixed : most),
          packets_(std::min(most_, start)),
          threshold_(most_) {
        const double ratio = std::max(FULL_BYTES / static_cast<double>(packet_bytes), 1.0);
        increase_ = INCREASE * ratio * ratio;
    }

    int size() const { return std::max(static_cast<int>(packets_), 1); }

    // A result has come, and the round trip is known; `limited`: the window was full.
    void answered(bool limited) {
        lost_ -= lost_ / LOSSES_OF;
        if (fixed_) packets_ = most_;
        if (!limited) return;
        packets_ += packets_ < threshold_ ? 1 : increase_ / packets_;
        packets_ = std::min<double>(packets_, most_);
    }

    // A packet that was sent then is lost.
    void lost(std::int64_t sent_ns, std::int64_t now_ns, const RoundTrip &round_trip) {
        lost_ += (1 - lost_) / LOSSES_OF;
        const bool queued = round_trip.known() && round_trip.recent_ns() > 2 * round_trip.least_ns() + QUEUE_NS;
        if (fixed_ || sent_ns <= decreased_ns_ || (!queued && lost_ < MUCH)) return;
        decrease(now_ns);
    }

    // The result of a packet that was sent then was marked: a queue on its way grows (RFC 3168). The decrease is that
    // of a loss, as Linux's CUBIC has it: where both meet, they get the same share.
    void marked(std::int64_t sent_ns, std::int64_t now_ns) {
        if (!fixed_ && sent_ns > decreased_ns_) decrease(now_ns);
    }

private:
    void decrease(std::int64_t now_ns) {
        decreased_ns_ = now_ns;
        threshold_ = packets_ = std::max<double>(DECREASE * packets_, least_);
    }

    static constexpr double DECREASE = 0.7, INCREASE = 3 * (1 - DECREASE) / (1 + DECREASE);
    static constexpr double FULL_BYTES = 1514;               // a frame of other traffic, unless ours are longer
    static constexpr double LOSSES_OF = 64, MUCH = 1.0 / 8;  // of so many packets, on average
    static constexpr std::int64_t QUEUE_NS = MILLISECOND_NS / 4;

    bool fixed_ = false;
    int least_ = LEAST, most_ = 1;
    double packets_ = 1, threshold_ = 1, increase_ = 1;
    double lost_ = 0;
    std::int64_t decreased_ns_ = 0;
};

}  // namespace netfold
