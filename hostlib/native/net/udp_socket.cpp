#include "net/udp_socket.h"

#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <linux/pkt_sched.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <system_error>
#include <utility>

#include "net/clock.h"
#include "net/ecn.h"
#include "net/segments.h"

namespace netfold {
namespace {

constexpr int RECEIVE_BYTES = 8 << 20;
constexpr std::size_t BUNDLE_BYTES = 65000;  // fits an IPv4 datagram, and fewer than 64 segments of 1 KiB
// How long a full socket waits for half of its packets to leave. Whoever looks more often sends them one by one.
constexpr int FULL_MS = 20;
// And if the interface's queue is full, which others fill as well: nobody tells when that has room.
constexpr int REFUSED_MS = 1;
constexpr int URGENT = 48 << 2;  // the DSCP CS6, in the type of service

void write_control(cmsghdr &to, int level, int type, int value) {
    to.cmsg_level = level;
    to.cmsg_type = type;
    to.cmsg_len = CMSG_LEN(sizeof value);
    std::memcpy(CMSG_DATA(&to), &value, sizeof value);
}

}  // namespace

UdpSocket::UdpSocket(const std::string &address, std::uint16_t port) {
    const sockaddr_in here = resolve({address, port});
    fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    woken_ = ::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd_ < 0 || woken_ < 0) throw std::system_error(errno, std::generic_category(), "socket");
    // As much as the system grants: a window of results arrives in one burst.
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &RECEIVE_BYTES, sizeof RECEIVE_BYTES);
    keep_below(MOST_BELOW);
    poll_card(fd_, busy_ns_);
    // Have datagrams that arrive together delivered together, if the system can, and their marks with them.
    const int on = 1;
    setsockopt(fd_, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
    setsockopt(fd_, IPPROTO_IP, IP_RECVTOS, &on, sizeof on);
    in_.resize(BUNDLES * BUNDLE_ROOM);
    if (::bind(fd_, reinterpret_cast<const sockaddr *>(&here), sizeof here) != 0) {
        const int why = errno;
        ::close(fd_);
        ::close(woken_);
        throw std::system_error(why, std::generic_category(),
                                "cannot bind udp " + address + ":" + std::to_string(port));
    }
}

UdpSocket::~UdpSocket() {
    ::close(fd_);
    ::close(woken_);
}

std::string UdpSocket::address() const {
    sockaddr_in here{};
    socklen_t size = sizeof here;
    getsockname(fd_, reinterpret_cast<sockaddr *>(&here), &size);
    char text[INET_ADDRSTRLEN];
    return inet_ntop(AF_INET, &here.sin_addr, text, sizeof text);
}

std::uint16_t UdpSocket::port() const {
    sockaddr_in here{};
    socklen_t size = sizeof here;
    getsockname(fd_, reinterpret_cast<sockaddr *>(&here), &size);
    return ntohs(here.sin_port);
}

void UdpSocket::aim(const End &target, std::size_t packet_bytes, const std::vector<End> &senders) {
    target_ = resolve(target);
    connected_ = senders.empty();
    senders_.clear();
    for (const End &sender : senders) senders_.push_back(resolve(sender));
    if (connected_) senders_.push_back(target_);
    // Connecting filters out packets from other senders, and reports a port where nobody listens any more. Otherwise
    // the system queues such reports.
    const int queued = connected_ ? 0 : 1;
    setsockopt(fd_, IPPROTO_IP, IP_RECVERR, &queued, sizeof queued);
    if (connected_ && ::connect(fd_, reinterpret_cast<const sockaddr *>(&target_), sizeof target_) != 0)
        throw std::system_error(errno, std::generic_category(), "no way to " + target.address);
    packet_bytes_ = packet_bytes;
    queued_ = 0;
    bundles_ = true;
    out_.resize(BATCH * packet_bytes_);
    for (int i = 0; i < BATCH; i++) {
        tx_iov_[i] = {out_.data() + static_cast<std::size_t>(i) * packet_bytes_, packet_bytes_};
        tx_[i].msg_hdr = {nullptr, 0, &tx_iov_[i], 1, nullptr, 0, 0};
    }
}

void UdpSocket::keep_below(std::size_t bytes) {
    below_ = bytes;
    const int half = static_cast<int>(bytes / 2);  // The system doubles it: socket(7).
    setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &half, sizeof half);
}

