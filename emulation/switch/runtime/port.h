// The kinds of port, behind one interface: receive a batch, queue a frame, flush what is queued. A port is a UDP socket
// to hosts, whose datagrams get the headers a NIC would have brought; one end of a wire to another switch, whose
// datagrams are whole frames; or a packet socket on a network interface. Follows xdp.h in the translation unit.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>

// RX_STRIDE: room for what UDP_GRO joins; no multiple of a page, so that frames do not compete for the same cache sets.
enum { HEADROOM = 42, BATCH = 64, RX_STRIDE = 65536 + 2112, MAX_PORTS = 512, GSO_SEGMENTS = 64, GSO_BYTES = 65000 };
enum { TX_BYTES = BATCH * FRAME_BYTES, RING_BYTES = 4 << 20, RING_BLOCK = 16 << 10, VLAN = 0x8100, IPV4 = 0x0800, IPV6 = 0x86dd };

enum { LINK_NS = 10000000 };

typedef struct port port_t;

typedef struct {
    void (*receive)(port_t *p);          // one batch, each frame to incoming(); never blocks
    bool (*queue)(port_t *p, const uint8_t *frame, uint32_t bytes);  // false: cannot go this way
    void (*flush)(port_t *p);
    uint32_t headers;                    // bytes of a frame that the port makes itself: nothing can damage them
    bool both_ways;                      // what happens on the link is drawn for what comes in, too
    bool (*up)(port_t *p);               // whether the link is there; NULL: always
} kind_t;

struct port {
    const kind_t *kind;                  // NULL: no such port
    uint32_t number;
    int fd;
    fault_t in, out;
    shaper_t shaper;
    uint64_t packets_in, packets_out, bytes_in, bytes_out, not_udp, send_failed, oversized, missed, link_down;
    uint32_t inside_address;             // UDP: what the rebuilt headers call the destination (host order)
    uint16_t inside_port;
    bool peer_fixed;                     // wire: else its other end is whoever was heard last
    struct sockaddr_in peer;             // wire: the other end; port 0: not heard from yet
    bool gso;                            // UDP and wire: the kernel takes several datagrams as one
    uint8_t *ring;                       // packet: where the kernel puts frames
    uint32_t ring_slot, ring_slots, ring_next;
    xdp_t xdp;                           // packet: the short way out
    uint64_t link_asked_ns;              // packet: when the kernel was last asked for the link; 0: never
    bool link;                           // what it said
    uint32_t queued;                     // frames waiting in tx
    uint8_t *tx;                         // they lie there one behind the other; TX_BYTES
    uint32_t tx_at[BATCH + 1];
    struct sockaddr_in tx_to[BATCH];     // UDP and wire
};

static port_t ports[MAX_PORTS];

// A frame that came in on a port; in loop.h.
static void incoming(port_t *p, const uint8_t *frame, uint32_t bytes);

static bool enqueue(port_t *p, const uint8_t *data, uint32_t bytes) {
    if (p->queued == BATCH) p->kind->flush(p);
    uint32_t i = p->queued++;
    memcpy(p->tx + p->tx_at[i], data, bytes);
    p->tx_at[i + 1] = p->tx_at[i] + bytes;
    return true;
}

// `n` queued frames from `first` on.
static struct iovec queued_frames(const port_t *p, uint32_t first, uint32_t n) {
    return (struct iovec){p->tx + p->tx_at[first], p->tx_at[first + n] - p->tx_at[first]};
}

// After sendmmsg() refused: whether there was no room, and now there is.
static bool room_again(const port_t *p) {
    struct pollfd ready = {p->fd, POLLOUT, 0};
    return errno == EINTR || (errno == EAGAIN && poll(&ready, 1, 10) > 0);
}

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

// ---- UDP and wires ----------------------------------------------------------------------------------------------

// How many of the frames queued from `first` on may go as one: the same peer and size, only the last may be shorter.
static uint32_t alike(const port_t *p, uint32_t first) {
    size_t size = queued_frames(p, first, 1).iov_len, total = size;
    uint32_t n = 1;
    if (!p->gso || size == 0) return n;
    while (first + n < p->queued && n < GSO_SEGMENTS) {
        size_t next = queued_frames(p, first + n, 1).iov_len;
        const struct sockaddr_in *a = &p->tx_to[first], *b = &p->tx_to[first + n];
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
    struct mmsghdr tx[BATCH];
    struct iovec iov[BATCH];
    uint32_t frames[BATCH];
    for (uint32_t done = 0; done < p->queued;) {
        uint32_t messages = 0;
        for (uint32_t i = done; i < p->queued; i += frames[messages++]) {
            frames[messages] = alike(p, i);
            iov[messages] = queued_frames(p, i, frames[messages]);
            struct msghdr *m = &tx[messages].msg_hdr;
            *m = (struct msghdr){.msg_name = &p->tx_to[i], .msg_namelen = sizeof p->tx_to[i],
                                 .msg_iov = &iov[messages], .msg_iovlen = 1};
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
            p->gso = false;
            continue;
        }
        // Nobody listens there any more, or there is no room: a network loses this.
        p->send_failed += frames[0];
        done += frames[0];
    }
    p->queued = 0;
}

static bool udp_queue(port_t *p, const uint8_t *frame, uint32_t bytes) {
    bool udp = bytes >= HEADROOM && load16(frame + 12) == IPV4 && frame[14] == 0x45 && frame[23] == IPPROTO_UDP;
    uint32_t datagram = udp ? load16(frame + 38) : 0;
    if (!udp || datagram < 8 || 34 + datagram > bytes) { p->not_udp++; return false; }
    enqueue(p, frame + HEADROOM, datagram - 8);
    p->tx_to[p->queued - 1] = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(load16(frame + 36)),
                                                   .sin_addr = {htonl(load32(frame + 30))}};
    return true;
}

