// What UDP ports and wires share: datagrams from and to a socket, several in one call and several as one.
#pragma once

#include "../base.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include "port.h"

// RX_STRIDE: room for what UDP_GRO joins; no multiple of a page, so that frames do not compete for the same cache sets.
// HEADROOM: Ethernet, IPv4 and UDP headers in front of a datagram.
enum { HEADROOM = 42, RX_STRIDE = 65536 + 2112, GSO_SEGMENTS = 64, GSO_BYTES = 65000 };

// What such a port has of its own, or begins with.
typedef struct {
    bool gso;                      // the kernel takes several datagrams as one
    struct sockaddr_in to[BATCH];  // of what is queued
} datagrams_t;

// `own`: `bytes` in all, which begin with datagrams_t. Returns NULL when there is no memory.
static port_t *datagram_port(uint32_t number, int fd, const link_t *link, const kind_t *kind, size_t bytes) {
    datagrams_t *own = calloc(1, bytes);
    uint8_t *tx = malloc(TX_BYTES);
    if (own == NULL || tx == NULL) {
        free(own);
        free(tx);
        return NULL;
    }
    own->gso = true;
    port_t *p = add_port(number, fd, link, kind, own);
    p->tx = tx;
    return p;
}

static void close_datagrams(port_t *p) {
    free(p->own);
    free(p->tx);
}

static void queue_datagram(port_t *p, const uint8_t *data, uint32_t bytes, struct sockaddr_in to) {
    datagrams_t *d = p->own;
    enqueue(p, data, bytes);
    d->to[p->queued - 1] = to;
}

// How many of the frames queued from `first` on may go as one: the same peer and size, only the last may be shorter.
static uint32_t alike(const port_t *p, uint32_t first) {
    size_t size = queued_frames(p, first, 1).iov_len, total = size;
    uint32_t n = 1;
    const datagrams_t *d = p->own;
    if (!d->gso || size == 0) return n;
    while (first + n < p->queued && n < GSO_SEGMENTS) {
        size_t next = queued_frames(p, first + n, 1).iov_len;
        const struct sockaddr_in *a = &d->to[first], *b = &d->to[first + n];
        if (next == 0 || next > size || total + next > GSO_BYTES) break;
        if (a->sin_port != b->sin_port || a->sin_addr.s_addr != b->sin_addr.s_addr) break;
        total += next;
        n++;
        if (next < size) break;
    }
    return n;
}

static void flush_datagrams(port_t *p) {
    static _Alignas(struct cmsghdr) uint8_t control[BATCH][CMSG_SPACE(sizeof(uint16_t))];
    datagrams_t *d = p->own;
    struct mmsghdr tx[BATCH];
    struct iovec iov[BATCH];
    uint32_t frames[BATCH];
    for (uint32_t done = 0; done < p->queued;) {
        uint32_t messages = 0;
        for (uint32_t i = done; i < p->queued; i += frames[messages++]) {
            frames[messages] = alike(p, i);
            iov[messages] = queued_frames(p, i, frames[messages]);
            struct msghdr *m = &tx[messages].msg_hdr;
            *m = (struct msghdr){
                .msg_name = &d->to[i], .msg_namelen = sizeof d->to[i], .msg_iov = &iov[messages], .msg_iovlen = 1};
            if (frames[messages] == 1) continue;
            m->msg_control = control[messages];
            m->msg_controllen = sizeof control[messages];
            struct cmsghdr *c = CMSG_FIRSTHDR(m);
            *c = (struct cmsghdr){CMSG_LEN(sizeof(uint16_t)), SOL_UDP, UDP_SEGMENT};
            *(uint16_t *)CMSG_DATA(c) = (uint16_t)queued_frames(p, i, 1).iov_len;
        }
        int n = sendmmsg(p->fd, tx, messages, 0);
        for (int k = 0; k < n; k++) done += frames[k];
        if (n > 0 || room_again(p)) continue;
        // On the way there is a device that cannot: its MTU is too small, or it leaves no checksums to the hardware.
        if (frames[0] > 1 && (errno == EINVAL || errno == EIO || errno == EMSGSIZE)) {
            d->gso = false;
            continue;
        }
        // Nobody listens there any more, or there is no room: a network loses this.
        p->send_failed += frames[0];
        done += frames[0];
    }
    p->queued = 0;
}

// The size of the datagrams that the kernel joined into one, if it did.
static uint32_t joined(struct msghdr *m, uint32_t bytes) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) memcpy(&bytes, CMSG_DATA(c), sizeof bytes);
    return bytes;
}

static void receive_datagrams(port_t *p,
                              void each(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from)) {
    static uint8_t data[BATCH][RX_STRIDE];
    static struct sockaddr_in from[BATCH];
    static struct iovec iov[BATCH];
    static _Alignas(struct cmsghdr) uint8_t control[BATCH][CMSG_SPACE(sizeof(int))];
    struct mmsghdr rx[BATCH];
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){data[i] + HEADROOM, RX_STRIDE - HEADROOM};
        rx[i].msg_hdr = (struct msghdr){.msg_name = &from[i],
                                        .msg_namelen = sizeof from[i],
                                        .msg_iov = &iov[i],
                                        .msg_iovlen = 1,
                                        .msg_control = control[i],
                                        .msg_controllen = sizeof control[i]};
    }
    int n = recvmmsg(p->fd, rx, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        uint32_t bytes = rx[i].msg_len, size = joined(&rx[i].msg_hdr, bytes), at = 0;
        // The headers of a datagram are made over the end of the one before, which nobody needs any more.
        do {
            uint32_t left = bytes - at, one = left < size ? left : size;
            if (HEADROOM + one > FRAME_BYTES)
                p->oversized++;
            else
                each(p, data[i] + HEADROOM + at, one, &from[i]);
            at += size;
        } while (at < bytes);
    }
}
