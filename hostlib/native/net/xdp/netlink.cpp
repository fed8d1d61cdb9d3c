#include "net/xdp/netlink.h"

#include <linux/if_arp.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace netfold {
namespace {

// Of a message behind its fixed part: attributes by type.
class Attributes {
public:
    Attributes(const std::vector<std::uint8_t> &message, std::size_t fixed_bytes)
        : message_(message), from_(NLMSG_ALIGN(fixed_bytes)) {}

    // Its bytes; none if it is not there.
    std::optional<std::vector<std::uint8_t>> find(std::uint16_t type) const {
        for (std::size_t at = from_; at + sizeof(rtattr) <= message_.size();) {
            rtattr each{};
            std::memcpy(&each, message_.data() + at, sizeof each);
            if (each.rta_len < sizeof each || at + each.rta_len > message_.size()) return std::nullopt;
            const auto begin = message_.begin() + static_cast<std::ptrdiff_t>(at);
            if (each.rta_type == type) return std::vector<std::uint8_t>(begin + sizeof each, begin + each.rta_len);
            at += RTA_ALIGN(each.rta_len);
        }
        return std::nullopt;
    }

    template <class Value>
    std::optional<Value> value(std::uint16_t type) const {
        const auto bytes = find(type);
        if (!bytes || bytes->size() < sizeof(Value)) return std::nullopt;
        Value value;
        std::memcpy(&value, bytes->data(), sizeof value);
        return value;
    }

    std::string text(std::uint16_t type) const {
        const auto bytes = find(type);
        return bytes ? std::string(bytes->begin(), std::find(bytes->begin(), bytes->end(), 0)) : "";
    }

private:
    const std::vector<std::uint8_t> &message_;
    std::size_t from_;
};

template <class Body>
Body fixed_part(const std::vector<std::uint8_t> &message) {
    Body body{};
    std::memcpy(&body, message.data(), std::min(sizeof body, message.size()));
    return body;
}

}  // namespace

Netlink::Netlink() : fd_(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE)) {
    if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "netlink");
}

Netlink::~Netlink() { ::close(fd_); }

template <class Body>
std::vector<Netlink::Bytes> Netlink::ask(std::uint16_t type, std::uint16_t flags, const Body &body,
                                         const std::vector<std::pair<std::uint16_t, in_addr>> &attributes) {
    const std::size_t attribute_bytes = RTA_SPACE(sizeof(in_addr));
    Bytes request(NLMSG_SPACE(sizeof body) + attributes.size() * attribute_bytes);
    const nlmsghdr header{static_cast<std::uint32_t>(request.size()), type,
                          static_cast<std::uint16_t>(NLM_F_REQUEST | flags), ++sequence_, 0};
    std::memcpy(request.data(), &header, sizeof header);
    std::memcpy(request.data() + NLMSG_HDRLEN, &body, sizeof body);
    std::uint8_t *at = request.data() + NLMSG_SPACE(sizeof body);
    for (const auto &[kind, address] : attributes) {
        const rtattr attribute{RTA_LENGTH(sizeof address), kind};
        std::memcpy(at, &attribute, sizeof attribute);
        std::memcpy(at + RTA_LENGTH(0), &address, sizeof address);
        at += attribute_bytes;
    }
    std::vector<Bytes> replies;
    if (::send(fd_, request.data(), request.size(), 0) < 0) return replies;
    Bytes room(1 << 16);
    for (;;) {
        const ssize_t came = ::recv(fd_, room.data(), room.size(), 0);
        if (came < 0 && errno == EINTR) continue;
        if (came < 0) return replies;
        for (std::size_t from = 0; from + sizeof(nlmsghdr) <= static_cast<std::size_t>(came);) {
            nlmsghdr each{};
            std::memcpy(&each, room.data() + from, sizeof each);
            if (each.nlmsg_len < sizeof each || from + each.nlmsg_len > static_cast<std::size_t>(came)) return replies;
            const auto begin = room.begin() + static_cast<std::ptrdiff_t>(from);
            from += NLMSG_ALIGN(each.nlmsg_len);
            if (each.nlmsg_seq != sequence_) continue;
            if (each.nlmsg_type == NLMSG_DONE || each.nlmsg_type == NLMSG_ERROR) return replies;
            replies.emplace_back(begin + NLMSG_HDRLEN, begin + each.nlmsg_len);
            if ((each.nlmsg_flags & NLM_F_MULTI) == 0) return replies;
        }
    }
}

