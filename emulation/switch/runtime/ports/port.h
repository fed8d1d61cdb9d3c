// A port: what every kind of port has, and the functions by which each kind differs. A new kind is one more file in
// this folder, with a kind_t and an exported nf_*_port() that makes such a port; and one in emulation/switch/ports.
#pragma once

#include "../base.h"

#include <errno.h>
#include <poll.h>
#include <sys/uio.h>

#include "../link.h"
#include "../shape.h"

enum { MAX_PORTS = 512, BATCH = 64, TX_BYTES = BATCH * FRAME_BYTES };

typedef struct port port_t;

typedef struct {
    void (*receive)(port_t *p);  // one batch, each frame to incoming(); never blocks
    bool (*queue)(port_t *p, const uint8_t *frame, uint32_t bytes);  // false: cannot go this way
    void (*flush)(port_t *p);                                        // send what is queued
    void (*close)(port_t *p);                                        // the socket stays open, for the next program
    bool (*up)(port_t *p);                                           // whether the link is there; NULL: always
    uint64_t (*missed)(port_t *p);  // what the kernel had no room for since the last call; NULL: that is not known
    uint32_t headers;               // bytes of a frame that the port makes itself: nothing can damage them
    bool both_ways;                 // what happens on the link is drawn for what comes in, too
} kind_t;

struct port {
    const kind_t *kind;  // NULL: no such port
    void *own;           // what only this kind has
    uint32_t number;
    int fd;
    fault_t in, out;
    shaper_t shaper;
    uint64_t packets_in, packets_out, bytes_in, bytes_out, not_udp, send_failed, oversized, missed, link_down;
    uint64_t strangers;           // datagrams that are not from the other end
    int capture_in, capture_out;  // files; -1: none
    uint32_t queued;              // frames waiting in tx
    uint8_t *tx;                  // they lie there one behind the other; TX_BYTES
    uint32_t tx_at[BATCH + 1];
    // The interface's own queue is full: frames stay in tx until the kernel has room. What finds tx full is dropped.
    bool blocked;
    uint64_t progress_ns, frame_ns;  // when the kernel last took some while it was; how long each of them took
};

static port_t ports[MAX_PORTS];

// A frame that came in on a port; in loop.h.
static void incoming(port_t *p, const uint8_t *frame, uint32_t bytes);

// Ports are added once, before nf_run. `own`: for the kind's close() to free.
static port_t *add_port(uint32_t number, int fd, const link_t *link, const kind_t *kind, void *own) {
    port_t *p = &ports[number];
    *p = (port_t){.kind = kind, .own = own, .number = number, .fd = fd, .capture_in = -1, .capture_out = -1};
    p->in = fault_of(link, link->seed * 2 + 1 + ((uint64_t)number << 32));
    p->out = fault_of(link, link->seed * 2 + 2 + ((uint64_t)number << 40));
    p->shaper = shaper_of(link);
    return p;
}

// ---- what waits to be sent --------------------------------------------------------------------------------------

static bool enqueue(port_t *p, const uint8_t *data, uint32_t bytes) {
    if (p->queued == BATCH) p->kind->flush(p);
    if (p->queued == BATCH) {
        p->shaper.dropped++;
        return false;
    }
    uint32_t i = p->queued++;
    memcpy(p->tx + p->tx_at[i], data, bytes);
    p->tx_at[i + 1] = p->tx_at[i] + bytes;
    return true;
}

// `n` queued frames from `first` on.
static struct iovec queued_frames(const port_t *p, uint32_t first, uint32_t n) {
    return (struct iovec){p->tx + p->tx_at[first], p->tx_at[first + n] - p->tx_at[first]};
}

// The kernel took the first `done` of those queued; the others stay if it is `full`.
static void keep_unsent(port_t *p, uint32_t done, bool full) {
    uint64_t now = now_ns();
    if (p->blocked && done > 0) p->frame_ns = (now - p->progress_ns) / done;
    if (done > 0 || !p->blocked) p->progress_ns = now;
    p->blocked = full;
    uint32_t left = p->queued - done, from = p->tx_at[done];
    if (done > 0 && left > 0) {
        memmove(p->tx, p->tx + from, p->tx_at[p->queued] - from);
        for (uint32_t i = 0; i <= left; i++) p->tx_at[i] = p->tx_at[done + i] - from;
    }
    p->queued = left;
    if (full && left > p->shaper.deepest) p->shaper.deepest = left;
}

