// The packet loop: ports in, the generated program, ports out, with seeded faults in between. A port is a UDP socket:
// to hosts, whose datagrams get the headers a NIC would have brought, or one end of a wire to another switch, whose
// datagrams are whole frames. Follows control.h in the translation unit. Exported: nf_* (called from dataplane.py with
// the lock rules given there).
#pragma once

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { HEADROOM = 42, FRAME_BYTES = 4096, BATCH = 32, MAX_PORTS = 512, HELD = 4096 };

typedef struct { double loss, duplicate, reorder; uint64_t state; uint64_t lost, duplicated, held; } fault_t;

typedef struct {
    int fd;                          // a bound UDP socket; -1: no such port
    uint32_t inside_address;         // what the rebuilt headers call the destination (host order)
    uint16_t inside_port;
    bool wire;
    bool peer_fixed;                 // else: whoever was heard last
    struct sockaddr_in peer;         // of a wire: the other end; port 0: not heard from yet
    fault_t in, out;
    uint64_t packets_in, packets_out, not_udp, send_failed, oversized;
    uint32_t queued;                 // frames waiting in tx
    struct mmsghdr tx[BATCH];
    struct iovec tx_iov[BATCH];
    struct sockaddr_in tx_to[BATCH];
    uint8_t (*tx_bytes)[FRAME_BYTES];
} port_t;

typedef struct { uint64_t due_ns; uint32_t port, bytes; bool outgoing, used; uint8_t *frame; } held_t;

static port_t ports[MAX_PORTS];
static held_t held[HELD];
static uint32_t held_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int writers;
static atomic_bool stopping;
static atomic_uint_least64_t activity;
static int wake = -1;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

// splitmix64 (Steele, Lea, Flood 2014): one stream per port and direction.
static uint64_t draw(fault_t *f) {
    uint64_t z = f->state += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}
static bool happens(fault_t *f, double probability) {
    return probability > 0 && (double)(draw(f) >> 11) * 0x1p-53 < probability;
}

// ---- out --------------------------------------------------------------------------------------------------------

static void flush(port_t *p) {
    uint32_t sent = 0;
    while (sent < p->queued) {
        int n = sendmmsg(p->fd, p->tx + sent, p->queued - sent, 0);
        if (n > 0) { sent += (uint32_t)n; continue; }
        if (errno == EINTR) continue;
        if (errno == EAGAIN || errno == ENOBUFS) {
            struct pollfd ready = {p->fd, POLLOUT, 0};
            if (poll(&ready, 1, 10) > 0) continue;
        }
        // Nobody listens there any more (ECONNREFUSED of an earlier datagram), or no room: a network loses this.
        p->send_failed++;
        sent++;
    }
    p->queued = 0;
}

static void enqueue(port_t *p, const uint8_t *payload, uint32_t bytes, struct sockaddr_in to) {
    if (bytes > FRAME_BYTES) { p->oversized++; return; }
    if (p->queued == BATCH) flush(p);
    uint32_t i = p->queued++;
    memcpy(p->tx_bytes[i], payload, bytes);
    p->tx_iov[i] = (struct iovec){p->tx_bytes[i], bytes};
    p->tx_to[i] = to;
    p->tx[i].msg_hdr = (struct msghdr){.msg_name = &p->tx_to[i], .msg_namelen = sizeof p->tx_to[i],
                                       .msg_iov = &p->tx_iov[i], .msg_iovlen = 1};
    p->packets_out++;
}

static void transmit(uint32_t number, const uint8_t *frame, uint32_t bytes) {
    port_t *p = &ports[number];
    if (p->wire) {
        if (p->peer.sin_port == 0) p->send_failed++;
        else enqueue(p, frame, bytes, p->peer);
        return;
    }
    bool udp = bytes >= HEADROOM && load16(frame + 12) == 0x0800 && frame[14] == 0x45 && frame[23] == 17;
    uint32_t datagram = udp ? load16(frame + 38) : 0;
    if (!udp || datagram < 8 || 34 + datagram > bytes) { p->not_udp++; return; }
    enqueue(p, frame + HEADROOM, datagram - 8,
            (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(load16(frame + 36)),
                                 .sin_addr = {htonl(load32(frame + 30))}});
}

