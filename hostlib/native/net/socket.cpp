#include "net/socket.h"

#include <arpa/inet.h>

#include <cstdlib>
#include <stdexcept>

#include "net/environment.h"
#include "net/udp_socket.h"
#include "net/xdp/xdp_socket.h"

namespace netfold {

sockaddr_in resolve(const End &end) {
    sockaddr_in out{};
    out.sin_family = AF_INET;
    out.sin_port = htons(end.port);
    if (inet_pton(AF_INET, end.address.c_str(), &out.sin_addr) != 1)
        throw std::invalid_argument("'" + end.address + "' is not an IPv4 address");
    return out;
}

std::int64_t busy_poll_ns() { return 1000 * number_named("NETFOLD_BUSY_POLL", 0, 1000000, "microseconds"); }

void poll_card(int descriptor, std::int64_t busy_ns) {
    if (busy_ns == 0) return;  // As the system has it: net.core.busy_read.
    const int us = static_cast<int>(busy_ns / 1000);
    setsockopt(descriptor, SOL_SOCKET, SO_BUSY_POLL, &us, sizeof us);
}

std::unique_ptr<Socket> open_socket(const std::string &address, std::uint16_t port) {
    const char *named = std::getenv("NETFOLD_PATH");
    const std::string path = named == nullptr ? "udp" : named;
    if (path == "udp") return std::make_unique<UdpSocket>(address, port);
    if (path == "xdp") return std::make_unique<XdpSocket>(address, port);
    throw std::invalid_argument("NETFOLD_PATH=" + path + ": it is udp or xdp");
}

}  // namespace netfold
