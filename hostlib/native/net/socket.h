// A bound socket for datagrams, which sends and receives in batches. There are several ways to the network: paths.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <memory>
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

inline bool same(const sockaddr_in &a, const sockaddr_in &b) {
    return a.sin_addr.s_addr == b.sin_addr.s_addr && a.sin_port == b.sin_port;
}

class Socket {
public:
    static constexpr int BATCH = 32;
    // Bytes that wait below a socket that has not been told. Fewer than what fits in front of a slow link: a full
    // buffer blocks, a full queue loses packets.
    static constexpr std::size_t MOST_BELOW = 2 << 20;

    virtual ~Socket() = default;
    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;

    virtual std::string address() const = 0;
    virtual std::uint16_t port() const = 0;

    // Sets the destination and the packet size. Packets are received from the destination, or only from `senders` if
    // there are any: in every call, or never. Throws std::system_error if there is no way to it.
    virtual void aim(const End &target, std::size_t packet_bytes, const std::vector<End> &senders) = 0;
    void aim(const End &target, std::size_t packet_bytes) { aim(target, packet_bytes, {}); }

    // Sends a datagram to `to` and waits until it comes back from there with nothing changed but the 16 bits at `at`,
    // which are returned; none if it does not come in time. Whatever else comes meanwhile is for the next receive().
    virtual std::optional<std::uint16_t> echo(const End &to, const std::vector<std::uint8_t> &datagram, std::size_t at,
                                              std::int64_t timeout_ns) = 0;

    // About so many bytes of packets wait below this socket at a time, and the others in flush().
    virtual void keep_below(std::size_t bytes) = 0;
    virtual std::size_t below() const = 0;

    // Whether packets from here overtake others of this host that wait for the same interface, where its queue has
    // priorities, as Linux's own has (tc-pfifo_fast(8)).
    virtual void overtake(bool others) = 0;

    // The ECN bits (ecn.h) of what flush() and copy_to() send from now on; 0 until then.
    virtual void set_ecn(int bits) = 0;

    // Returns a buffer for the next packet, which is sent with the batch, at the latest at flush().
    virtual std::uint8_t *next() = 0;
    // How often the system reported that nobody listens at the target any more.
    virtual unsigned flush() = 0;

    // Sends the batch to another address as well; it is kept until it is dropped.
    virtual void copy_to(const sockaddr_in &end) = 0;
    virtual int queued() const = 0;
    virtual void drop() = 0;
    bool full() const { return queued() == BATCH; }

    // Sends a datagram of any size at once, past the batch. An urgent one says in its DSCP that others wait for it
    // (CS6, as RoCE's congestion notifications): switches that trust that let it overtake.
    virtual void send_to(const sockaddr_in &end, const std::uint8_t *datagram, std::size_t bytes, bool urgent) = 0;

    // Waits up to timeout_ns, then reads what has arrived; returns the number of datagrams, whose bytes are packet(i).
    virtual int receive(std::int64_t timeout_ns) = 0;
    // Whether receive() took all that had arrived.
    virtual bool drained() const = 0;
    // From another thread: makes the current receive(), or the next one, return at once.
    virtual void interrupt() = 0;

    const std::uint8_t *packet(int i) const { return received_[static_cast<std::size_t>(i)].data; }
    std::size_t bytes(int i) const { return received_[static_cast<std::size_t>(i)].bytes; }
    // Whether a queue on its way marked it.
    bool marked(int i) const { return received_[static_cast<std::size_t>(i)].marked; }

protected:
    Socket() = default;

    struct Received {
        const std::uint8_t *data;
        std::size_t bytes;
        bool marked;
    };

    std::vector<Received> received_;
};

// How long a socket looks for packets again and again before its thread sleeps: NETFOLD_BUSY_POLL, in microseconds, 0
// without it. Throws std::invalid_argument if that is no such number.
std::int64_t busy_poll_ns();

// Has the kernel look at the network card's queue, too, whenever the socket is read (SO_BUSY_POLL of socket(7)), if it
// lets this process.
void poll_card(int descriptor, std::int64_t busy_ns);

// A socket on the path that NETFOLD_PATH names: `udp`, which is the default, or `xdp`. Port 0 takes any. Throws
// std::invalid_argument if there is no such path, std::system_error if this process cannot use it or bind the address.
std::unique_ptr<Socket> open_socket(const std::string &address, std::uint16_t port);

}  // namespace netfold
