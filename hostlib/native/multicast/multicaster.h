// A host's endpoint of multicast: messages through the switch to all others in a stream, once over each link.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "multicast/lead.h"
#include "multicast/receiver.h"
#include "multicast/source.h"
#include "multicast/stream.h"

namespace netfold {

// A stream as this host sees it.
struct StreamPlace {
    Pool pool;
    bool source = false;
    std::vector<std::uint16_t> receivers;  // all of them, if this host is the source
    std::vector<End> ends;                 // where they are; or where the source is
};

// Streams over one socket, with a thread while configured. Messages of a stream arrive in the order in which they are
// sent, and must be received with the sizes with which they were sent.
class Multicaster {
public:
    // Port 0 takes any. Throws std::system_error if it cannot be bound.
    Multicaster(const std::string &address, std::uint16_t port);
    ~Multicaster() { halt(); }
    Multicaster(const Multicaster &) = delete;
    Multicaster &operator=(const Multicaster &) = delete;

    std::string address() const { return socket_->address(); }
    std::uint16_t port() const { return socket_->port(); }

    // Restarts all streams and drops unfinished messages: every ticket below the one that is returned. `rank`: the
    // sender in this host's NACKs.
    std::uint64_t configure(const End &fabric, const Header &header, std::uint16_t rank,
                            const std::vector<StreamPlace> &streams, std::shared_ptr<const CheckWords> check);
    // As of a lane (aggregation/lane.h); halts first.
    std::optional<std::uint16_t> echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                      std::int64_t timeout_ns);
    // The bytes must stay where they are until the ticket is done. Throws std::logic_error if halted or if this host is
    // not the stream's source, std::invalid_argument if there is no such stream.
    std::uint64_t send(std::size_t stream, const std::uint8_t *data, std::size_t bytes);
    std::uint64_t receive(std::size_t stream, std::uint8_t *data, std::size_t bytes);
    // Waits up to a timeout; returns whether it is done. A sent message is done when all of it has left once.
    bool wait(std::uint64_t ticket, double seconds);
    // Stops sending and receiving until configure(). May be called by several threads at once.
    void halt();

    // For a stream whose source is this host: every receiver is known to have all chunks before this position.
    std::uint64_t granted(std::size_t stream) const;
    Stats stats() const;
    std::uint64_t position() const;

private:
    // One of both.
    struct Stream {
        std::unique_ptr<Source> source;
        std::unique_ptr<Receiver> receiver;

        // Where this host's source and the receiver were when both began to move.
        bool together = false;
        std::uint64_t sent = 0, reached = 0;

        const Pool &pool() const { return source ? source->pool() : receiver->pool(); }
        bool idle() const { return source ? source->idle() : receiver->idle(); }
        // Whether a source goes by this stream; `begins`: the source, just now.
        bool is_awaited(bool begins) const { return receiver && (together || (begins && !receiver->idle())); }
    };
    struct Asked {
        std::size_t stream;
        Message message;
    };
    struct Shown {
        Stats stats;
        std::uint64_t position = 0;
        std::vector<std::uint64_t> granted;  // by stream
    };

    std::uint64_t ask(std::size_t stream, bool source, std::uint8_t *data, std::size_t bytes);
    void stop();
    void run();
    void take();
    void keep_in_step();
    std::int64_t begins_until_ns(const Source &source) const;
    std::int64_t wake_ns() const;
    void handle(int i, std::int64_t now);
    void show();

    // Used by the thread only.
    const std::unique_ptr<Socket> socket_;
    Way way_;
    std::vector<Stream> streams_;
    Lead lead_;
    std::vector<std::uint64_t> finished_;

    // Shared with callers.
    mutable std::mutex mutex_;
    std::condition_variable done_;
    std::vector<Asked> asked_;
    std::vector<bool> sources_;          // by stream
    std::set<std::uint64_t> under_way_;  // tickets
    std::uint64_t tickets_ = 0;
    bool halted_ = true;
    Shown shown_;
    std::atomic<bool> quit_{false};
    std::mutex life_;  // held while the thread is started or stopped
    std::thread thread_;
};

}  // namespace netfold
