// The running switch from outside: what dataplane.py calls beside tables_api.h, and each kind of port's own nf_*_port.
#pragma once

#include "base.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "loop.h"
#include "ports/port.h"
#include "shape.h"
#include "tables_api.h"
#include "v1model.h"

// Set up; must come first. Returns an errno: there is no memory, or no descriptor. nf_close follows even then.
int nf_init(void) {
    if (!program_init()) return ENOMEM;
    wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return wake < 0 ? errno : 0;
}

void nf_lock(void) {
    atomic_fetch_add(&writers, 1);
    pthread_mutex_lock(&lock);
    atomic_fetch_sub(&writers, 1);
}
void nf_unlock(void) { pthread_mutex_unlock(&lock); }

// Run until nf_stop. Called without Python's lock.
void nf_run(void) { run_loop(); }

void nf_stop(void) {
    uint64_t one = 1;
    atomic_store(&stopping, true);
    if (write(wake, &one, sizeof one) < 0) { /* the counter is full: it is awake already */
    }
}

// A frame as if it had come in by this port, which need not exist. Under nf_lock.
void nf_inject(uint32_t number, const uint8_t *frame, uint32_t bytes) {
    uint64_t one = 1;
    process_packet(number, frame, bytes, leave, NULL);
    // The loop sends what this has queued, and waits for no longer than a frame that is held back now.
    if (write(wake, &one, sizeof one) < 0) { /* the counter is full: it is awake already */
    }
}

// Frees everything; nothing but unloading may follow.
void nf_close(void) {
    if (wake >= 0) close(wake);
    heap_free();
    for (uint32_t i = 0; i < MAX_PORTS; i++)
        if (ports[i].kind != NULL) {
            forget_waiting(&ports[i].shaper);
            ports[i].kind->close(&ports[i]);
        }
    program_close();
}

// Grows while anything arrives: how an idle switch is told from a busy one.
uint64_t nf_activity(void) { return atomic_load(&activity); }

// In the order of dataplane.py's PORT_STATS; faults of both directions together. Under nf_lock.
void nf_port_stats(uint32_t number, uint64_t *out) {
    port_t *p = &ports[number];
    if (p->kind != NULL && p->kind->missed != NULL) p->missed += p->kind->missed(p);
    uint64_t all[] = {p->packets_in,
                      p->packets_out,
                      p->bytes_in,
                      p->bytes_out,
                      p->in.lost + p->out.lost,
                      p->in.duplicated + p->out.duplicated,
                      p->in.reordered + p->out.reordered,
                      p->in.corrupted + p->out.corrupted,
                      p->shaper.depth,
                      p->shaper.deepest,
                      p->shaper.dropped,
                      p->shaper.marked,
                      p->shaper.dropped_early,
                      p->not_udp,
                      p->send_failed,
                      p->oversized,
                      p->missed,
                      p->link_down,
                      p->strangers};
    memcpy(out, all, sizeof all);
}

// In the order of dataplane.py's LOSSES. Under nf_lock.
void nf_losses(uint64_t *out) {
    out[0] = endless;
    out[1] = told_lost;
    out[2] = no_memory;
}

// ---- a packet's way without ports, and what controllers are told ------------------------------------------------

typedef struct {
    uint8_t *out;
    uint32_t room, used;
} captured_t;

static void capture(void *to, uint32_t port, uint32_t priority, const uint8_t *frame, uint32_t bytes) {
    (void)priority;
    captured_t *c = to;
    if (c->room - c->used >= 8 + bytes) {
        memcpy(c->out + c->used, &port, 4);
        memcpy(c->out + c->used + 4, &bytes, 4);
        memcpy(c->out + c->used + 8, frame, bytes);
        c->used += 8 + bytes;
    }
}

// One frame through the program without any port: what leaves is written to `out` as (port, bytes, frame) one behind
// the other. Returns how much was written.
uint32_t nf_process(uint32_t port, const uint8_t *frame, uint32_t bytes, uint8_t *out, uint32_t room) {
    captured_t captured = {out, room, 0};
    process_packet(port, frame, bytes, capture, &captured);
    return captured.used;
}

// What the program told the controller since the last call (TOLD_*); returns how many bytes.
uint32_t nf_told(uint8_t *out) {
    uint32_t bytes = told_bytes;
    memcpy(out, told, bytes);
    told_bytes = 0;
    return bytes;
}
void nf_cpu_port(uint32_t port) { cpu_port = port; }

// Frames of as many priorities wait for a port with a rate, from 0 on; of others they are dropped.
void nf_priorities(uint32_t count) { priorities = count; }

// Frames of priority 0 join the queue that their DSCP names.
void nf_trust_dscp(bool trust) { trusts_dscp = trust; }

// Write a port's frames to these files, behind the header of pcap that they have; -1 for none.
void nf_capture(uint32_t number, int in, int out) {
    ports[number].capture_in = in;
    ports[number].capture_out = out;
}
