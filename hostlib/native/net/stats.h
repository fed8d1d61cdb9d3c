// Counters of a socket's thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace netfold {

struct Stats {
    std::uint64_t packets_sent = 0, packets_received = 0, retransmits = 0, duplicates = 0, damaged = 0, foreign = 0;
    std::uint64_t spoiled = 0, refused = 0, overtaken = 0, bytes_sent = 0, bytes_received = 0, chunks = 0;
    std::uint64_t marked = 0, window = 0;  // results that a queue marked; packets that may be outstanding now
    std::uint64_t busy_ns = 0,
                  blocked_ns = 0;  // time with something outstanding; of that, waiting for the network
    std::int64_t rtt_ns = 0;

    // Adds up threads that run in parallel: except for waiting, their times are not summed.
    void add(const Stats &other) {
        packets_sent += other.packets_sent;
        packets_received += other.packets_received;
        retransmits += other.retransmits;
        duplicates += other.duplicates;
        damaged += other.damaged;
        foreign += other.foreign;
        spoiled += other.spoiled;
        refused += other.refused;
        overtaken += other.overtaken;
        bytes_sent += other.bytes_sent;
        bytes_received += other.bytes_received;
        chunks += other.chunks;
        marked += other.marked;
        window += other.window;
        busy_ns = std::max(busy_ns, other.busy_ns);
        blocked_ns += other.blocked_ns;
        rtt_ns = std::max(rtt_ns, other.rtt_ns);
    }
};

}  // namespace netfold
