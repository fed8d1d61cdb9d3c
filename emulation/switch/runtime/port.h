// The kinds of port, behind one interface: receive a batch, queue a frame, flush what is queued. A port is a UDP socket
// to hosts, whose datagrams get the headers a NIC would have brought; one end of a wire to another switch, whose
// datagrams are whole frames; or a packet socket on a network interface. Follows shape.h in the translation unit.
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

// RX_STRIDE: room for what UDP_GRO joins; no multiple of a page, so that frames do not compete for the same cache sets.
enum { HEADROOM = 42, BATCH = 64, RX_STRIDE = 65536 + 2112, MAX_PORTS = 512, GSO_SEGMENTS = 64, GSO_BYTES = 65000 };
enum { CONTROL_BYTES = 64, VLAN = 0x8100, IPV4 = 0x0800, IPV6 = 0x86dd };

typedef struct port port_t;

typedef struct {
    void (*receive)(port_t *p);          // one batch, each frame to incoming(); never blocks
    bool (*queue)(port_t *p, const uint8_t *frame, uint32_t bytes);  // false: cannot go this way
    void (*flush)(port_t *p);
    uint32_t headers;                    // bytes of a frame that the port makes itself: nothing can damage them
    bool both_ways;                      // what happens on the link is drawn for what comes in, too
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
    uint32_t queued;                     // frames waiting in tx
    struct iovec tx_iov[BATCH];
    struct sockaddr_in tx_to[BATCH];
    uint8_t (*tx_bytes)[FRAME_BYTES];
};

static port_t ports[MAX_PORTS];
static uint8_t rx_bytes[BATCH][RX_STRIDE];
static struct sockaddr_in rx_from[BATCH];
static struct mmsghdr rx[BATCH];

// A frame that came in on a port; in loop.h.
static void incoming(port_t *p, const uint8_t *frame, uint32_t bytes);

static int receive_batch(port_t *p, uint32_t room) {
    static struct iovec iov[BATCH];
    static _Alignas(struct cmsghdr) uint8_t control[BATCH][CONTROL_BYTES];
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){rx_bytes[i] + HEADROOM, room};
        rx[i].msg_hdr = (struct msghdr){.msg_name = &rx_from[i], .msg_namelen = sizeof rx_from[i],
                                        .msg_iov = &iov[i], .msg_iovlen = 1,
                                        .msg_control = control[i], .msg_controllen = CONTROL_BYTES};
    }
    int n = recvmmsg(p->fd, rx, BATCH, MSG_DONTWAIT, NULL);
    if (n < 0 && errno == ENETDOWN) p->link_down++;
    return n;
}

static const void *control_of(struct msghdr *m, int level, int type) {
    for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c != NULL; c = CMSG_NXTHDR(m, c))
        if (c->cmsg_level == level && c->cmsg_type == type) return CMSG_DATA(c);
    return NULL;
}

