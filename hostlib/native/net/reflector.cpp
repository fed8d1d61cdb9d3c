#include "net/reflector.h"

#include <arpa/inet.h>
#include <netinet/udp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

#include "net/segments.h"
#include "net/socket.h"
#include "wire/byte_order.h"
#include "wire/layout.h"

namespace netfold {
namespace {

constexpr unsigned BUNDLES = 8;
constexpr std::size_t ROOM = 1 << 16;
constexpr int BUFFER_BYTES = 8 << 20, LOOKS_UP_MS = 50;

// Bundles of datagrams (UDP GRO), which leave as they came (UDP GSO).
struct Bundles {
    std::vector<std::uint8_t> bytes = std::vector<std::uint8_t>(BUNDLES * ROOM);
    mmsghdr messages[BUNDLES]{};
    iovec parts[BUNDLES]{};
    sockaddr_in from[BUNDLES]{};
    alignas(cmsghdr) char control[BUNDLES][CMSG_SPACE(sizeof(int))]{};

    std::uint8_t *at(unsigned i) { return bytes.data() + i * ROOM; }

    void make_room() {
        for (unsigned i = 0; i < BUNDLES; i++) {
            parts[i] = {at(i), ROOM};
            messages[i].msg_hdr = {&from[i], sizeof from[i], &parts[i], 1, control[i], sizeof control[i], 0};
        }
    }

    void turn_round(unsigned i) {
        msghdr &message = messages[i].msg_hdr;
        const std::size_t total = messages[i].msg_len, each = segment_bytes(message, total);
        parts[i].iov_len = total;
        for (std::size_t start = 0; start + layout::HEADER_BYTES <= total; start += each) {
            std::uint8_t *header = at(i) + start;
            put8(header + layout::OFFSET_OPERATION, layout::OPERATION_RESULT);
            put16(header + layout::OFFSET_RANK, layout::RANK_ALL);
        }
        message.msg_flags = 0;
        message.msg_controllen = 0;
        if (total > each) set_segment_bytes(message, each);
    }
};

}  // namespace

Reflector::Reflector(const std::string &address, std::uint16_t port) {
    sockaddr_in here = resolve({address, port});
    socklen_t size = sizeof here;
    fd_ = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    const timeval looks_up{0, LOOKS_UP_MS * 1000};
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &BUFFER_BYTES, sizeof BUFFER_BYTES);
    setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &BUFFER_BYTES, sizeof BUFFER_BYTES);
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &looks_up, sizeof looks_up);
    setsockopt(fd_, IPPROTO_UDP, UDP_GRO, &on, sizeof on);
    if (fd_ < 0 || ::bind(fd_, reinterpret_cast<sockaddr *>(&here), sizeof here) != 0
        || ::getsockname(fd_, reinterpret_cast<sockaddr *>(&here), &size) != 0) {
        const int why = errno;
        if (fd_ >= 0) ::close(fd_);
        throw std::system_error(why, std::generic_category(),
                                "cannot bind udp " + address + ":" + std::to_string(port));
    }
    port_ = ntohs(here.sin_port);
    thread_ = std::thread([this] { run(); });
}

Reflector::~Reflector() {
    quit_ = true;
    thread_.join();
    ::close(fd_);
}

void Reflector::run() {
    Bundles bundles;
    while (!quit_) {
        bundles.make_room();
        const int came = ::recvmmsg(fd_, bundles.messages, BUNDLES, MSG_WAITFORONE, nullptr);
        for (int i = 0; i < came; i++) bundles.turn_round(static_cast<unsigned>(i));
        for (int sent = 0; sent < came;) {
            const int n = ::sendmmsg(fd_, bundles.messages + sent, static_cast<unsigned>(came - sent), 0);
            sent += std::max(n, 1);  // what cannot be sent is lost, and the rank sends it again
        }
    }
}

}  // namespace netfold