void UdpSocket::overtake(bool others) {
    overtakes_ = others;
    const int priority = others ? TC_PRIO_INTERACTIVE : TC_PRIO_BESTEFFORT;
    setsockopt(fd_, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
}

void UdpSocket::set_ecn(int bits) {
    int type = 0;
    socklen_t size = sizeof type;
    getsockopt(fd_, IPPROTO_IP, IP_TOS, &type, &size);
    type = (type & ~ecn::BITS) | bits;
    setsockopt(fd_, IPPROTO_IP, IP_TOS, &type, sizeof type);
}

std::uint8_t *UdpSocket::next() {
    if (queued_ == BATCH) flush();
    return out_.data() + static_cast<std::size_t>(queued_++) * packet_bytes_;
}

int UdpSocket::send_bundle(int first, const sockaddr_in *to) {
    int most = std::max(1, static_cast<int>(BUNDLE_BYTES / packet_bytes_));
    most = std::min(most, std::max(1, static_cast<int>(below_ / 2 / packet_bytes_)));
    const int count = std::min(queued_ - first, most);
    iovec bytes{out_.data() + static_cast<std::size_t>(first) * packet_bytes_, count * packet_bytes_};
    alignas(cmsghdr) char control[SEGMENT_CONTROL_BYTES]{};
    const socklen_t name_bytes = to != nullptr ? sizeof *to : 0;
    msghdr message{const_cast<sockaddr_in *>(to), name_bytes, &bytes, 1, control, sizeof control, 0};
    set_segment_bytes(message, packet_bytes_);
    return ::sendmsg(fd_, &message, 0) < 0 ? -1 : count;
}

unsigned UdpSocket::flush() {
    transmit(connected_ ? nullptr : &target_);
    queued_ = 0;
    return std::exchange(refused_, 0);
}

void UdpSocket::transmit(const sockaddr_in *to) {
    for (int i = 0; i < queued_; i++) {
        tx_[i].msg_hdr.msg_name = const_cast<sockaddr_in *>(to);
        tx_[i].msg_hdr.msg_namelen = to ? sizeof *to : 0;
    }
    int sent = 0;
    while (sent < queued_) {
        const int n =
            bundles_ ? send_bundle(sent, to) : ::sendmmsg(fd_, tx_ + sent, static_cast<unsigned>(queued_ - sent), 0);
        if (n > 0) {
            sent += n;
        } else if (bundles_ && (errno == EIO || errno == EINVAL || errno == EMSGSIZE || errno == EOPNOTSUPP)) {
            bundles_ = false;  // This device cannot do it, or a packet is larger than its MTU.
        } else if (errno == EAGAIN) {
            pollfd ready{fd_, POLLOUT, 0};
            ::poll(&ready, 1, FULL_MS);
        } else if (errno == ENOBUFS) {
            ::poll(nullptr, 0, REFUSED_MS);
        } else if (errno == ECONNREFUSED && !connected_) {
            read_errors();  // Of an earlier packet, by whomever.
        } else if (errno != EINTR) {
            if (errno == ECONNREFUSED) refused_++;
            sent++;  // The switch is away. Lost packets are retransmitted.
        }
    }
}

void UdpSocket::send_to(const sockaddr_in &end, const std::uint8_t *datagram, std::size_t bytes, bool urgent) {
    if (send_one(end, datagram, bytes, urgent) || errno != ECONNREFUSED) return;
    // The report is of an earlier packet.
    if (connected_)
        refused_++;
    else
        read_errors();
    send_one(end, datagram, bytes, urgent);
}

bool UdpSocket::send_one(const sockaddr_in &end, const std::uint8_t *datagram, std::size_t bytes, bool urgent) {
    auto *to = const_cast<sockaddr_in *>(&end);
    if (!urgent || !urgent_)
        return ::sendto(fd_, datagram, bytes, 0, reinterpret_cast<sockaddr *>(to), sizeof end) >= 0;
    iovec part{const_cast<std::uint8_t *>(datagram), bytes};
    alignas(cmsghdr) char control[2 * CMSG_SPACE(sizeof(int))]{};
    msghdr message{to, sizeof end, &part, 1, control, sizeof control, 0};
    // The type of service sets the priority within this host, too; it is to stay as it is.
    const int priority = overtakes_ ? TC_PRIO_INTERACTIVE : TC_PRIO_BESTEFFORT;
    cmsghdr *word = CMSG_FIRSTHDR(&message);
    write_control(*word, IPPROTO_IP, IP_TOS, URGENT);
    write_control(*CMSG_NXTHDR(&message, word), SOL_SOCKET, SO_PRIORITY, priority);
    if (::sendmsg(fd_, &message, 0) >= 0) return true;
    if (errno != EINVAL) return false;
    urgent_ = false;  // A kernel before 6.14.
    return send_one(end, datagram, bytes, false);
}

void UdpSocket::read_errors() {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in))];
    for (;;) {
        sockaddr_in to{};
        msghdr report{&to, sizeof to, nullptr, 0, control, sizeof control, 0};
        if (::recvmsg(fd_, &report, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return;
        for (cmsghdr *c = CMSG_FIRSTHDR(&report); c != nullptr; c = CMSG_NXTHDR(&report, c)) {
            if (c->cmsg_level != IPPROTO_IP || c->cmsg_type != IP_RECVERR) continue;
            sock_extended_err error{};
            std::memcpy(&error, CMSG_DATA(c), sizeof error);
            if (error.ee_errno == ECONNREFUSED && same(to, target_)) refused_++;
        }
    }
}

int UdpSocket::receive(std::int64_t timeout_ns) {
    received_.clear();
    if (early_.empty()) {
        const int n = read(timeout_ns);
        for (int i = 0; i < n; i++)
            if (is_wanted(sources_[i])) split(i);
    } else {
        drained_ = false;
        replayed_ = std::exchange(early_, {});
        for (const Early &early : replayed_)
            if (is_wanted(early.source)) received_.push_back({early.bytes.data(), early.bytes.size(), false});
    }
    return static_cast<int>(received_.size());
}

std::optional<std::uint16_t> UdpSocket::echo(const End &to, const std::vector<std::uint8_t> &datagram, std::size_t at,
                                             std::int64_t timeout_ns) {
    const sockaddr_in there = resolve(to);
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    // A socket that is connected to the fabric of an earlier job hears nobody else.
    if (::getpeername(fd_, reinterpret_cast<sockaddr *>(&peer), &size) == 0
        && ::connect(fd_, reinterpret_cast<const sockaddr *>(&there), sizeof there) != 0)
        return std::nullopt;  // There is no route to it, at present.
    ::sendto(fd_, datagram.data(), datagram.size(), 0, reinterpret_cast<const sockaddr *>(&there), sizeof there);
    const std::int64_t give_up = now_ns() + timeout_ns;
    std::optional<std::uint16_t> found;
    for (std::int64_t left = timeout_ns; !found && left > 0; left = give_up - now_ns()) {
        const int n = read(left);
        for (int i = 0; i < n; i++) {
            received_.clear();
            split(i);
            for (const Received &each : received_) {
                const bool is_it = same(sources_[i], there) && each.bytes == datagram.size()
                                   && std::equal(each.data, each.data + at, datagram.data())
                                   && std::equal(each.data + at + 2, each.data + each.bytes, datagram.data() + at + 2);
                if (is_it)
                    found = static_cast<std::uint16_t>(each.data[at] << 8 | each.data[at + 1]);
                else if (early_.size() < MOST_EARLY)
                    early_.push_back({sources_[i], {each.data, each.data + each.bytes}});
            }
        }
    }
    received_.clear();
    return found;
}

int UdpSocket::read(std::int64_t timeout_ns) {
    if (busy_ns_ > 0) {
        const std::int64_t begun = now_ns(), until = begun + std::min(timeout_ns, busy_ns_);
        do {
            if (const int n = take(); n > 0) return n;
        } while (!interrupted_.load(std::memory_order_relaxed) && now_ns() < until);
        timeout_ns = std::max<std::int64_t>(begun + timeout_ns - now_ns(), 0);
    }
    pollfd ready[2] = {{fd_, POLLIN, 0}, {woken_, POLLIN, 0}};
    const timespec wait{timeout_ns / 1000000000, timeout_ns % 1000000000};
    drained_ = true;
    if (::ppoll(ready, 2, &wait, nullptr) <= 0) return 0;
    if (ready[1].revents != 0) {
        interrupted_ = false;
        std::uint64_t count = 0;
        if (::read(woken_, &count, sizeof count) < 0 && errno != EAGAIN)
            throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    if (ready[0].revents == 0) return 0;
    if (!connected_ && (ready[0].revents & POLLERR) != 0) read_errors();
    return take();
}

int UdpSocket::take() {
    for (std::size_t i = 0; i < BUNDLES; i++) {
        rx_iov_[i] = {in_.data() + i * BUNDLE_ROOM, BUNDLE_ROOM};
        rx_[i].msg_hdr = {&sources_[i], sizeof sources_[i], &rx_iov_[i], 1, control_[i], sizeof control_[i], 0};
    }
    const int n = ::recvmmsg(fd_, rx_, BUNDLES, MSG_DONTWAIT, nullptr);
    if (n < 0 && errno == ECONNREFUSED) refused_++;
    drained_ = n < static_cast<int>(BUNDLES);
    return std::max(n, 0);
}

void UdpSocket::interrupt() {
    interrupted_ = true;
    const std::uint64_t one = 1;
    // It only fails if the counter is full, and then the thread is awake.
    [[maybe_unused]] const auto written = ::write(woken_, &one, sizeof one);
}

bool UdpSocket::is_wanted(const sockaddr_in &source) const {
    return std::any_of(senders_.begin(), senders_.end(),
                       [&source](const sockaddr_in &sender) { return same(sender, source); });
}

void UdpSocket::split(int i) {
    const std::size_t total = rx_[i].msg_len, each = segment_bytes(rx_[i].msg_hdr, total);
    const bool marked = is_marked(rx_[i].msg_hdr);  // The kernel joins only datagrams that agree in it.
    for (std::size_t at = 0; at < total; at += each)
        received_.push_back({in_.data() + i * BUNDLE_ROOM + at, std::min(each, total - at), marked});
}

}  // namespace netfold
