// A server's end of the slot protocol: what the switch has summed goes back as it came.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "net/pool.h"
#include "net/stats.h"
#include "net/udp_socket.h"
#include "wire/header.h"

namespace netfold {

// One pool of slots: a socket, and while it is configured a thread. It keeps no sums: the switch keeps them until the
// workers have the result, and repeats one when a worker asks again.
class Server {
public:
    // Port 0 takes any. Throws std::system_error when it cannot be bound.
    Server(const std::string &address, std::uint16_t port);
    ~Server() { halt(); }
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;

    std::string address() const { return socket_.address(); }
    std::uint16_t port() const { return socket_.port(); }

    // Answer sums of this job from now on: the switch, which multicasts, or each of the workers, if there are any.
    void configure(const End &fabric, const Header &header, const Pool &pool, int world_size,
                   const std::vector<End> &workers);
    // Also from several threads at a time.
    void halt();
    Stats stats() const;

private:
    void stop();
    void run();
    void answer(int i);
    bool is_sum(int i, Header &header) const;
    void answer_workers(const Header &header, const std::uint8_t *packet);
    void send_to_all();
    void put(const Header &sum, const std::uint8_t *packet);
    void count_sent(std::size_t packets);

    UdpSocket socket_;
    Header header_{};
    Pool pool_{};
    int world_size_ = 0;
    std::size_t bytes_ = 0;  // of a packet
    std::vector<sockaddr_in> workers_;
    std::vector<std::int64_t> answered_;  // by slot, the generation that the workers were sent last; -1 for none
    Stats stats_;                         // the thread's own
    mutable std::mutex mutex_;
    Stats shown_;
    std::atomic<bool> quit_{false};
    std::mutex life_;  // of the thread: held while it is started or ended
    std::thread thread_;
};

}  // namespace netfold