static bool wire_queue(port_t *p, const uint8_t *frame, uint32_t bytes) {
    if (p->peer.sin_port == 0) { p->send_failed++; return false; }
    enqueue(p, frame, bytes);
    p->tx_to[p->queued - 1] = p->peer;
    return true;
}

// Ethernet, IPv4 and UDP headers in front of a datagram.
static void rebuild(const port_t *p, uint8_t *frame, uint32_t payload, const struct sockaddr_in *from) {
    static const uint8_t switch_mac[6] = {2, 0, 0, 0, 0, 1};
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
    store32(ip + 16, p->inside_address);
    store16(ip + 10, folded(ones_sum(ip, 20)));
    store16(udp, ntohs(from->sin_port));
    store16(udp + 2, p->inside_port);
    store16(udp + 4, (uint16_t)(8 + payload));
    store16(udp + 6, 0);
}

// The size of the datagrams that the kernel joined into one, if it did.
static uint32_t joined(struct msghdr *m, uint32_t bytes) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == SOL_UDP && c->cmsg_type == UDP_GRO) memcpy(&bytes, CMSG_DATA(c), sizeof bytes);
    return bytes;
}

static void receive_datagrams(port_t *p, void each(port_t *p, uint8_t *data, uint32_t bytes,
                                                   const struct sockaddr_in *from)) {
    static uint8_t data[BATCH][RX_STRIDE];
    static struct sockaddr_in from[BATCH];
    static struct iovec iov[BATCH];
    static _Alignas(struct cmsghdr) uint8_t control[BATCH][CMSG_SPACE(sizeof(int))];
    struct mmsghdr rx[BATCH];
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){data[i] + HEADROOM, RX_STRIDE - HEADROOM};
        rx[i].msg_hdr = (struct msghdr){.msg_name = &from[i], .msg_namelen = sizeof from[i],
                                        .msg_iov = &iov[i], .msg_iovlen = 1,
                                        .msg_control = control[i], .msg_controllen = sizeof control[i]};
    }
    int n = recvmmsg(p->fd, rx, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        uint32_t bytes = rx[i].msg_len, size = joined(&rx[i].msg_hdr, bytes), at = 0;
        // The headers of a datagram are made over the end of the one before, which nobody needs any more.
        do {
            uint32_t left = bytes - at, one = left < size ? left : size;
            if (HEADROOM + one > FRAME_BYTES) p->oversized++;
            else each(p, data[i] + HEADROOM + at, one, &from[i]);
            at += size;
        } while (at < bytes);
    }
}

static void udp_datagram(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from) {
    rebuild(p, data - HEADROOM, bytes, from);
    incoming(p, data - HEADROOM, HEADROOM + bytes);
}
static void udp_receive(port_t *p) { receive_datagrams(p, udp_datagram); }

static void wire_datagram(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from) {
    if (!p->peer_fixed) p->peer = *from;
    // An empty datagram only says where the other end is.
    if (bytes > 0) incoming(p, data, bytes);
}
static void wire_receive(port_t *p) { receive_datagrams(p, wire_datagram); }

static const kind_t udp_kind = {udp_receive, udp_queue, flush_datagrams, HEADROOM, true, NULL};
// What happens on a wire is drawn where a frame enters it.
static const kind_t wire_kind = {wire_receive, wire_queue, flush_datagrams, 0, false, NULL};

// ---- packet sockets ---------------------------------------------------------------------------------------------

