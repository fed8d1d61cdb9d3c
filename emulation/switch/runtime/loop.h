// The packet loop: ports in, the generated program, ports out, with what the links do in between. Follows port.h in the
// translation unit. Exported: nf_* (called from dataplane.py with the lock rules given there).
#pragma once

#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int writers;
static atomic_bool stopping;
static atomic_uint_least64_t activity;
static int wake = -1;

// ---- links ------------------------------------------------------------------------------------------------------

static void transmit(port_t *p, const uint8_t *frame, uint32_t bytes) {
    if (!p->kind->queue(p, frame, bytes)) return;
    p->packets_out++;
    p->bytes_out += bytes;
}

static queue_t queue_ahead(uint32_t number) {
    uint64_t now = now_ns();
    queue_t found = {0, (int64_t)(now / 1000), 0};
    const shaper_t *s = number < MAX_PORTS ? &ports[number].shaper : NULL;
    if (s == NULL || s->ns_per_byte == 0) return found;
    found.frames = (uint32_t)s->depth;
    found.wait_us = (int64_t)(turn_ns(s, now) / 1000);
    return found;
}

static bool port_up(uint32_t number) {
    port_t *p = number < MAX_PORTS ? &ports[number] : NULL;
    return p != NULL && p->kind != NULL && (p->kind->up == NULL || p->kind->up(p));
}

static void leave(void *to, uint32_t number, const uint8_t *frame, uint32_t bytes);

static void arrive(port_t *p, const uint8_t *frame, uint32_t bytes) {
    p->packets_in++;
    p->bytes_in += bytes;
    process_packet(p->number, frame, bytes, leave, NULL);
}

static void hold(port_t *p, wait_t wait, uint64_t due_ns, uint64_t further_ns, const uint8_t *frame, uint32_t bytes) {
    uint8_t *copy = malloc(bytes);
    memcpy(copy, frame, bytes);
    heap_push((held_t){.due_ns = due_ns, .further_ns = further_ns, .frame = copy, .port = p->number, .bytes = bytes,
                       .wait = wait});
}

// A frame on its way, to arrive `further_ns` after the link could take it. All frames of a shaped link go through the
// heap: none overtakes.
static void travel(port_t *p, bool outgoing, const uint8_t *frame, uint32_t bytes, uint64_t further_ns) {
    shaper_t *s = &p->shaper;
    bool shaped = outgoing && s->ns_per_byte > 0;
    if (!shaped && further_ns == 0) {
        if (outgoing) transmit(p, frame, bytes);
        else arrive(p, frame, bytes);
        return;
    }
    if ((shaped && s->depth >= s->limit) || heap_count >= MAX_HELD) { s->dropped++; return; }
    uint64_t now = now_ns();
    if (!shaped) {
        hold(p, outgoing ? DELAYED_OUT : DELAYED_IN, now + further_ns, 0, frame, bytes);
        return;
    }
    if (++s->depth > s->deepest) s->deepest = s->depth;
    hold(p, SHAPED, departure(s, bytes, now), further_ns, frame, bytes);
}

static void enter(port_t *p, bool outgoing, const uint8_t *frame, uint32_t bytes) {
    // What comes in is still read while what goes out is damaged.
    static uint8_t scratch[2][FRAME_BYTES];
    uint8_t *damaged = scratch[outgoing];
    fault_t *f = outgoing ? &p->out : &p->in;
    if (untouched(f)) { travel(p, outgoing, frame, bytes, 0); return; }
    if (happens(f, f->loss)) { f->lost++; return; }
    if (happens(f, f->corrupt) && bytes > p->kind->headers) {
        uint64_t bit = draw(f) % (8 * (bytes - p->kind->headers));
        memcpy(damaged, frame, bytes);
        damaged[p->kind->headers + bit / 8] ^= (uint8_t)(1 << bit % 8);
        frame = damaged;
        f->corrupted++;
    }
    bool twice = happens(f, f->duplicate), late = happens(f, f->reorder);
    uint64_t late_ns = late ? 200000 + draw(f) % 1800000 : 0;
    f->duplicated += twice;
    f->reordered += late;
    travel(p, outgoing, frame, bytes, f->delay_ns + late_ns);
    if (twice) travel(p, outgoing, frame, bytes, f->delay_ns);
}

static void leave(void *to, uint32_t number, const uint8_t *frame, uint32_t bytes) {
    (void)to;
    if (number >= MAX_PORTS || ports[number].kind == NULL) return;
    if (bytes > FRAME_BYTES) ports[number].oversized++;
    else enter(&ports[number], true, frame, bytes);
}

static void incoming(port_t *p, const uint8_t *frame, uint32_t bytes) {
    if (p->kind->both_ways) enter(p, false, frame, bytes);
    else arrive(p, frame, bytes);
}

// Let go what is due. Returns how long the next frame still has to wait, -1 when there is none.
static int64_t release_held(void) {
    if (heap_count == 0) return -1;
    uint64_t now = now_ns();
    while (heap_count > 0 && heap[0].due_ns <= now) {
        held_t h = heap_pop();
        port_t *p = &ports[h.port];
        if (h.wait == SHAPED) p->shaper.depth--;
        if (h.further_ns > 0) {
            h.due_ns += h.further_ns;
            h.further_ns = 0;
            h.wait = DELAYED_OUT;
            heap_push(h);
            continue;
        }
        if (h.wait == DELAYED_IN) arrive(p, h.frame, h.bytes);
        else transmit(p, h.frame, h.bytes);
        free(h.frame);
    }
    return heap_count == 0 ? -1 : (int64_t)(heap[0].due_ns - now);
}

// ---- exported ---------------------------------------------------------------------------------------------------

