// One lane of the engine: a socket, a slot pool, and a thread that keeps the slots busy.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "block_float/block_float.h"
#include "block_float/openings.h"
#include "net/pool.h"
#include "net/socket.h"
#include "net/stats.h"
#include "retransmission/congestion_window.h"
#include "retransmission/damage.h"
#include "retransmission/round_trip.h"
#include "retransmission/timeouts.h"
#include "wire/header.h"

namespace netfold {

inline constexpr std::int64_t NEVER_NS = INT64_MAX;

// One all-reduce; its chunks are distributed to the lanes in contiguous parts.
struct Operation {
    DType dtype{};
    bool average = false;
    std::uint64_t ticket = 0;
    std::uint16_t magnitude = 0;             // of a whole int32 tensor
    std::atomic<int> parts{0};               // not yet done
    std::uint64_t kind = 0;                  // what the ranks must agree on: see kind_of()
    std::atomic<std::uint16_t> overflow{0};  // code of a magnitude whose sum might overflow
    std::atomic<bool> differs{false};        // the ranks sum tensors of different kinds
    std::function<void()> finished;
};

std::uint32_t kind_word(std::uint64_t kind, std::size_t word, int world_size);

// Whether a prologue's vector begins with the sum of so many ranks' words of this kind.
bool is_of_kind(std::uint64_t kind, const std::uint8_t *vector, std::size_t elements, int world_size, int ranks);

// Tells the waiters of operations of which a part is done.
void announce(std::vector<std::shared_ptr<Operation>> &finished);

// A number for a tensor's type, its length, and whether it is averaged: different ones for different tensors.
std::uint64_t kind_of(DType dtype, std::size_t count, bool average);

// A lane's share of an operation.
struct Part {
    std::shared_ptr<Operation> operation;
    std::uint8_t *x = nullptr;
    std::size_t count = 0, chunks = 0;
    Openings openings;
    std::uint64_t first = 0;            // stream position of the first prologue
    std::vector<std::uint16_t> codes;   // of each chunk: agreed on, known from the round before; until then this rank's
    std::size_t scanned;                // up to here, codes have been set
    std::vector<std::uint8_t> done_of;  // by chunk
    std::size_t done = 0;               // number of chunks whose result has arrived
    std::vector<std::uint8_t> opened;   // by prologue: its result has arrived
    bool refused = false;               // might overflow: its positions carry zeros, and their results are discarded

    Part(std::shared_ptr<Operation> operation, std::uint8_t *x, std::size_t count, std::size_t chunks,
         const Openings &openings)
        : operation(std::move(operation)),
          x(x),
          count(count),
          chunks(chunks),
          openings(openings),
          codes(chunks),
          scanned(openings.blocks),
          done_of(chunks),
          opened(openings.prologues) {}

    std::uint64_t end() const { return first + openings.prologues + chunks; }
    // Whether a chunk's code is known as far as prologues tell.
    bool is_open(std::size_t chunk) const {
        return opened[std::min(chunk / openings.each, openings.prologues - 1)] != 0;
    }
};

class Lane {
public:
    // Its thread runs on that core only, if one is given.
    Lane(const std::string &address, std::uint16_t port, std::optional<int> core);
    ~Lane();
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;

    std::string address() const { return socket_->address(); }
    std::uint16_t port() const { return socket_->port(); }

    // The constant header fields, and the destination. Only when halted or idle.
    void configure(const End &fabric, const Header &header, const Pool &pool, int world_size, int window,
                   std::shared_ptr<const CheckWords> check);
    void submit(std::unique_ptr<Part> part);
    // See Socket; `question` is a packet, whose rank comes back as another one. Only when halted or idle.
    std::optional<std::uint16_t> echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                      std::int64_t timeout_ns);

    void halt();  // returns when the thread has stopped using buffers
    Stats stats() const;
    std::uint64_t position() const;
    std::int64_t silent_ns() const;

    // Only when halted.
    std::size_t slots() const { return slots_.size(); }
    void retained(std::size_t slot, std::int64_t &position, std::uint32_t *words) const;
    void restore(std::size_t slot, std::int64_t position, const std::uint32_t *words);
    const Part *part(const Operation *operation) const;

private:
    // A slot: the chunk in flight, and the last result, kept for ranks that may have lost theirs.
    struct Slot {
        Part *part = nullptr;   // the operation of that chunk
        std::size_t chunk = 0;  // of the part; of a prologue, the first that it opens
        bool prologue = false;
        bool open = false, resent = false;
        bool asked = false;  // sent again, the last time because nothing came
        std::int64_t position = -1,
                     kept_position = -1;  // of the last packet sent; of the last result; -1: none
        std::uint16_t exponent = 0, next_code = 0, kept_exponent = 0, kept_next = 0;
        Damage damage;
        std::int64_t sent_ns = 0, due_ns = 0, timeout_ns = 0;
        std::int64_t probed_ns = 0;  // when the last result was asked for once more; 0: it was not
    };