// Frames of local sockets come without the transport checksum that a NIC would have filled in.
static void fill_checksum(uint8_t *frame, uint32_t bytes) {
    uint32_t ip = 14, type = bytes >= 14 ? load16(frame + 12) : 0;
    if (type == VLAN && bytes >= 18) { ip = 18; type = load16(frame + 16); }
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
    for (uint32_t n = 0; n < BATCH; n++) {
        struct tpacket2_hdr *slot = (struct tpacket2_hdr *)(p->ring + (size_t)p->ring_next * p->ring_slot);
        if (!(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER)) {
            int error = 0;
            socklen_t size = sizeof error;
            // Asking clears it: the socket does not wake the loop for it again.
            if (n == 0 && getsockopt(p->fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == ENETDOWN)
                p->link_down++;
            return;
        }
        // Longer than any frame, or a burst that a local socket leaves its NIC to cut.
        if (slot->tp_len > slot->tp_snaplen || slot->tp_snaplen > FRAME_BYTES - 4) p->oversized++;
        else packet_arrived(p, slot, (uint8_t *)slot + slot->tp_mac, slot->tp_snaplen);
        __atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        p->ring_next = (p->ring_next + 1) % p->ring_slots;
    }
}

// A ring that the kernel puts frames of up to `longest` bytes into: reading takes no call. (Version 3 of the ring holds
// frames back until a block is full or a millisecond old.) Returns an errno.
static int ring_open(port_t *p, uint32_t longest) {
    int version = TPACKET_V2;
    uint32_t slot = 2048;
    while (slot < longest + TPACKET2_HDRLEN + 32 && slot < RING_BLOCK) slot *= 2;
    struct tpacket_req ring = {RING_BLOCK, RING_BYTES / RING_BLOCK, slot, RING_BYTES / slot};
    if (setsockopt(p->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0) return errno;
    if (setsockopt(p->fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring) != 0) return errno;
    void *mapped = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (mapped == MAP_FAILED) return errno;
    p->ring = mapped;
    p->ring_slot = slot;
    p->ring_slots = ring.tp_frame_nr;
    return 0;
}

// The socket stays, for the next program.
static void ring_close(port_t *p) {
    struct tpacket_req none = {0, 0, 0, 0};
    if (p->ring == NULL) return;
    munmap(p->ring, RING_BYTES);
    setsockopt(p->fd, SOL_PACKET, PACKET_RX_RING, &none, sizeof none);
}

// `longest`: bytes of the longest frame that the interface takes, VLAN tag included; `tx`: memory for what is queued;
// `xdp`: a socket for the short way out, -1 for none. What they refer to outlives the port. Returns an errno.
static int packet_open(port_t *p, uint32_t longest, int xdp, uint8_t *tx, size_t tx_bytes) {
    if (tx_bytes < TX_BYTES) return EINVAL;
    p->tx = tx;
    if (xdp >= 0) xdp_open(&p->xdp, xdp, p->fd, longest, tx, tx_bytes);
    return ring_open(p, longest);
}

static void packet_close(port_t *p) {
    xdp_close(&p->xdp);
    ring_close(p);
}

static void packet_flush(port_t *p) {
    struct mmsghdr tx[BATCH];
    struct iovec iov[BATCH];
    uint32_t done = p->xdp.longest > 0 ? xdp_send(&p->xdp, p->tx_at, p->queued) : 0;
    for (uint32_t i = done; i < p->queued; i++) {
        iov[i] = queued_frames(p, i, 1);
        tx[i].msg_hdr = (struct msghdr){.msg_iov = &iov[i], .msg_iovlen = 1};
    }
    while (done < p->queued) {
        int n = sendmmsg(p->fd, tx + done, p->queued - done, 0);
        if (n > 0) { done += (uint32_t)n; continue; }
        if (room_again(p)) continue;
        if (errno == EMSGSIZE) p->oversized++;
        else p->send_failed++;
        done++;
    }
    p->queued = 0;
}

// Asked of the kernel every LINK_NS at most: a packet cannot wait for it each time.
static bool packet_up(port_t *p) {
    uint64_t now = now_ns();
    if (p->link_asked_ns != 0 && now - p->link_asked_ns < LINK_NS) return p->link;
    struct sockaddr_ll bound;
    struct ifreq asked = {0};
    socklen_t size = sizeof bound;
    p->link_asked_ns = now;
    p->link = false;
    if (getsockname(p->fd, (struct sockaddr *)&bound, &size) != 0) return false;
    asked.ifr_ifindex = bound.sll_ifindex;
    if (ioctl(p->fd, SIOCGIFNAME, &asked) != 0 || ioctl(p->fd, SIOCGIFFLAGS, &asked) != 0) return false;
    p->link = (asked.ifr_flags & IFF_UP) && (asked.ifr_flags & IFF_RUNNING);
    return p->link;
}

static const kind_t packet_kind = {packet_receive, enqueue, packet_flush, 0, true, packet_up};

// What the kernel had no room for since the last call.
static uint64_t packet_missed(const port_t *p) {
    struct tpacket_stats seen = {0, 0};
    socklen_t size = sizeof seen;
    return getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &seen, &size) == 0 ? seen.tp_drops : 0;
}