std::optional<Route> Netlink::route(in_addr to, in_addr from) {
    rtmsg body{};
    body.rtm_family = AF_INET;
    body.rtm_dst_len = 32;
    std::vector<std::pair<std::uint16_t, in_addr>> ends{{RTA_DST, to}};
    if (from.s_addr != INADDR_ANY) {
        body.rtm_src_len = 32;
        ends.emplace_back(RTA_SRC, from);
    }
    const std::vector<Bytes> replies = ask(RTM_GETROUTE, 0, body, ends);
    if (replies.empty()) return std::nullopt;
    const auto kind = fixed_part<rtmsg>(replies.front()).rtm_type;
    const Attributes attributes(replies.front(), sizeof(rtmsg));
    const auto interface = attributes.value<int>(RTA_OIF);
    const bool plain = !attributes.find(RTA_ENCAP) && !attributes.find(RTA_VIA);
    if (!interface || !plain || (kind != RTN_UNICAST && kind != RTN_LOCAL)) return std::nullopt;
    const in_addr source = attributes.value<in_addr>(RTA_PREFSRC).value_or(from);
    return Route{*interface, source, attributes.value<in_addr>(RTA_GATEWAY).value_or(to)};
}

std::optional<Neighbour> Netlink::neighbour(int interface, in_addr address) {
    ndmsg body{};
    body.ndm_family = AF_INET;
    body.ndm_ifindex = interface;
    const std::vector<Bytes> replies = ask(RTM_GETNEIGH, 0, body, {{NDA_DST, address}});
    if (replies.empty()) return std::nullopt;
    const auto state = fixed_part<ndmsg>(replies.front()).ndm_state;
    const auto mac = Attributes(replies.front(), sizeof(ndmsg)).value<Mac>(NDA_LLADDR);
    constexpr unsigned CONFIRMED = NUD_REACHABLE | NUD_PERMANENT | NUD_NOARP;
    if (!mac || (state & (CONFIRMED | NUD_STALE | NUD_DELAY | NUD_PROBE)) == 0) return std::nullopt;
    return Neighbour{*mac, (state & CONFIRMED) != 0};
}

Interface Netlink::interface(int index) {
    ifinfomsg body{};
    body.ifi_family = AF_UNSPEC;
    body.ifi_index = index;
    const std::vector<Bytes> replies = ask(RTM_GETLINK, 0, body, {});
    if (replies.empty()) throw std::system_error(ENODEV, std::generic_category(), "interface " + std::to_string(index));
    const Attributes attributes(replies.front(), sizeof(ifinfomsg));
    const auto type = fixed_part<ifinfomsg>(replies.front()).ifi_type;
    return {attributes.text(IFLA_IFNAME), attributes.value<Mac>(IFLA_ADDRESS).value_or(Mac{}),
            attributes.value<std::uint32_t>(IFLA_MTU).value_or(0), type == ARPHRD_LOOPBACK, type == ARPHRD_ETHER};
}

std::vector<std::string> Netlink::disciplines(int index) {
    tcmsg body{};
    body.tcm_ifindex = index;
    std::vector<std::string> kinds;
    for (const Bytes &reply : ask(RTM_GETQDISC, NLM_F_DUMP, body, {}))
        if (fixed_part<tcmsg>(reply).tcm_ifindex == index)
            kinds.push_back(Attributes(reply, sizeof(tcmsg)).text(TCA_KIND));
    return kinds;
}

}  // namespace netfold
