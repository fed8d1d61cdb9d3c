// The receiving end of a multicast stream.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <vector>

#include "multicast/stream.h"
#include "net/clock.h"
#include "retransmission/damage.h"
#include "retransmission/round_trip.h"
#include "retransmission/timeouts.h"

namespace netfold {

// Stores chunks in place and requests missing ones. Chunks that nobody waits for yet are kept, at most a window of
// them: the source sends no more.
class Receiver {
public:
    // source: where it is.
    Receiver(const Pool &pool, std::uint16_t rank, const sockaddr_in &source, std::size_t vector_bytes);

    // Tickets of complete messages are appended to `finished`.
    void submit(const Message &message, std::int64_t now, std::vector<std::uint64_t> &finished);
    // Returns whether it is a chunk that was not here and had not been asked for.
    bool handle(Way &way, const Header &header, const std::uint8_t *vector, std::int64_t now,
                std::vector<std::uint64_t> &finished);
    // The source says that it has sent everything before a position.
    void source_is_at(std::uint64_t position, std::int64_t now);
    // Sends the requests that are due. Returns whether a chunk is among them that had not been asked for.
    bool ask(Way &way, std::int64_t now);
    // When the next request is due; INT64_MAX for never.
    std::int64_t due_ns() const;
    bool idle() const { return next_ == submitted_; }
    // Until when it counts as arriving, if nothing more comes; 0 if nothing is expected.
    std::int64_t arrives_until_ns() const {
        return idle() || came_ns_ == 0 ? 0 : came_ns_ + std::max(2 * round_trip_.estimate_ns(), SHORTEST_PAUSE_NS);
    }
    // One past the highest position that has arrived, or is known to have been sent.
    std::uint64_t reached() const { return beyond_; }

    const Pool &pool() const { return pool_; }
    std::uint64_t position() const { return next_; }
    std::int64_t round_trip_ns() const { return round_trip_.estimate_ns(); }

private:
    static constexpr std::int64_t SHORTEST_PAUSE_NS = 10 * MILLISECOND_NS;

    // State of a slot's position in the window.
    struct Slot {
        bool here = false;
        std::int64_t due_ns = 0, timeout_ns = 0;  // time of the next NACK, once it is known to have been sent
        std::int64_t asked_ns = 0;                // send time of the only NACK; 0: none, or more than one
        bool asked = false;
        Damage damage;
    };

    std::uint64_t slots() const { return static_cast<std::uint64_t>(pool_.slots); }
    Slot &slot(std::uint64_t position) { return slots_[position % slots()]; }
    const Slot &slot(std::uint64_t position) const { return slots_[position % slots()]; }
    bool has_holes() const { return next_ < beyond_; }
    void deliver(std::uint64_t position, const std::uint8_t *vector);
    void advance(std::vector<std::uint64_t> &finished);
    // `end`: one past what is known to have been sent.
    void notice_holes(std::uint64_t end, std::int64_t now);
    void measure(std::uint64_t position, const Slot &slot, std::int64_t now);
    void measured(std::int64_t sample_ns);
    bool ask_for_holes(Way &way, std::int64_t now);
    void probe(Way &way, std::int64_t now);
    void nack(Way &way, std::uint64_t position);

    Pool pool_;
    std::uint16_t rank_;
    sockaddr_in source_;
    std::size_t vector_bytes_;
    std::vector<Slot> slots_;
    std::vector<std::uint8_t> kept_;  // by slot, chunks that nobody waits for yet
    std::deque<Message> messages_;
    std::uint64_t next_ = 0;       // the lowest position that is missing, or that nobody waits for
    std::uint64_t beyond_ = 0;     // one past the highest position that was received, or is known to have been sent
    std::uint64_t submitted_ = 0;  // one past the last position that somebody waits for
    std::uint64_t told_ = 0;       // `next_` as last reported to the source
    std::int64_t told_ns_ = 0;     // start of the current round-trip measurement; 0: none
    std::uint64_t allowed_ = 0;    // the first position that this report allows
    std::int64_t probe_due_ns_ = 0, probe_timeout_ns_ = 0;
    int questions_ = 0;  // without an answer
    std::int64_t questioned_ns_ = 0;
    std::int64_t came_ns_ = 0;  // when the last chunk did that was not here yet
    RoundTrip round_trip_;
    Timeouts timeouts_;
};

}  // namespace netfold
