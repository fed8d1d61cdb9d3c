// Datagrams that go to the kernel and come from it in bundles: their size is in a control message (udp(7)).
#pragma once

#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "net/ecn.h"

namespace netfold {

// Room for what set_segment_bytes() writes.
constexpr std::size_t SEGMENT_CONTROL_BYTES = CMSG_SPACE(sizeof(std::uint16_t));
// Room for what segment_bytes() and is_marked() read.
constexpr std::size_t RECEIVED_CONTROL_BYTES = CMSG_SPACE(sizeof(int)) + CMSG_SPACE(sizeof(std::uint8_t));

// Has a message leave as datagrams of so many bytes each; the last may be shorter (UDP GSO). msg_control has the room.
inline void set_segment_bytes(msghdr &message, std::size_t each) {
    message.msg_controllen = SEGMENT_CONTROL_BYTES;
    cmsghdr *segment = CMSG_FIRSTHDR(&message);
    segment->cmsg_level = IPPROTO_UDP;
    segment->cmsg_type = UDP_SEGMENT;
    segment->cmsg_len = CMSG_LEN(sizeof(std::uint16_t));
    const auto size = static_cast<std::uint16_t>(each);
    std::memcpy(CMSG_DATA(segment), &size, sizeof size);
}

// Bytes of each datagram but the last of what was received (UDP GRO); `total`, and at least 1, if it is one.
inline std::size_t segment_bytes(msghdr &message, std::size_t total) {
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
        if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != UDP_GRO) continue;
        int size = 0;
        std::memcpy(&size, CMSG_DATA(c), sizeof size);
        if (size > 0) return static_cast<std::size_t>(size);
    }
    return std::max<std::size_t>(total, 1);
}

// Whether a queue marked what was received; false on a socket without IP_RECVTOS.
inline bool is_marked(msghdr &message) {
    for (cmsghdr *c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c))
        if (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_TOS) return ecn::is_marked(*CMSG_DATA(c));
    return false;
}

}  // namespace netfold
