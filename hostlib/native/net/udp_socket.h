// A bound UDP socket that sends and receives in batches.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace netfold {

// An IPv4 address and a UDP port; port 0 is nobody's.
struct End {
    std::string address;
    std::uint16_t port = 0;
};

// Throws std::invalid_argument if the text is not an address.
sockaddr_in resolve(const End &end);

class UdpSocket {
public:
    static constexpr int BATCH = 32;
    // Bytes that wait below a socket that has not been told. Fewer than what fits in front of a slow link: a full
    // buffer blocks, a full queue loses packets.
    static constexpr std::size_t MOST_BELOW = 2 << 20;

    // Throws std::system_error if the address cannot be bound.
    UdpSocket(const std::string &address, std::uint16_t port);
    ~UdpSocket();
    UdpSocket(const UdpSocket &) = delete;
    UdpSocket &operator=(const UdpSocket &) = delete;

    std::string address() const;
    std::uint16_t port() const;

    // Sets the destination and the packet size. Packets are received from the destination, or only from `senders` if
    // there are any: in every call, or never.
    void aim(const End &target, std::size_t packet_bytes, const std::vector<End> &senders = {});

    // Sends a datagram to `to` and waits until it comes back from there with nothing changed but the 16 bits at `at`,
    // which are returned; none if it does not come in time. Whatever else comes meanwhile is for the next receive().
    std::optional<std::uint16_t> echo(const End &to, const std::vector<std::uint8_t> &datagram, std::size_t at,
                                      std::int64_t timeout_ns);

    // About so many bytes of packets wait below this socket at a time, and the others in flush().
    void keep_below(std::size_t bytes);
    std::size_t below() const { return below_; }

    // Packets from here overtake others of this host that wait for the same interface, where its queue has priorities,
    // as Linux's own has (tc-pfifo_fast(8)).
    void overtake();

    // Returns a buffer for the next packet, which is sent with the batch, at the latest at flush().
    std::uint8_t *next();
    // How often the system reported that nobody listens at the target any more.
    unsigned flush();

    // Sends the batch to another address as well; it is kept until it is dropped.
    void copy_to(const sockaddr_in &end) { transmit(&end); }
    int queued() const { return queued_; }
    bool full() const { return queued_ == BATCH; }
    void drop() { queued_ = 0; }

    // Sends a datagram of any size at once, past the batch.
    void send_to(const sockaddr_in &end, const std::uint8_t *datagram, std::size_t bytes);

    // Waits up to timeout_ns, then reads what has arrived; returns the number of datagrams, whose bytes are packet(i).
    int receive(std::int64_t timeout_ns);
    // Whether receive() took all that had arrived.
    bool drained() const { return drained_; }
    // From another thread: makes the current receive(), or the next one, return at once.
    void interrupt();

    const std::uint8_t *packet(int i) const { return received_[static_cast<std::size_t>(i)].data; }
    std::size_t bytes(int i) const { return received_[static_cast<std::size_t>(i)].bytes; }

private:
    void transmit(const sockaddr_in *to);
    // Sends several packets in one pass through the network stack (UDP GSO); returns how many were sent, or -1.
    int send_bundle(int first, const sockaddr_in *to);

    // Waits up to timeout_ns, then reads bundles; returns their number.
    int read(std::int64_t timeout_ns);
    // Splits a received bundle (UDP GRO) into datagrams, into received_.
    void split(int i);
    // Counts the system's reports that nobody listens at the target, of a socket that sends to others as well.
    void read_errors();
    // Whether packets from there are received.
    bool is_wanted(const sockaddr_in &source) const;

    struct Received {
        const std::uint8_t *data;
        std::size_t bytes;
    };

    struct Early {
        sockaddr_in source;
        std::vector<std::uint8_t> bytes;
    };

    static constexpr std::size_t BUNDLES = 8, BUNDLE_ROOM = 1 << 16, MOST_EARLY = 4096;

    int fd_, woken_;
    bool connected_ = true;
    sockaddr_in target_{};
    std::vector<sockaddr_in> senders_;  // from whom packets are received
    bool bundles_ = true;
    std::size_t below_ = MOST_BELOW;
    bool drained_ = true;
    unsigned refused_ = 0;
    std::size_t packet_bytes_ = 0;
    int queued_ = 0;
    std::vector<std::uint8_t> out_, in_;
    std::vector<Received> received_;
    std::vector<Early> early_, replayed_;  // what came during echo()
    mmsghdr tx_[BATCH]{}, rx_[BUNDLES]{};
    iovec tx_iov_[BATCH]{}, rx_iov_[BUNDLES]{};
    sockaddr_in sources_[BUNDLES]{};
    alignas(cmsghdr) char control_[BUNDLES][CMSG_SPACE(sizeof(int))]{};
};

}  // namespace netfold
