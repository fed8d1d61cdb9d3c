// What both ends of a multicast stream have in common: messages, which are cut into chunks, and the way out.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lane.h"
#include "packet.h"
#include "socket.h"

namespace netfold {

// Bytes of a caller's, sent from there or received into.
struct Message {
    std::uint8_t *data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t ticket = 0;
    std::uint64_t first = 0, end = 0;  // positions in the stream
};

// The host's socket, and what all its packets say.
struct Way {
    Socket &socket;
    Header header;
    Stats stats;

    std::size_t vector_bytes() const { return 4 * std::size_t{header.element_count}; }

    // The next packet to leave: its header as far as it is known, its vector still to be filled in.
    Header begin(std::uint8_t operation, const Pool &pool, std::uint64_t position) const {
        Header begun = header;
        begun.operation = operation;
        begun.slot = static_cast<std::uint16_t>(pool.first_slot + position % static_cast<std::uint64_t>(pool.slots));
        begun.generation = static_cast<std::uint32_t>(position / static_cast<std::uint64_t>(pool.slots));
        return begun;
    }

    void count_sent() {
        stats.packets_sent++;
        stats.bytes_sent += layout::HEADER_BYTES + vector_bytes();
    }
};

// The estimate of a round trip, and the timeout that follows from it (RFC 6298).
class RoundTrip {
public:
    void measure(std::int64_t rtt_ns) {
        if (srtt_ns_ == 0) {
            srtt_ns_ = rtt_ns;
            rttvar_ns_ = rtt_ns / 2;
            return;
        }
        const std::int64_t off = rtt_ns < srtt_ns_ ? srtt_ns_ - rtt_ns : rtt_ns - srtt_ns_;
        rttvar_ns_ += (off - rttvar_ns_) / 4;
        srtt_ns_ += (rtt_ns - srtt_ns_) / 8;
    }

    std::int64_t estimate_ns() const { return srtt_ns_; }
    std::int64_t timeout_ns() const {
        return srtt_ns_ == 0 ? START_NS : srtt_ns_ + srtt_ns_ / 2 + (4 * rttvar_ns_ > MARGIN_NS ? 4 * rttvar_ns_ : MARGIN_NS);
    }
    // How long a network may hold a packet back behind others.
    std::int64_t reordering_ns() const { return srtt_ns_ / 2 > REORDERING_NS ? srtt_ns_ / 2 : REORDERING_NS; }

private:
    static constexpr std::int64_t START_NS = 20000000, MARGIN_NS = 5000000, REORDERING_NS = 1000000;

    std::int64_t srtt_ns_ = 0, rttvar_ns_ = 0;
};

}  // namespace netfold
