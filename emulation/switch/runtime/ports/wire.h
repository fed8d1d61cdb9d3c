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
    struct sockaddr_in *peer;  // the only one that is believed; port 0: not heard from yet
} wire_t;

static bool wire_queue(port_t *p, const uint8_t *frame, uint32_t bytes) {
    const wire_t *w = p->own;
    if (w->peer->sin_port == 0) {
        p->send_failed++;
        return false;
    }
    queue_datagram(p, frame, bytes, *w->peer);
    return true;
}

static void wire_datagram(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from) {
    wire_t *w = p->own;
    if (w->peer->sin_port == 0) *w->peer = *from;
    if (from->sin_port != w->peer->sin_port || from->sin_addr.s_addr != w->peer->sin_addr.s_addr)
        p->strangers++;
    else if (bytes > 0)  // An empty datagram only says where the other end is.
        incoming(p, data, bytes);
}
static void wire_receive(port_t *p) { receive_datagrams(p, wire_datagram); }

// What happens on a wire is drawn where a frame enters it.
static const kind_t wire_kind = {
    .receive = wire_receive, .queue = wire_queue, .flush = flush_datagrams, .close = close_datagrams};

// `peer`: the other end, which outlives the program; port 0: whoever is heard first. Returns an errno.
int nf_wire_port(uint32_t number, int fd, const link_t *link, struct sockaddr_in *peer) {
    port_t *p = datagram_port(number, fd, link, &wire_kind, sizeof(wire_t));
    if (p == NULL) return ENOMEM;
    wire_t *w = p->own;
    w->peer = peer;
    return 0;
}