static void hold(uint32_t port, bool outgoing, const uint8_t *frame, uint32_t bytes, uint64_t due_ns) {
    for (uint32_t i = 0; i < HELD; i++) {
        if (held[i].used) continue;
        held[i] = (held_t){due_ns, port, bytes, outgoing, true, malloc(bytes)};
        memcpy(held[i].frame, frame, bytes);
        held_count++;
        return;
    }
}

// How many copies of a frame go on now; a frame may also be held back, to come after later ones.
static int faults(fault_t *f, uint32_t port, bool outgoing, const uint8_t *frame, uint32_t bytes) {
    if (happens(f, f->loss)) { f->lost++; return 0; }
    int copies = 1;
    if (happens(f, f->duplicate)) { f->duplicated++; copies = 2; }
    if (held_count < HELD && happens(f, f->reorder)) {
        f->held++;
        hold(port, outgoing, frame, bytes, now_ns() + 200000 + draw(f) % 1800000);
        copies--;
    }
    return copies;
}

static void leave(void *to, uint32_t number, const uint8_t *frame, uint32_t bytes) {
    (void)to;
    if (number >= MAX_PORTS || ports[number].fd < 0) return;
    for (int n = faults(&ports[number].out, number, true, frame, bytes); n > 0; n--) transmit(number, frame, bytes);
}

// ---- in ---------------------------------------------------------------------------------------------------------

// A datagram as the frame that a NIC would have brought: Ethernet, IPv4 and UDP headers rebuilt in front of it.
static uint32_t rebuild(const port_t *p, uint32_t number, uint8_t *frame, uint32_t payload,
                        const struct sockaddr_in *from) {
    static const uint8_t switch_mac[6] = {2, 0, 0, 0, 0, 1};
    uint8_t host_mac[6] = {2, 0, 0, 1, (uint8_t)(number >> 8), (uint8_t)number};
    memcpy(frame, switch_mac, 6);
    memcpy(frame + 6, host_mac, 6);
    store16(frame + 12, 0x0800);
    uint8_t *ip = frame + 14, *udp = frame + 34;
    memset(ip, 0, 20);
    ip[0] = 0x45;
    store16(ip + 2, (uint16_t)(28 + payload));
    ip[8] = 64;
    ip[9] = 17;
    store32(ip + 12, ntohl(from->sin_addr.s_addr));
    store32(ip + 16, p->inside_address);
    store16(ip + 10, csum16(ip, 20));
    store16(udp, ntohs(from->sin_port));
    store16(udp + 2, p->inside_port);
    store16(udp + 4, (uint16_t)(8 + payload));
    store16(udp + 6, 0);
    return HEADROOM + payload;
}

static void arrive(uint32_t number, const uint8_t *frame, uint32_t bytes) {
    ports[number].packets_in++;
    process_packet(number, frame, bytes, leave, NULL);
}

static bool receive(uint32_t number) {
    static uint8_t frames[BATCH][FRAME_BYTES];
    static struct mmsghdr rx[BATCH];
    static struct iovec iov[BATCH];
    static struct sockaddr_in from[BATCH];
    port_t *p = &ports[number];
    for (int i = 0; i < BATCH; i++) {
        iov[i] = (struct iovec){frames[i] + HEADROOM, FRAME_BYTES - HEADROOM};
        rx[i].msg_hdr = (struct msghdr){.msg_name = &from[i], .msg_namelen = sizeof from[i],
                                        .msg_iov = &iov[i], .msg_iovlen = 1};
    }
    int n = recvmmsg(p->fd, rx, BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < n; i++) {
        if (rx[i].msg_hdr.msg_flags & MSG_TRUNC) { p->oversized++; continue; }
        if (p->wire) {
            if (!p->peer_fixed) p->peer = from[i];
            // An empty datagram only says where the other end is. Losses are drawn where a frame enters the wire.
            if (rx[i].msg_len > 0) arrive(number, frames[i] + HEADROOM, rx[i].msg_len);
            continue;
        }
        uint32_t bytes = rebuild(p, number, frames[i], rx[i].msg_len, &from[i]);
        for (int copies = faults(&p->in, number, false, frames[i], bytes); copies > 0; copies--)
            arrive(number, frames[i], bytes);
    }
    return n > 0;
}

