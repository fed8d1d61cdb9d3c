// A bound UDP socket that sends and receives in batches.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace netfold {

// An IPv4 address and a UDP port; port 0 is nobody's.
struct End {
    std::string address;
    std::uint16_t port = 0;
};

// Throws std::invalid_argument when the address is none.
sockaddr_in resolve(const End &end);

class UdpSocket {
public:
    static constexpr int BATCH = 32;

    // Throws std::system_error when the address cannot be bound.
    UdpSocket(const std::string &address, std::uint16_t port);
    ~UdpSocket();
    UdpSocket(const UdpSocket &) = delete;
    UdpSocket &operator=(const UdpSocket &) = delete;

    std::string address() const;
    std::uint16_t port() const;

    // Where everything is sent to, and the packet size from now on. It is received from there, or only from `answers`
    // if that is somebody: every time, or never.
    void aim(const End &target, std::size_t packet_bytes, const End &answers = {});

    // A buffer for the next packet; it leaves with the batch, at the latest at flush().
    std::uint8_t *next();
    // How often the system said that nobody listens there any more.
    unsigned flush();

    // The batch to somebody else; it stays, until it is dropped.
    void copy_to(const sockaddr_in &end) { transmit(&end); }
    int queued() const { return queued_; }
    bool full() const { return queued_ == BATCH; }
    void drop() { queued_ = 0; }

    // Wait up to timeout_ns, then take what is there; the number of datagrams, whose bytes are packet(i).
    int receive(std::int64_t timeout_ns);
    // From another thread: a receive() that waits, or the next one, returns at once.
    void interrupt();

    const std::uint8_t *packet(int i) const { return received_[static_cast<std::size_t>(i)].data; }
    std::size_t bytes(int i) const { return received_[static_cast<std::size_t>(i)].bytes; }

private:
    void transmit(const sockaddr_in *to);
    // One pass through the network stack for several packets (UDP GSO); how many were sent, or -1.
    int send_bundle(int first, const sockaddr_in *to);

    // The datagrams of one received bundle (UDP GRO), into received_.
    void split(int i);

    struct Received {
        const std::uint8_t *data;
        std::size_t bytes;
    };

    static constexpr std::size_t BUNDLES = 8, BUNDLE_ROOM = 1 << 16;

    int fd_, woken_;
    bool connected_ = true;
    sockaddr_in target_{}, answers_{};  // when it is not connected
    bool bundles_ = true;
    unsigned refused_ = 0;
    std::size_t packet_bytes_ = 0;
    int queued_ = 0;
    std::vector<std::uint8_t> out_, in_;
    std::vector<Received> received_;
    mmsghdr tx_[BATCH]{}, rx_[BUNDLES]{};
    iovec tx_iov_[BATCH]{}, rx_iov_[BUNDLES]{};
    sockaddr_in sources_[BUNDLES]{};
    alignas(cmsghdr) char control_[BUNDLES][CMSG_SPACE(sizeof(int))]{};
};

}  // namespace netfold
