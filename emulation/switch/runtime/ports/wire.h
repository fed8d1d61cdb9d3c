// One end of a wire to another switch, on a UDP socket: its datagrams are whole frames.
#pragma once

#include "../base.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#include "datagrams.h"
#include "port.h"

typedef struct {
    datagrams_t datagrams;
    bool peer_fixed;          // else the other end is whoever was heard last
    struct sockaddr_in peer;  // port 0: not heard from yet
} wire_t;

static bool wire_queue(port_t *p, const uint8_t *frame, uint32_t bytes) {
    const wire_t *w = p->own;
    if (w->peer.sin_port == 0) {
        p->send_failed++;
        return false;
    }
    queue_datagram(p, frame, bytes, w->peer);
    return true;
}

static void wire_datagram(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from) {
    wire_t *w = p->own;
    if (!w->peer_fixed) w->peer = *from;
    // An empty datagram only says where the other end is.
    if (bytes > 0) incoming(p, data, bytes);
}
static void wire_receive(port_t *p) { receive_datagrams(p, wire_datagram); }

// What happens on a wire is drawn where a frame enters it.
static const kind_t wire_kind = {
    .receive = wire_receive, .queue = wire_queue, .flush = flush_datagrams, .close = close_datagrams};

// peer_port 0: the other end will be heard from. Returns an errno.
int nf_wire_port(uint32_t number, int fd, const link_t *link, uint32_t peer_address, uint16_t peer_port) {
    port_t *p = datagram_port(number, fd, link, &wire_kind, sizeof(wire_t));
    if (p == NULL) return ENOMEM;
    wire_t *w = p->own;
    w->peer_fixed = peer_port != 0;
    w->peer =
        (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(peer_port), .sin_addr = {htonl(peer_address)}};
    return 0;
}
