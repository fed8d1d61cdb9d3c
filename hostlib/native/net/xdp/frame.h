// Frames of Ethernet, IPv4 and UDP as they are on the wire.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>

#include "net/xdp/netlink.h"
#include "wire/byte_order.h"

namespace netfold::frame {

// Where the fields are.
inline constexpr std::size_t AT_ETHERTYPE = 12, AT_IP = 14, AT_SERVICE = 15, AT_IP_BYTES = 16, AT_FRAGMENT = 20,
                             AT_TTL = 22, AT_PROTOCOL = 23, AT_IP_CHECKSUM = 24, AT_SOURCE = 26, AT_DESTINATION = 30,
                             AT_SOURCE_PORT = 34, AT_DESTINATION_PORT = 36, AT_UDP_BYTES = 38, AT_UDP_CHECKSUM = 40,
                             AT_PAYLOAD = 42;
inline constexpr int HEADERS_BYTES = AT_PAYLOAD;
inline constexpr std::size_t ETHERNET_BYTES = 14, IP_BYTES = 20, UDP_BYTES = 8;
inline constexpr int IPV4_WITHOUT_OPTIONS = 0x45, MORE_FRAGMENTS = 0x2000, FRAGMENT_OFFSET = 0x1fff,
                     DO_NOT_FRAGMENT = 0x4000, TTL = 64, ETHERTYPE_IPV4 = 0x0800;

// Of an IPv4 header (RFC 1071): what belongs into its checksum's field if that is 0, and 0 if its checksum is right.
inline std::uint16_t ip_checksum(const std::uint8_t *ip) {
    std::uint32_t sum = 0;
    for (std::size_t at = 0; at < IP_BYTES; at += 2) sum += get16(ip + at);
    while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
    return static_cast<std::uint16_t>(~sum);
}

// Gives a frame other ECN bits (RFC 3168).
inline void write_ecn(std::uint8_t *frame, int bits) {
    put8(frame + AT_SERVICE, static_cast<std::uint8_t>(bits));
    put16(frame + AT_IP_CHECKSUM, 0);
    put16(frame + AT_IP_CHECKSUM, ip_checksum(frame + AT_IP));
}

// The headers of a datagram. Its UDP checksum is 0, "not computed" (RFC 768): the check word covers the payload.
inline void write_headers(std::uint8_t *out, const Mac &to_mac, const Mac &from_mac, const sockaddr_in &to,
                          const sockaddr_in &from, std::size_t payload_bytes, int ecn_bits) {
    std::memset(out, 0, HEADERS_BYTES);
    std::memcpy(out, to_mac.data(), to_mac.size());
    std::memcpy(out + to_mac.size(), from_mac.data(), from_mac.size());
    put16(out + AT_ETHERTYPE, ETHERTYPE_IPV4);
    put8(out + AT_IP, IPV4_WITHOUT_OPTIONS);
    put16(out + AT_IP_BYTES, static_cast<std::uint16_t>(IP_BYTES + UDP_BYTES + payload_bytes));
    put16(out + AT_FRAGMENT, DO_NOT_FRAGMENT);
    put8(out + AT_TTL, TTL);
    put8(out + AT_PROTOCOL, IPPROTO_UDP);
    std::memcpy(out + AT_SOURCE, &from.sin_addr, sizeof from.sin_addr);
    std::memcpy(out + AT_DESTINATION, &to.sin_addr, sizeof to.sin_addr);
    write_ecn(out, ecn_bits);
    std::memcpy(out + AT_SOURCE_PORT, &from.sin_port, sizeof from.sin_port);
    std::memcpy(out + AT_DESTINATION_PORT, &to.sin_port, sizeof to.sin_port);
    put16(out + AT_UDP_BYTES, static_cast<std::uint16_t>(UDP_BYTES + payload_bytes));
}

// The payload's bytes of a received frame; none if its lengths or its IPv4 checksum are wrong.
inline std::optional<std::size_t> payload_bytes(const std::uint8_t *frame, std::size_t bytes) {
    if (bytes < AT_PAYLOAD) return std::nullopt;
    const std::size_t ip = get16(frame + AT_IP_BYTES), udp = get16(frame + AT_UDP_BYTES);
    if (ip + ETHERNET_BYTES > bytes || udp + IP_BYTES > ip || udp < UDP_BYTES || ip_checksum(frame + AT_IP) != 0)
        return std::nullopt;
    return udp - UDP_BYTES;
}

inline sockaddr_in source(const std::uint8_t *frame) {
    sockaddr_in from{};
    from.sin_family = AF_INET;
    std::memcpy(&from.sin_addr, frame + AT_SOURCE, sizeof from.sin_addr);
    std::memcpy(&from.sin_port, frame + AT_SOURCE_PORT, sizeof from.sin_port);
    return from;
}

}  // namespace netfold::frame