// Set up; must come first. Returns -1 when the system is out of descriptors.
int nf_init(void) {
    program_init();
    wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return wake;
}

static port_t *add_port(uint32_t number, int fd, const link_t *link, const kind_t *kind) {
    port_t *p = &ports[number];
    *p = (port_t){.kind = kind, .number = number, .fd = fd};
    p->in = fault_of(link, link->seed * 2 + 1 + ((uint64_t)number << 32));
    p->out = fault_of(link, link->seed * 2 + 2 + ((uint64_t)number << 40));
    p->shaper = shaper_of(link);
    return p;
}

// Ports are added once, before nf_run.
void nf_udp_port(uint32_t number, int fd, const link_t *link, uint32_t inside_address, uint16_t inside_port) {
    port_t *p = add_port(number, fd, link, &udp_kind);
    p->tx = malloc(TX_BYTES);
    p->gso = true;
    p->inside_address = inside_address;
    p->inside_port = inside_port;
}

// One end of a wire; peer_port 0: the other end will be heard from.
void nf_wire_port(uint32_t number, int fd, const link_t *link, uint32_t peer_address, uint16_t peer_port) {
    port_t *p = add_port(number, fd, link, &wire_kind);
    p->tx = malloc(TX_BYTES);
    p->gso = true;
    p->peer_fixed = peer_port != 0;
    p->peer = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(peer_port),
                                   .sin_addr = {htonl(peer_address)}};
}

// As packet_open.
int nf_packet_port(uint32_t number, int fd, const link_t *link, uint32_t longest, int xdp, uint8_t *tx,
                   size_t tx_bytes) {
    return packet_open(add_port(number, fd, link, &packet_kind), longest, xdp, tx, tx_bytes);
}

void nf_lock(void) { atomic_fetch_add(&writers, 1); pthread_mutex_lock(&lock); atomic_fetch_sub(&writers, 1); }
void nf_unlock(void) { pthread_mutex_unlock(&lock); }

// Run until nf_stop. Called without Python's lock.
void nf_run(void) {
    static struct pollfd ready[MAX_PORTS + 1];
    port_t *polled[MAX_PORTS];
    uint32_t count = 0;
    for (uint32_t i = 0; i < MAX_PORTS; i++) {
        if (ports[i].kind == NULL) continue;
        ready[count] = (struct pollfd){ports[i].fd, POLLIN, 0};
        polled[count++] = &ports[i];
    }
    ready[count] = (struct pollfd){wake, POLLIN, 0};
    // Timers of this thread at their time: the default lets them be 50 us late.
    prctl(PR_SET_TIMERSLACK, 1ul);
    int64_t wait_ns = -1;
    while (!atomic_load(&stopping)) {
        struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
        int n = ppoll(ready, count + 1, wait_ns < 0 ? NULL : &timeout, NULL);
        if (n > 0) atomic_fetch_add(&activity, 1);
        // A writer that waits goes first: the mutex alone is not fair.
        for (int spins = 0; atomic_load(&writers) > 0 && spins < 1000; spins++) usleep(10);
        pthread_mutex_lock(&lock);
        for (uint32_t i = 0; n > 0 && i < count; i++)
            if (ready[i].revents != 0) polled[i]->kind->receive(polled[i]);
        if (n > 0 && ready[count].revents != 0) {
            uint64_t woken;
            if (read(wake, &woken, sizeof woken) < 0) { /* nothing there any more */ }
        }
        wait_ns = release_held();
        for (uint32_t i = 0; i < count; i++)
            if (polled[i]->queued > 0) polled[i]->kind->flush(polled[i]);
        pthread_mutex_unlock(&lock);
    }
}

void nf_stop(void) {
    uint64_t one = 1;
    atomic_store(&stopping, true);
    if (write(wake, &one, sizeof one) < 0) { /* the counter is full: it is awake already */ }
}

// A frame as if it had come in by this port, which need not exist. Under nf_lock.
void nf_inject(uint32_t number, const uint8_t *frame, uint32_t bytes) {
    uint64_t one = 1;
    process_packet(number, frame, bytes, leave, NULL);
    // The loop sends what this has queued, and waits for no longer than a frame that is held back now.
    if (write(wake, &one, sizeof one) < 0) { /* the counter is full: it is awake already */ }
}

// Frees everything; nothing but unloading may follow.
void nf_close(void) {
    close(wake);
    heap_free();
    for (uint32_t i = 0; i < MAX_PORTS; i++) {
        if (ports[i].kind == &packet_kind) packet_close(&ports[i]);
        else free(ports[i].tx);
    }
    program_close();
}

// Grows while anything arrives: how an idle switch is told from a busy one.
uint64_t nf_activity(void) { return atomic_load(&activity); }

// In the order of dataplane.py's PORT_STATS; faults of both directions together. Under nf_lock.
void nf_port_stats(uint32_t number, uint64_t *out) {
    port_t *p = &ports[number];
    if (p->kind == &packet_kind) p->missed += packet_missed(p);
    uint64_t all[] = {p->packets_in, p->packets_out, p->bytes_in, p->bytes_out,
                      p->in.lost + p->out.lost, p->in.duplicated + p->out.duplicated,
                      p->in.reordered + p->out.reordered, p->in.corrupted + p->out.corrupted,
                      p->shaper.depth, p->shaper.deepest, p->shaper.dropped,
                      p->not_udp, p->send_failed, p->oversized, p->missed, p->link_down};
    memcpy(out, all, sizeof all);
}

// In the order of dataplane.py's LOSSES. Under nf_lock.
void nf_losses(uint64_t *out) {
    out[0] = endless;
    out[1] = told_lost;
}