static int64_t release_held(void) {
    if (held_count == 0) return -1;
    uint64_t now = now_ns(), next = UINT64_MAX;
    for (uint32_t i = 0; i < HELD; i++) {
        if (!held[i].used) continue;
        if (held[i].due_ns > now) { if (held[i].due_ns < next) next = held[i].due_ns; continue; }
        held_t h = held[i];
        held[i].used = false;
        held_count--;
        if (h.outgoing) transmit(h.port, h.frame, h.bytes);
        else arrive(h.port, h.frame, h.bytes);
        free(h.frame);
    }
    return next == UINT64_MAX ? 0 : (int64_t)(next - now);
}

// ---- exported ---------------------------------------------------------------------------------------------------

// Set up; must come first. Returns -1 when the system is out of descriptors.
int nf_init(void) {
    for (int i = 0; i < MAX_PORTS; i++) ports[i].fd = -1;
    program_init();
    wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return wake;
}

void nf_port(uint32_t number, int fd, uint32_t inside_address, uint16_t inside_port, double loss, double duplicate,
             double reorder, uint64_t seed) {
    port_t *p = &ports[number];
    p->fd = fd;
    p->inside_address = inside_address;
    p->inside_port = inside_port;
    p->in = (fault_t){loss, duplicate, reorder, seed * 2 + 1 + ((uint64_t)number << 32), 0, 0, 0};
    p->out = (fault_t){loss, duplicate, reorder, seed * 2 + 2 + ((uint64_t)number << 40), 0, 0, 0};
    if (p->tx_bytes == NULL) p->tx_bytes = malloc(sizeof(uint8_t[BATCH][FRAME_BYTES]));
}

// The port is one end of a wire; peer_port 0: the other end will be heard from.
void nf_wire(uint32_t number, uint32_t peer_address, uint16_t peer_port) {
    port_t *p = &ports[number];
    p->wire = true;
    p->peer_fixed = peer_port != 0;
    p->peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(peer_port),
                                   .sin_addr = {htonl(peer_address)}};
}

void nf_lock(void) { atomic_fetch_add(&writers, 1); pthread_mutex_lock(&lock); atomic_fetch_sub(&writers, 1); }
void nf_unlock(void) { pthread_mutex_unlock(&lock); }

// Run until nf_stop. Called without Python's lock.
void nf_run(void) {
    struct pollfd ready[MAX_PORTS + 1];
    uint32_t number[MAX_PORTS], count = 0;
    for (uint32_t i = 0; i < MAX_PORTS; i++)
        if (ports[i].fd >= 0) { ready[count] = (struct pollfd){ports[i].fd, POLLIN, 0}; number[count++] = i; }
    ready[count] = (struct pollfd){wake, POLLIN, 0};
    int64_t wait_ns = -1;
    while (!atomic_load(&stopping)) {
        struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
        int n = ppoll(ready, count + 1, wait_ns < 0 ? NULL : &timeout, NULL);
        if (n > 0) atomic_fetch_add(&activity, 1);
        // A writer that waits goes first: the mutex alone is not fair.
        for (int spins = 0; atomic_load(&writers) > 0 && spins < 1000; spins++) usleep(10);
        pthread_mutex_lock(&lock);
        for (uint32_t i = 0; i < count; i++)
            if (ready[i].revents != 0) receive(number[i]);
        wait_ns = release_held();
        for (uint32_t i = 0; i < count; i++)
            if (ports[number[i]].queued > 0) flush(&ports[number[i]]);
        pthread_mutex_unlock(&lock);
    }
}

void nf_stop(void) {
    uint64_t one = 1;
    atomic_store(&stopping, true);
    if (write(wake, &one, sizeof one) < 0) { /* the counter is full: it is awake already */ }
}

// Frees everything; nothing but unloading may follow.
void nf_close(void) {
    close(wake);
    for (uint32_t i = 0; i < HELD; i++) if (held[i].used) free(held[i].frame);
    for (uint32_t i = 0; i < MAX_PORTS; i++) free(ports[i].tx_bytes);
    program_close();
}

// Grows while anything arrives: how an idle switch is told from a busy one.
uint64_t nf_activity(void) { return atomic_load(&activity); }

// packets_in, packets_out, lost, duplicated, held back (both directions together), not UDP, send failed, too large.
void nf_port_stats(uint32_t number, uint64_t *out) {
    const port_t *p = &ports[number];
    uint64_t all[] = {p->packets_in, p->packets_out, p->in.lost + p->out.lost, p->in.duplicated + p->out.duplicated,
                      p->in.held + p->out.held, p->not_udp, p->send_failed,
                      p->oversized};
    memcpy(out, all, sizeof all);
}
