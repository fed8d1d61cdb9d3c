// The owner's end of a reduce-scatter: it receives the switch's sums of its shard, and tells the others which it has.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/lane.h"
#include "net/pool.h"
#include "net/socket.h"
#include "net/stats.h"
#include "retransmission/damage.h"
#include "wire/acknowledgement.h"
#include "wire/check_words.h"
#include "wire/header.h"

namespace netfold {

// The owner's part of an operation.
struct Share {
    std::shared_ptr<Operation> operation;
    std::uint8_t *sums = nullptr;  // float32, or int32: of all ranks but the owner
    std::size_t count = 0, chunks = 0;
    Openings openings;
    std::uint64_t first = 0;  // stream position of the first prologue
    std::size_t done = 0;     // number of chunks whose sum has arrived
    std::uint16_t code = 0;   // of an int32 tensor's largest magnitude
    bool over = false;        // all have arrived, or the ranks sum different tensors

    std::uint64_t end() const { return first + openings.prologues + chunks; }
};

// A socket, a slot pool and, while configured, a thread. It asks for nothing: the other ranks repeat what it does not
// acknowledge.
class Collector {
public:
    // Port 0 takes any. Throws std::system_error if it cannot be bound.
    Collector(const std::string &address, std::uint16_t port);
    ~Collector() { halt(); }
    Collector(const Collector &) = delete;
    Collector &operator=(const Collector &) = delete;

    std::string address() const { return socket_->address(); }
    std::uint16_t port() const { return socket_->port(); }

    // header: the constant fields, with this rank; ranks: where each one's lane of this pool is. Halts first.
    void configure(const End &fabric, const Header &header, const Pool &pool, const std::vector<End> &ranks,
                   std::shared_ptr<const CheckWords> check);
    void submit(std::unique_ptr<Share> share);
    // As of a lane (lane.h); halts first.
    std::optional<std::uint16_t> echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                      std::int64_t timeout_ns);
    // May be called by several threads at once.
    void halt();
    Stats stats() const;
    std::int64_t silent_ns() const;
    std::uint64_t position() const;

private:
    // A slot: the position whose sum comes next, and what was said of the one before it.
    struct Slot {
        std::uint64_t position = 0;
        bool early = false;  // its sum is here, and nobody has asked for it yet
        Acknowledged last;
        std::vector<std::int8_t> levels;  // said with it
        Damage damage;
    };

    void stop();
    void run();
    void take_submitted();
    void handle(int i);
    bool is_sum(int i, Header &header) const;
    Share *share_of(std::uint64_t position);
    void take(Share &share, Slot &slot, const Header &header, const std::uint8_t *vector);
    std::optional<std::uint16_t> verified(const Share &share, Slot &slot, const Header &header,
                                          const std::uint8_t *vector);
    bool open(Share &share, Slot &slot, const std::uint8_t *vector, std::uint16_t &code);
    void acknowledge(bool now);
    void say(const std::vector<Acknowledged> &entries, const std::vector<std::int8_t> &levels,
             const std::vector<sockaddr_in> &to, std::uint16_t flags = 0);
    std::uint32_t generation_of(std::uint64_t position) const {
        return static_cast<std::uint32_t>(position / slots_.size());
    }
    std::uint8_t *kept(const Slot &slot) { return kept_.data() + slot.position % slots_.size() * bytes_; }

    const std::unique_ptr<Socket> socket_;
    Header header_{};
    Pool pool_{};
    int world_size_ = 0;
    std::shared_ptr<const CheckWords> check_;
    std::size_t elements_ = 0, bytes_ = 0;  // of a packet
    std::vector<sockaddr_in> ranks_;
    std::vector<Slot> slots_;
    std::vector<std::uint8_t> kept_;  // by slot, packets that came early
    std::deque<std::unique_ptr<Share>> shares_;
    std::vector<Acknowledged> pending_;  // not yet said
    std::int64_t pending_due_ns_ = 0;
    bool marked_ = false;  // a sum was, which is not yet said
    std::vector<std::shared_ptr<Operation>> finished_;
    std::int64_t heard_ns_ = 0;
    Stats stats_;  // the thread's own

    mutable std::mutex mutex_;
    std::deque<std::unique_ptr<Share>> incoming_;
    std::uint64_t next_position_ = 0;
    bool busy_ = false;
    Stats shown_;
    std::int64_t shown_heard_ns_ = 0;
    std::uint64_t shown_position_ = 0;
    std::atomic<bool> quit_{false};
    std::mutex life_;  // held while the thread is started or stopped
    std::thread thread_;
};

}  // namespace netfold
