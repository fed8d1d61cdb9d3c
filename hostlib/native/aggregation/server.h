// A server's endpoint of the slot protocol: it returns the switch's sums unchanged.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "net/pool.h"
#include "net/socket.h"
#include "net/stats.h"
#include "wire/check_words.h"
#include "wire/header.h"

namespace netfold {

// One slot pool: a socket and, while configured, a thread. It stores no sums: the switch keeps them until the workers
// have the result, and repeats one when a worker asks again.
class Server {
public:
    // Port 0 takes any. Throws std::system_error if it cannot be bound.
    Server(const std::string &address, std::uint16_t port);
    ~Server() { halt(); }
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;

    std::string address() const { return socket_->address(); }
    std::uint16_t port() const { return socket_->port(); }

    // Answers sums of this job from now on: to the switch, which multicasts, or to each of the workers, if there are
    // any.
    void configure(const End &fabric, const Header &header, const Pool &pool, int world_size,
                   const std::vector<End> &workers, std::shared_ptr<const CheckWords> check);
    // As of a lane (lane.h); halts first.
    std::optional<std::uint16_t> echo(const End &fabric, const std::vector<std::uint8_t> &question,
                                      std::int64_t timeout_ns);
    // May be called by several threads at once.
    void halt();
    Stats stats() const;

private:
    void stop();
    void run();
    void answer(int i);
    bool is_sum(int i, Header &header) const;
    bool is_whole(const Header &header, const std::uint8_t *vector) const;
    void answer_workers(const Header &header, const std::uint8_t *packet);
    void send_to_all();
    void repeat_mark(bool marked);
    void put(const Header &sum, const std::uint8_t *packet);
    void count_sent(std::size_t packets);

    const std::unique_ptr<Socket> socket_;
    Header header_{};
    Pool pool_{};
    int world_size_ = 0;
    std::shared_ptr<const CheckWords> check_;
    std::size_t bytes_ = 0;  // of a packet
    std::vector<sockaddr_in> workers_;
    std::vector<std::int64_t> answered_;  // by slot, the generation last sent to the workers; -1 for none
    bool repeats_mark_ = false;           // what the next batch says
    Stats stats_;                         // the thread's own
    mutable std::mutex mutex_;
    Stats shown_;
    std::atomic<bool> quit_{false};
    std::mutex life_;  // held while the thread is started or stopped
    std::thread thread_;
};

}  // namespace netfold
