// Ports to hosts on UDP sockets: a datagram that comes gets the headers that a NIC would have brought, and a frame that
// leaves goes without them to the address they name.
#pragma once

#include "../base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#include "datagrams.h"
#include "port.h"

typedef struct {
    datagrams_t datagrams;
    uint32_t inside_address;  // what the rebuilt headers call the destination (host order)
    uint16_t inside_port;
} udp_t;

static bool udp_queue(port_t *p, const uint8_t *frame, uint32_t bytes) {
    bool udp = bytes >= HEADROOM && load16(frame + 12) == IPV4 && frame[14] == 0x45 && frame[23] == IPPROTO_UDP;
    uint32_t datagram = udp ? load16(frame + 38) : 0;
    if (!udp || datagram < 8 || 34 + datagram > bytes) {
        p->not_udp++;
        return false;
    }
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(load16(frame + 36)), .sin_addr = {htonl(load32(frame + 30))}};
    queue_datagram(p, frame + HEADROOM, datagram - 8, to);
    return true;
}

// Ethernet, IPv4 and UDP headers in front of a datagram.
static void rebuild(const port_t *p, uint8_t *frame, uint32_t payload, const struct sockaddr_in *from) {
    static const uint8_t switch_mac[6] = {2, 0, 0, 0, 0, 1};
    const udp_t *u = p->own;
    uint8_t host_mac[6] = {2, 0, 0, 1, (uint8_t)(p->number >> 8), (uint8_t)p->number};
    memcpy(frame, switch_mac, 6);
    memcpy(frame + 6, host_mac, 6);
    store16(frame + 12, IPV4);
    uint8_t *ip = frame + 14, *udp = frame + 34;
    memset(ip, 0, 20);
    ip[0] = 0x45;
    store16(ip + 2, (uint16_t)(28 + payload));
    ip[8] = 64;
    ip[9] = IPPROTO_UDP;
    store32(ip + 12, ntohl(from->sin_addr.s_addr));
    store32(ip + 16, u->inside_address);
    store16(ip + 10, folded(ones_sum(ip, 20)));
    store16(udp, ntohs(from->sin_port));
    store16(udp + 2, u->inside_port);
    store16(udp + 4, (uint16_t)(8 + payload));
    store16(udp + 6, 0);
}

static void udp_datagram(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from) {
    rebuild(p, data - HEADROOM, bytes, from);
    incoming(p, data - HEADROOM, HEADROOM + bytes);
}
static void udp_receive(port_t *p) { receive_datagrams(p, udp_datagram); }

static const kind_t udp_kind = {.receive = udp_receive,
                                .queue = udp_queue,
                                .flush = flush_datagrams,
                                .close = close_datagrams,
                                .headers = HEADROOM,
                                .both_ways = true};

// Returns an errno.
int nf_udp_port(uint32_t number, int fd, const link_t *link, uint32_t inside_address, uint16_t inside_port) {
    port_t *p = datagram_port(number, fd, link, &udp_kind, sizeof(udp_t));
    if (p == NULL) return ENOMEM;
    udp_t *u = p->own;
    u->inside_address = inside_address;
    u->inside_port = inside_port;
    return 0;
}
