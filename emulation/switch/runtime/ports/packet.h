// Ports on network interfaces: packet sockets that receive through a ring, and send by a short way where there is one.
#pragma once

#include "../base.h"

#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "port.h"
#include "xdp.h"

enum { RING_BYTES = 4 << 20, RING_BLOCK = 16 << 10, LINK_NS = 10000000 };

typedef struct {
    uint8_t *ring;               // where the kernel puts frames
    uint32_t slot, slots, next;  // bytes of one; how many; the one to be read next
    xdp_t xdp;                   // the short way out
    uint64_t link_asked_ns;      // when the kernel was last asked for the link; 0: never
    bool link;                   // what it said
} interface_t;

// Frames of local sockets come without the transport checksum that a NIC would have filled in.
static void fill_checksum(uint8_t *frame, uint32_t bytes) {
    uint32_t ip = 14, type = bytes >= 14 ? load16(frame + 12) : 0;
    if (type == VLAN && bytes >= 18) {
        ip = 18;
        type = load16(frame + 16);
    }
    uint32_t transport, length, protocol, sum;
    if (type == IPV4 && bytes >= ip + 20) {
        transport = ip + 4 * (frame[ip] & 15u);
        length = load16(frame + ip + 2) + ip - transport;
        protocol = frame[ip + 9];
        sum = ones_sum(frame + ip + 12, 8);
    } else if (type == IPV6 && bytes >= ip + 40) {
        transport = ip + 40;
        length = load16(frame + ip + 4);
        protocol = frame[ip + 6];
        sum = ones_sum(frame + ip + 8, 32);
    } else {
        return;
    }
    uint32_t field = protocol == IPPROTO_UDP ? 6 : protocol == IPPROTO_TCP ? 16 : UINT16_MAX;
    if (length < field + 2 || transport + length > bytes || length > bytes) return;
    store16(frame + transport + field, 0);
    uint16_t checksum = folded(sum + protocol + length + ones_sum(frame + transport, length));
    store16(frame + transport + field, protocol == IPPROTO_UDP && checksum == 0 ? 0xffff : checksum);
}

// What the kernel has taken out of a frame, and what it leaves to hardware, put right in place.
static void packet_arrived(port_t *p, const struct tpacket2_hdr *slot, uint8_t *frame, uint32_t bytes) {
    if (slot->tp_status & TP_STATUS_CSUMNOTREADY) fill_checksum(frame, bytes);
    if ((slot->tp_status & TP_STATUS_VLAN_VALID) && bytes >= 14) {
        frame -= 4;  // There are 14 bytes between the frame and what the kernel says about it.
        bytes += 4;
        memmove(frame, frame + 4, 12);
        store16(frame + 12, slot->tp_status & TP_STATUS_VLAN_TPID_VALID ? slot->tp_vlan_tpid : VLAN);
        store16(frame + 14, slot->tp_vlan_tci);
    }
    incoming(p, frame, bytes);
}

