// AF_XDP as a path: packets go to an interface's driver and come from it past the kernel's network stack.
#pragma once

#include <linux/if_xdp.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "net/socket.h"
#include "net/udp_socket.h"
#include "net/xdp/frame.h"
#include "net/xdp/netlink.h"
#include "net/xdp/program.h"
#include "net/xdp/ring.h"
#include "net/xdp/xdp_queue.h"

namespace netfold {

// Beside its rings it has a UDP socket, which holds the port. What the rings do not take goes that way: packets to whom
// no MAC is known yet, or over another interface, and packets that arrive on another queue.
class XdpSocket final : public Socket {
public:
    // Throws std::system_error if this process may not use AF_XDP, or if the address cannot be bound.
    XdpSocket(const std::string &address, std::uint16_t port);
    ~XdpSocket() override;
    XdpSocket(const XdpSocket &) = delete;
    XdpSocket &operator=(const XdpSocket &) = delete;

    std::string address() const override { return udp_.address(); }
    std::uint16_t port() const override { return udp_.port(); }
    using Socket::aim;
    // Also throws if the interface on the way to the target is none for this path.
    void aim(const End &target, std::size_t packet_bytes, const std::vector<End> &senders) override;
    std::optional<std::uint16_t> echo(const End &to, const std::vector<std::uint8_t> &datagram, std::size_t at,
                                      std::int64_t timeout_ns) override;
    void keep_below(std::size_t bytes) override;
    std::size_t below() const override { return udp_.below(); }
    // A ring passes queues by.
    void overtake(bool others) override { udp_.overtake(others); }
    void set_ecn(int bits) override;
    std::uint8_t *next() override;
    unsigned flush() override;
    void copy_to(const sockaddr_in &end) override;
    int queued() const override { return static_cast<int>(batch_.size()); }
    void drop() override;
    void send_to(const sockaddr_in &end, const std::uint8_t *datagram, std::size_t bytes, bool urgent) override {
        udp_.send_to(end, datagram, bytes, urgent);
    }
    int receive(std::int64_t timeout_ns) override;
    bool drained() const override { return drained_; }
    void interrupt() override { udp_.interrupt(); }

private:
    // Where a packet is built: memory for a frame, with its headers in front, or none.
    struct Built {
        std::uint8_t *payload;
        int frame;
    };
    // The way to an address over the rings' interface.
    struct Hop {
        sockaddr_in to{};
        std::int64_t due_ns = 0;  // when the kernel is asked again
        bool known = false;
        bool ask = false;  // the next packet goes by UDP, so that the kernel asks the neighbour whether it is there
        std::uint8_t headers[frame::HEADERS_BYTES]{};
    };

    void open(int interface);
    void close();
    void hear();
    Hop &hop_to(const sockaddr_in &to, std::int64_t now);
    void look_up(Hop &hop, std::int64_t now);

    std::uint64_t start_of(int frame) const;
    bool is_free(int frame) const;
    int free_frame();
    int most_on_way() const;
    bool await_room();
    bool post(int frame, const Hop &hop);
    void kick();
    void send_by_udp(const Built &built, const sockaddr_in &to);

    void wait(std::int64_t timeout_ns);
    void take();
    void take_frame(std::uint32_t first, std::uint32_t count);
    bool is_wanted(const sockaddr_in &source) const;

    UdpSocket udp_;
    Netlink netlink_;
    sockaddr_in here_{};  // as packets have it
    sockaddr_in target_{};
    std::vector<sockaddr_in> senders_;  // from whom packets are received
    std::size_t packet_bytes_ = 0;

    // While there are rings.
    std::shared_ptr<XdpQueue> queue_;
    unsigned number_ = 0;
    Descriptor socket_;
    std::unique_ptr<Ring<xdp_desc>> sent_, received_frames_;
    bool copies_ = true;  // the kernel does, and only when it is told

    // Sending.
    std::size_t frame_chunks_ = 1;
    int frames_ = 0;
    std::vector<bool> building_;  // by frame: it is in the batch
    int search_from_ = 0;
    int on_way_ = 0;  // frames that the kernel may still have
    std::vector<Built> batch_;
    std::vector<std::uint8_t> spilt_;  // packets of a batch for which there was no frame
    std::vector<Hop> hops_;
    int ecn_bits_ = 0;
    std::int64_t shut_until_ns_ = 0;  // the interface takes nothing

    // Receiving.
    std::vector<std::uint64_t> read_;     // chunks that the caller has
    std::vector<std::uint8_t> gathered_;  // frames that came in several chunks
    std::size_t gathered_frames_ = 0;
    bool udp_readable_ = false;
    std::int64_t look_at_udp_ns_ = 0;
    bool drained_ = true;
};

}  // namespace netfold