static bool enqueue(port_t *p, const uint8_t *data, uint32_t bytes) {
    if (p->queued == BATCH) p->kind->flush(p);
    uint32_t i = p->queued++;
    memcpy(p->tx_bytes[i], data, bytes);
    p->tx_iov[i] = (struct iovec){p->tx_bytes[i], bytes};
    return true;
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
    size_t size = p->tx_iov[first].iov_len, total = size;
    uint32_t n = 1;
    if (!p->gso || size == 0) return n;
    while (first + n < p->queued && n < GSO_SEGMENTS) {
        size_t next = p->tx_iov[first + n].iov_len;
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
    for (uint32_t done = 0; done < p->queued;) {
        uint32_t messages = 0;
        for (uint32_t i = done; i < p->queued; messages++) {
            uint32_t together = alike(p, i);
            struct msghdr *m = &tx[messages].msg_hdr;
            *m = (struct msghdr){.msg_name = &p->tx_to[i], .msg_namelen = sizeof p->tx_to[i],
                                 .msg_iov = &p->tx_iov[i], .msg_iovlen = together};
            if (together > 1) {
                m->msg_control = control[messages];
                m->msg_controllen = sizeof control[messages];
                struct cmsghdr *c = CMSG_FIRSTHDR(m);
                *c = (struct cmsghdr){CMSG_LEN(sizeof(uint16_t)), SOL_UDP, UDP_SEGMENT};
                *(uint16_t *)CMSG_DATA(c) = (uint16_t)p->tx_iov[i].iov_len;
            }
            i += together;
        }
        int n = sendmmsg(p->fd, tx, messages, 0);
        for (int k = 0; k < n; k++) done += (uint32_t)tx[k].msg_hdr.msg_iovlen;
        if (n > 0 || room_again(p)) continue;
        // On the way there is a device that cannot: its MTU is too small, or it leaves no checksums to the hardware.
        if (tx[0].msg_hdr.msg_iovlen > 1 && (errno == EINVAL || errno == EIO || errno == EMSGSIZE)) {
            p->gso = false;
            continue;
        }
        // Nobody listens there any more, or there is no room: a network loses this.
        p->send_failed += tx[0].msg_hdr.msg_iovlen;
        done += (uint32_t)tx[0].msg_hdr.msg_iovlen;
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

static void datagrams_receive(port_t *p, void each(port_t *p, uint8_t *data, uint32_t bytes,
                                                   const struct sockaddr_in *from)) {
    int n = receive_batch(p, RX_STRIDE - HEADROOM);
    for (int i = 0; i < n; i++) {
        uint32_t bytes = rx[i].msg_len, size = bytes;
        const int *joined = control_of(&rx[i].msg_hdr, SOL_UDP, UDP_GRO);
        if (joined != NULL) memcpy(&size, joined, sizeof size);
        // The headers of a datagram are made over the end of the one before, which nobody needs any more.
        uint32_t at = 0;
        do {
            uint32_t left = bytes - at, one = left < size ? left : size;
            if (HEADROOM + one > FRAME_BYTES) p->oversized++;
            else each(p, rx_bytes[i] + HEADROOM + at, one, &rx_from[i]);
            at += size;
        } while (at < bytes);
    }
}

static void udp_datagram(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from) {
    rebuild(p, data - HEADROOM, bytes, from);
    incoming(p, data - HEADROOM, HEADROOM + bytes);
}
static void udp_receive(port_t *p) { datagrams_receive(p, udp_datagram); }

static void wire_datagram(port_t *p, uint8_t *data, uint32_t bytes, const struct sockaddr_in *from) {
    if (!p->peer_fixed) p->peer = *from;
    // An empty datagram only says where the other end is.
    if (bytes > 0) incoming(p, data, bytes);
}
static void wire_receive(port_t *p) { datagrams_receive(p, wire_datagram); }

static const kind_t udp_kind = {udp_receive, udp_queue, flush_datagrams, HEADROOM, true};
// What happens on a wire is drawn where a frame enters it.
static const kind_t wire_kind = {wire_receive, wire_queue, flush_datagrams, 0, false};

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

static void packet_receive(port_t *p) {
    int n = receive_batch(p, FRAME_BYTES - 4);
    for (int i = 0; i < n; i++) {
        // What a local socket leaves to its NIC to cut, and what is longer than any frame.
        if (rx[i].msg_hdr.msg_flags & MSG_TRUNC) { p->oversized++; continue; }
        uint8_t *frame = rx_bytes[i] + HEADROOM;
        uint32_t bytes = rx[i].msg_len;
        const void *found = control_of(&rx[i].msg_hdr, SOL_PACKET, PACKET_AUXDATA);
        if (found != NULL) {
            struct tpacket_auxdata said;
            memcpy(&said, found, sizeof said);
            if (said.tp_status & TP_STATUS_CSUMNOTREADY) fill_checksum(frame, bytes);
            if ((said.tp_status & TP_STATUS_VLAN_VALID) && bytes >= 14) {
                // The kernel has taken the tag out.
                frame -= 4;
                bytes += 4;
                memmove(frame, frame + 4, 12);
                store16(frame + 12, said.tp_status & TP_STATUS_VLAN_TPID_VALID ? said.tp_vlan_tpid : VLAN);
                store16(frame + 14, said.tp_vlan_tci);
            }
        }
        incoming(p, frame, bytes);
    }
}

static void packet_flush(port_t *p) {
    struct mmsghdr tx[BATCH];
    for (uint32_t i = 0; i < p->queued; i++)
        tx[i].msg_hdr = (struct msghdr){.msg_iov = &p->tx_iov[i], .msg_iovlen = 1};
    for (uint32_t done = 0; done < p->queued;) {
        int n = sendmmsg(p->fd, tx + done, p->queued - done, 0);
        if (n > 0) { done += (uint32_t)n; continue; }
        if (room_again(p)) continue;
        if (errno == EMSGSIZE) p->oversized++;
        else p->send_failed++;
        done++;
    }
    p->queued = 0;
}

static const kind_t packet_kind = {packet_receive, enqueue, packet_flush, 0, true};

// What the kernel had no room for since the last call.
static uint64_t packet_missed(const port_t *p) {
    struct tpacket_stats seen = {0, 0};
    socklen_t size = sizeof seen;
    return getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &seen, &size) == 0 ? seen.tp_drops : 0;
}