static void packet_receive(port_t *p) {
    interface_t *own = p->own;
    for (uint32_t n = 0; n < BATCH; n++) {
        struct tpacket2_hdr *slot = (struct tpacket2_hdr *)(own->ring + (size_t)own->next * own->slot);
        if (!(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) {
            int error = 0;
            socklen_t size = sizeof error;
            // Asking clears it: the socket does not wake the loop for it again.
            if (n == 0 && getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ENETDOWN)
                p->link_down++;
            return;
        }
        // Longer than any frame, or a burst that a local socket leaves its NIC to cut.
        if (slot->tp_len > slot->tp_snaplen || slot->tp_snaplen > FRAME_BYTES - 4)
            p->oversized++;
        else
            packet_arrived(p, slot, (uint8_t *)slot + slot->tp_mac, slot->tp_snaplen);
        __atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        own->next = (own->next + 1) % own->slots;
    }
}

// A ring that the kernel puts frames of up to `longest` bytes into: reading takes no call. (Version 3 of the ring holds
// frames back until a block is full or a millisecond old.) Returns an errno.
static int ring_open(port_t *p, uint32_t longest) {
    interface_t *own = p->own;
    int version = TPACKET_V2;
    uint32_t slot = 2048;
    while (slot < longest + TPACKET2_HDRLEN + 32 && slot < RING_BLOCK) slot *= 2;
    struct tpacket_req ring = {RING_BLOCK, RING_BYTES / RING_BLOCK, slot, RING_BYTES / slot};
    if (setsockopt(p->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0) return errno;
    if (setsockopt(p->fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0) return errno;
    void *mapped = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (mapped == MAP_FAILED) return errno;
    own->ring = mapped;
    own->slot = slot;
    own->slots = ring.tp_frame_nr;
    return 0;
}

// The socket stays, for the next program.
static void ring_close(port_t *p) {
    const interface_t *own = p->own;
    struct tpacket_req none = {0, 0, 0, 0};
    if (own->ring == NULL) return;
    munmap(own->ring, RING_BYTES);
    setsockopt(p->fd, SOL_PACKET, PACKET_RX_RING, &none, sizeof none);
}

static void packet_close(port_t *p) {
    interface_t *own = p->own;
    xdp_close(&own->xdp);
    ring_close(p);
    free(own);
}

static void packet_flush(port_t *p) {
    interface_t *own = p->own;
    struct mmsghdr tx[BATCH];
    struct iovec iov[BATCH];
    uint32_t done = own->xdp.longest > 0 ? xdp_send(&own->xdp, p->tx_at, p->queued) : 0;
    for (uint32_t i = done; i < p->queued; i++) {
        iov[i] = queued_frames(p, i, 1);
        tx[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
    }
    bool full = false;
    while (done < p->queued && !full) {
        int n = sendmmsg(p->fd, tx + done, p->queued - done, 0);
        if (n > 0) {
            done += (uint32_t)n;
        } else if (errno == EAGAIN) {
            full = true;
        } else if (errno != EINTR) {
            if (errno == EMSGSIZE)
                p->oversized++;
            else
                p->send_failed++;
            done++;
        }
    }
    keep_unsent(p, done, full);
}

// Asked of the kernel every LINK_NS at most: a packet cannot wait for it each time.
static bool packet_up(port_t *p) {
    interface_t *own = p->own;
    uint64_t now = now_ns();
    if (own->link_asked_ns != 0 && now - own->link_asked_ns < LINK_NS) return own->link;
    struct sockaddr_ll bound;
    struct ifreq asked = {0};
    socklen_t size = sizeof bound;
    own->link_asked_ns = now;
    own->link = false;
    if (getsockname(p->fd, (struct sockaddr *)&bound, &size) != 0) return false;
    asked.ifr_ifindex = bound.sll_ifindex;
    if (ioctl(p->fd, SIOCGIFNAME, &asked) != 0 || ioctl(p->fd, SIOCGIFFLAGS, &asked) != 0) return false;
    own->link = (asked.ifr_flags & IFF_UP) && (asked.ifr_flags & IFF_RUNNING);
    return own->link;
}

static uint64_t packet_missed(port_t *p) {
    struct tpacket_stats seen = {0, 0};
    socklen_t size = sizeof seen;
    return getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &seen, &size) == 0 ? seen.tp_drops : 0;
}

static const kind_t packet_kind = {.receive = packet_receive,
                                   .queue = enqueue,
                                   .flush = packet_flush,
                                   .close = packet_close,
                                   .up = packet_up,
                                   .missed = packet_missed,
                                   .both_ways = true};

// `longest`: bytes of the longest frame that the interface takes, VLAN tag included; `tx`: memory for what is queued;
// `xdp`: a socket for the short way out, -1 for none. What they refer to outlives the port. Returns an errno.
int nf_packet_port(uint32_t number, int fd, const link_t *link, uint32_t longest, int xdp, uint8_t *tx,
                   size_t tx_bytes) {
    if (tx_bytes < TX_BYTES) return EINVAL;
    interface_t *own = calloc(1, sizeof *own);
    if (own == NULL) return ENOMEM;
    port_t *p = add_port(number, fd, link, &packet_kind, own);
    p->tx = tx;
    if (xdp >= 0) xdp_open(&own->xdp, xdp, fd, longest, tx, tx_bytes);
    int refused = ring_open(p, longest);
    if (refused == 0) return 0;
    packet_close(p);
    p->kind = NULL;
    return refused;
}
