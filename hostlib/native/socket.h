// A bound UDP socket that sends and receives in batches.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace netfold {

class Socket {
public:
    static constexpr int BATCH = 32;

    // Throws std::system_error when the address cannot be bound.
    Socket(const std::string &address, std::uint16_t port);
    ~Socket();
    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;

    std::string address() const;
    std::uint16_t port() const;

    // Where everything is sent to and received from, and the packet size from now on.
    void aim(const std::string &address, std::uint16_t port, std::size_t packet_bytes);

    // A buffer for the next packet; it leaves with the batch, at the latest at flush().
    std::uint8_t *next();
    // How often the system said that nobody listens there any more.
    unsigned flush();

    // Wait up to timeout_ns, then take what is there; the number of datagrams, whose bytes are packet(i).
    int receive(std::int64_t timeout_ns);
    // From another thread: a receive() that waits, or the next one, returns at once.
    void interrupt();

    const std::uint8_t *packet(int i) const { return received_[static_cast<std::size_t>(i)].data; }
    std::size_t bytes(int i) const { return received_[static_cast<std::size_t>(i)].bytes; }

private:
    // One pass through the network stack for several packets (UDP GSO); how many were sent, or -1.
    int send_bundle(int first);

    // The datagrams of one received bundle (UDP GRO), into received_.
    void split(int i);

    struct Received {
        const std::uint8_t *data;
        std::size_t bytes;
    };

    static constexpr std::size_t BUNDLES = 8, BUNDLE_ROOM = 1 << 16;

    int fd_, woken_;
    bool bundles_ = true;
    unsigned refused_ = 0;
    std::size_t packet_bytes_ = 0;
    int queued_ = 0;
    std::vector<std::uint8_t> out_, in_;
    std::vector<Received> received_;
    mmsghdr tx_[BATCH]{}, rx_[BUNDLES]{};
    iovec tx_iov_[BATCH]{}, rx_iov_[BUNDLES]{};
    alignas(cmsghdr) char control_[BUNDLES][CMSG_SPACE(sizeof(int))]{};
};

}  // namespace netfold
