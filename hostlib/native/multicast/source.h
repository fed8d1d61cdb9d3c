// The sending end of a multicast stream.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "multicast/stream.h"
#include "retransmission/round_trip.h"

namespace netfold {

// Sends a position once every receiver has all positions a window before it; keeps sent chunks that some may lack.
class Source {
public:
    // ends: where the receivers are.
    Source(const Pool &pool, const std::vector<std::uint16_t> &receivers, const std::vector<sockaddr_in> &ends,
           std::size_t vector_bytes);

    void submit(const Message &message, std::int64_t now);
    // Sends what the window allows, up to a number of packets. Tickets of completely sent messages are appended to
    // `finished`.
    void send(Way &way, int most, std::vector<std::uint64_t> &finished);
    bool may_send() const { return wants_to_send() && next_ < below_; }
    // Whether the receivers would let it.
    bool wants_to_send() const { return !messages_.empty() && next_ < granted_ + slots(); }
    // Positions from this one on wait for other streams.
    void keep_below(std::uint64_t position) { below_ = position; }
    bool idle() const { return messages_.empty(); }
    // When it last had something to send after it had nothing, and the first position of that.
    std::int64_t began_ns() const { return began_ns_; }
    std::uint64_t began_at() const { return began_at_; }
    // Handles a receiver's NACK or acknowledgement with a valid check word: its progress, and the chunk that it lacks,
    // or its question how far this source is.
    void handle(Way &way, const Header &header, const std::uint8_t *vector, std::int64_t now);

    const Pool &pool() const { return pool_; }
    std::uint64_t position() const { return next_; }
    // Every receiver has all positions before this one.
    std::uint64_t granted() const { return granted_; }

private:
    struct Listener {
        std::uint64_t low = 0;  // it has all positions before this one
        sockaddr_in end{};
    };
    struct Sent {
        std::uint32_t vector_part = 0;
        std::int64_t at_ns = 0;
        bool again = false;
    };

    std::uint64_t slots() const { return static_cast<std::uint64_t>(pool_.slots); }
    std::uint8_t *kept(std::uint64_t position) { return kept_.data() + position % slots() * vector_bytes_; }
    void grant(Listener &receiver, std::uint64_t low, std::int64_t now);
    void transmit(Way &way, std::uint64_t position);
    bool is_recent(const Sent &sent, std::int64_t now) const;

    Pool pool_;
    std::size_t vector_bytes_;
    std::map<std::uint16_t, Listener> receivers_;  // by rank
    std::uint64_t granted_ = 0;                    // every receiver has all positions before this one
    std::uint64_t next_ = 0, submitted_ = 0;       // positions: the next to be sent, the next message's first
    std::uint64_t below_ = UINT64_MAX;
    std::uint64_t began_at_ = 0;
    std::int64_t began_ns_ = 0;
    std::deque<Message> messages_;
    std::vector<std::uint8_t> kept_;  // the vectors of the last positions, by slot
    std::vector<Sent> sent_;
    RoundTrip round_trip_;
};

}  // namespace netfold