    void run();
    void cycle();
    void send_what_may();
    void send_again(std::int64_t now);
    void send_overtaken(std::int64_t now);
    void ask_for_lowest(std::int64_t now);
    void resend(Slot &slot, std::size_t index);
    void probe();
    void measure(std::int64_t sample_ns, std::int64_t now);
    void share_interface(std::int64_t now);
    bool lowest(std::uint64_t position) const;
    void send(Part &part, std::uint64_t position);
    void transmit(Slot &slot, std::size_t index);
    void count_sent();
    Header header_of(std::size_t index, std::int64_t position) const;
    std::uint32_t generation_of(std::int64_t position) const {
        return static_cast<std::uint32_t>(static_cast<std::uint64_t>(position) / slots_.size());
    }
    void handle(int i, std::int64_t now);
    void take_acknowledgements(const std::uint8_t *packet, std::size_t bytes, std::int64_t now);
    void came_again(Slot &slot, std::uint32_t generation, std::int64_t now);
    void measure_gap(std::int64_t now);
    void time(const Slot &slot, bool limited, std::int64_t now);
    std::int64_t first_tail_ns() const;
    std::int64_t usual_gap_ns() const;
    Limit limit(const Slot &slot) const;
    void finish(std::size_t index, const std::uint8_t *wire, std::uint16_t next_code);
    void free_slot(Slot &slot, std::uint16_t next_code);
    void is_done(const Slot &slot, std::uint16_t next_code);
    void open(const Slot &slot, std::uint16_t code, const std::int8_t *levels);
    void differ(Part &part);
    const std::int8_t *levels_of(const Slot &slot, const Header &header, const std::uint8_t *entries) const;
    std::uint32_t pack_prologue(const Slot &slot, std::uint8_t *wire) const;
    std::uint16_t own_code(const Part &part, std::size_t chunk) const;
    std::uint16_t scanned_code(Part &part, std::size_t chunk) const;
    std::size_t chunk_values(const Part &part, std::size_t chunk) const;
    std::uint8_t *chunk_data(const Part &part, std::size_t chunk) const;

    // Used by the thread only.
    const std::unique_ptr<Socket> socket_;
    Header header_{};
    Pool pool_{};
    int world_size_ = 0, open_ = 0;
    std::shared_ptr<const CheckWords> check_;
    std::size_t elements_ = 0;
    std::vector<Slot> slots_;
    std::vector<std::uint64_t> free_;  // the next position of each slot that is not in flight
    bool free_changed_ = false;        // not in order
    std::vector<std::uint8_t> kept_;   // the slots' last results, as received
    std::deque<std::unique_ptr<Part>> parts_;
    std::vector<std::shared_ptr<Operation>> finished_;  // parts that are done but not yet announced
    RoundTrip round_trip_;
    CongestionWindow congestion_;
    Timeouts timeouts_{LONGEST_LANE_TIMEOUT_NS};
    std::int64_t next_due_ns_ = 0;
    std::int64_t heard_ns_ = 0, came_ns_ = 0;  // when the last result came; when one did that may have come before
    std::int64_t tail_due_ns_ = 0, tail_timeout_ns_ = 0;  // without a result until then, the lowest is asked for
    std::uint64_t shared_chunks_ = 0;                     // results, and the time, when the interface was last shared
    std::int64_t shared_ns_ = 0;
    std::size_t least_below_ = 0;     // bytes that may always wait for the interface
    std::int64_t gap_ns_ = 0;         // between datagrams with results or acknowledgements, on average
    std::int64_t overtaking_ns_ = 0;  // send time of the latest packet whose result has arrived
    // What was asked for has come: send time of the question, and when everything sent before counts as lost.
    std::int64_t answered_ns_ = 0, verdict_due_ns_ = NEVER_NS;
    Stats stats_;

    // Shared with callers.
    mutable std::mutex mutex_;
    std::condition_variable wake_, parked_changed_;
    std::deque<std::unique_ptr<Part>> incoming_;
    std::uint64_t next_position_ = 0;  // of the next part
    bool halted_ = false, quit_ = false, parked_ = false, busy_ = false;
    Stats shown_;
    std::uint64_t shown_position_ = 0;
    std::int64_t shown_heard_ns_ = 0;
    std::thread thread_;
};

}  // namespace netfold
