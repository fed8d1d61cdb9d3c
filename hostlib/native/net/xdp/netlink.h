// What the kernel knows of the way to an address: route, neighbour, interface (rtnetlink(7)).
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace netfold {

using Mac = std::array<std::uint8_t, 6>;

struct Route {
    int interface = 0;
    in_addr source{};  // that the kernel would give a packet
    in_addr next{};    // who gets it: a gateway, or the destination itself
};

struct Neighbour {
    Mac mac{};
    bool confirmed = false;  // otherwise the kernel has not heard of it for a while
};

struct Interface {
    std::string name;
    Mac mac{};
    std::size_t mtu = 0;
    bool is_loopback = false;
    bool is_ethernet = false;
};

// For one thread at a time. Its network namespace is the one in which it was made.
class Netlink {
public:
    // Throws std::system_error.
    Netlink();
    ~Netlink();
    Netlink(const Netlink &) = delete;
    Netlink &operator=(const Netlink &) = delete;

    // None if there is none, or if it is not one host's. `from` 0: any of this host's addresses.
    std::optional<Route> route(in_addr to, in_addr from);
    // None if its MAC is not known.
    std::optional<Neighbour> neighbour(int interface, in_addr address);
    // Throws std::system_error if there is no such interface.
    Interface interface(int index);
    // Kinds of the queueing disciplines of an interface, with those of its single queues.
    std::vector<std::string> disciplines(int index);

private:
    using Bytes = std::vector<std::uint8_t>;

    // The replies to a request, each with its fixed part and its attributes. Empty where the kernel says no.
    template <class Body>
    std::vector<Bytes> ask(std::uint16_t type, std::uint16_t flags, const Body &body,
                           const std::vector<std::pair<std::uint16_t, in_addr>> &attributes);

    int fd_;
    std::uint32_t sequence_ = 0;
};

}  // namespace netfold