// After sendmmsg() refused: whether there was no room, and now there is.
static bool room_again(const port_t *p) {
    struct pollfd ready = {p->fd, POLLOUT, 0};
    return errno == EINTR || (errno == EAGAIN && poll(&ready, 1, 10) > 0);
}

// ---- headers ----------------------------------------------------------------------------------------------------

enum { VLAN = 0x8100, IPV4 = 0x0800, IPV6 = 0x86dd };

// The one's complement sum of RFC 1071, not yet inverted.
static uint32_t ones_sum(const uint8_t *p, uint32_t bytes) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i + 1 < bytes; i += 2) {
        uint16_t word;
        memcpy(&word, p + i, 2);
        sum += word;
    }
    if (bytes & 1) sum += p[bytes - 1];
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return __builtin_bswap16((uint16_t)sum);
}
static uint16_t folded(uint32_t sum) {
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

// Explicit Congestion Notification (RFC 3168): the last two bits of an IPv4 header's second byte, or of IPv6's traffic
// class.
enum { ECN = 3 };
typedef enum { NOT_IP, NOT_CAPABLE, CAPABLE } capable_t;  // whether the sender of a frame answers to marks

static uint32_t ip_at(const uint8_t *frame) { return load16(frame + 12) == VLAN ? 18 : 14; }

// That byte; -1 of a frame that has none.
static int service_of(const uint8_t *frame, uint32_t bytes) {
    uint32_t at = bytes >= 18 ? ip_at(frame) : 0;
    if (at == 0 || bytes < at + 20) return -1;
    uint32_t type = load16(frame + at - 2), first = load16(frame + at);
    return type == IPV4 ? (int)(first & 0xff) : type == IPV6 ? (int)(first >> 4 & 0xff) : -1;
}

static capable_t capable_of_marks(const uint8_t *frame, uint32_t bytes) {
    int service = service_of(frame, bytes);
    return service < 0 ? NOT_IP : (service & ECN) == 0 ? NOT_CAPABLE : CAPABLE;
}

// A frame's class by its DSCP (RFC 2474): the first three bits of that byte, as class selectors have them.
static uint32_t class_of(const uint8_t *frame, uint32_t bytes) {
    int service = service_of(frame, bytes);
    return service < 0 ? 0 : (uint32_t)service >> 5;
}

// Has a frame of such a sender say that it met a queue.
static void mark(uint8_t *frame) {
    uint8_t *ip = frame + ip_at(frame);
    if (load16(ip - 2) == IPV6) {
        ip[1] |= ECN << 4;
        return;
    }
    // HC' = ~(~HC + ~m + m'), with m the word that changes (RFC 1624).
    uint16_t before = load16(ip), after = before | ECN;
    store16(ip, after);
    store16(ip + 10, folded((uint32_t)(uint16_t)~load16(ip + 10) + (uint16_t)~before + after));
}

// ---- what a program asks (link.h) -------------------------------------------------------------------------------

static queue_t queue_ahead(uint32_t number, uint32_t priority) {
    uint64_t now = now_ns();
    queue_t found = {0, (int64_t)(now / 1000 - nf_started_us), 0};
    if (number >= MAX_PORTS) return found;
    const port_t *p = &ports[number];
    const shaper_t *s = &p->shaper;
    if (s->ns_per_byte > 0) {
        found.frames = (uint32_t)s->depth;
        found.wait_us = (int64_t)(turn_ns(s, priority, now) / 1000);
    } else if (p->blocked) {
        found.frames = p->queued;
        found.wait_us = (int64_t)(p->queued * p->frame_ns / 1000);
    }
    return found;
}

static bool port_up(uint32_t number) {
    port_t *p = number < MAX_PORTS ? &ports[number] : NULL;
    return p != NULL && p->kind != NULL && (p->kind->up == NULL || p->kind->up(p));
}
