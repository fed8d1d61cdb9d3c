// The kernel's UDP socket as a path: packets go and come in bundles (UDP GSO and GRO).
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "net/segments.h"
#include "net/socket.h"

namespace netfold {

class UdpSocket final : public Socket {
public:
    // Throws std::system_error if the address cannot be bound.
    UdpSocket(const std::string &address, std::uint16_t port);
    ~UdpSocket() override;
    UdpSocket(const UdpSocket &) = delete;
    UdpSocket &operator=(const UdpSocket &) = delete;

    std::string address() const override;
    std::uint16_t port() const override;
    using Socket::aim;
    void aim(const End &target, std::size_t packet_bytes, const std::vector<End> &senders) override;
    std::optional<std::uint16_t> echo(const End &to, const std::vector<std::uint8_t> &datagram, std::size_t at,
                                      std::int64_t timeout_ns) override;
    void keep_below(std::size_t bytes) override;
    std::size_t below() const override { return below_; }
    void overtake(bool others) override;
    void set_ecn(int bits) override;
    std::uint8_t *next() override;
    unsigned flush() override;
    void copy_to(const sockaddr_in &end) override { transmit(&end); }
    int queued() const override { return queued_; }
    void drop() override { queued_ = 0; }
    void send_to(const sockaddr_in &end, const std::uint8_t *datagram, std::size_t bytes, bool urgent) override;
    int receive(std::int64_t timeout_ns) override;
    bool drained() const override { return drained_; }
    void interrupt() override;

    // For who waits for others as well: receive() has something to do if one of them is readable.
    int descriptor() const { return fd_; }
    int interrupted() const { return woken_; }
    std::int64_t busy_ns() const { return busy_ns_; }

private:
    void transmit(const sockaddr_in *to);
    // As sendto(2), an urgent one with CS6 if this kernel can; errno says what went wrong.
    bool send_one(const sockaddr_in &end, const std::uint8_t *datagram, std::size_t bytes, bool urgent);
    // Sends several packets in one pass through the network stack (UDP GSO); returns how many were sent, or -1.
    int send_bundle(int first, const sockaddr_in *to);

    // Waits up to timeout_ns, then reads bundles; returns their number.
    int read(std::int64_t timeout_ns);
    // Reads bundles that are here.
    int take();
    // Splits a received bundle (UDP GRO) into datagrams, into received_.
    void split(int i);
    // Counts the system's reports that nobody listens at the target, of a socket that sends to others as well.
    void read_errors();
    // Whether packets from there are received.
    bool is_wanted(const sockaddr_in &source) const;

    struct Early {
        sockaddr_in source;
        std::vector<std::uint8_t> bytes;
    };

    static constexpr std::size_t BUNDLES = 8, BUNDLE_ROOM = 1 << 16, MOST_EARLY = 4096;

    const std::int64_t busy_ns_ = busy_poll_ns();
    int fd_, woken_;
    std::atomic<bool> interrupted_ = false;  // woken_ is readable, or about to be
    bool connected_ = true;
    sockaddr_in target_{};
    std::vector<sockaddr_in> senders_;  // from whom packets are received
    bool bundles_ = true;
    bool overtakes_ = false, urgent_ = true;  // see send_to()
    std::size_t below_ = MOST_BELOW;
    bool drained_ = true;
    unsigned refused_ = 0;
    std::size_t packet_bytes_ = 0;
    int queued_ = 0;
    std::vector<std::uint8_t> out_, in_;
    std::vector<Early> early_, replayed_;  // what came during echo()
    mmsghdr tx_[BATCH]{}, rx_[BUNDLES]{};
    iovec tx_iov_[BATCH]{}, rx_iov_[BUNDLES]{};
    sockaddr_in sources_[BUNDLES]{};
    alignas(cmsghdr) char control_[BUNDLES][RECEIVED_CONTROL_BYTES]{};
};

}  // namespace netfold
