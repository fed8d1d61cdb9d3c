// The packet loop: ports in, the generated program, ports out, with what the links do in between.
#pragma once

#include "base.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "pcap.h"
#include "ports/port.h"
#include "shape.h"
#include "v1model.h"

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
    if (p->capture_out >= 0) write_captured(&p->capture_out, frame, bytes);
}

static void leave(void *to, uint32_t number, uint32_t priority, const uint8_t *frame, uint32_t bytes);

static void arrive(port_t *p, const uint8_t *frame, uint32_t bytes) {
    p->packets_in++;
    p->bytes_in += bytes;
    if (p->capture_in >= 0) write_captured(&p->capture_in, frame, bytes);
    process_packet(p->number, frame, bytes, leave, NULL);
}

// False: there is no memory, and the frame is lost.
static bool hold(held_t held) {
    if (held.frame != NULL && heap_push(held)) {
        held_count++;
        return true;
    }
    free(held.frame);
    no_memory++;
    return false;
}

// The next frame that waits for a link takes it. The heap wakes us when it has left.
static void take_link(port_t *p) {
    shaper_t *s = &p->shaper;
    while (!s->busy) {
        waiting_t *w = take_first(s);
        if (w == NULL) return;
        // As if it had been given its time at once: that we wake late costs the link nothing.
        held_t held = {.due_ns = departure(s, w->bytes, w->came_ns),
                       .further_ns = w->further_ns,
                       .frame = w->frame,
                       .port = p->number,
                       .bytes = w->bytes,
                       .wait = SHAPED};
        free(w);
        held_count--;
        s->busy = hold(held);
        if (!s->busy) s->depth--;
    }
}

static void wait_for_link(port_t *p, uint32_t priority, const uint8_t *frame, uint32_t bytes, uint64_t further_ns) {
    shaper_t *s = &p->shaper;
    if (trusts_dscp && priority == 0) {
        uint32_t class = class_of(frame, bytes);
        priority = class < priorities ? class : priorities - 1;
    }
    if (priority >= priorities || s->queues[priority].frames + s->busy >= s->limit) {
        s->dropped++;
        return;
    }
    capable_t capable = s->mark_to == 0 ? NOT_IP : capable_of_marks(frame, bytes);
    bool told = capable != NOT_IP && tells(s, &p->out, s->queues[priority].frames + s->busy, capable == CAPABLE);
    if (told && capable == NOT_CAPABLE) {
        s->dropped_early++;
        return;
    }
    waiting_t *w = malloc(sizeof *w);
    uint8_t *copy = copied(frame, bytes);
    if (w == NULL || copy == NULL) {
        free(w);
        free(copy);
        no_memory++;
        return;
    }
    if (told) {
        mark(copy);
        s->marked++;
    }
    *w = (waiting_t){NULL, now_ns(), further_ns, copy, bytes};
    join_queue(&s->queues[priority], w);
    held_count++;
    if (++s->depth > s->deepest) s->deepest = s->depth;
    take_link(p);
}

// A frame on its way, to arrive `further_ns` after the link could take it. All frames of a shaped link wait for it:
// none overtakes one of its own priority.
static void travel(port_t *p, bool outgoing, uint32_t priority, const uint8_t *frame, uint32_t bytes,
                   uint64_t further_ns) {
    bool shaped = outgoing && p->shaper.ns_per_byte > 0;
    if (!shaped && further_ns == 0) {
        if (outgoing)
            transmit(p, frame, bytes);
        else
            arrive(p, frame, bytes);
    } else if (held_count >= MAX_HELD) {
        p->shaper.dropped++;
    } else if (shaped) {
        wait_for_link(p, priority, frame, bytes, further_ns);
    } else {
        hold((held_t){.due_ns = now_ns() + further_ns,
                      .frame = copied(frame, bytes),
                      .port = p->number,
                      .bytes = bytes,
                      .wait = outgoing ? DELAYED_OUT : DELAYED_IN});
    }
}

static void enter(port_t *p, bool outgoing, uint32_t priority, const uint8_t *frame, uint32_t bytes) {
    // What comes in is still read while what goes out is damaged.
    static uint8_t scratch[2][FRAME_BYTES];
    uint8_t *damaged = scratch[outgoing];
    fault_t *f = outgoing ? &p->out : &p->in;
    if (untouched(f)) {
        travel(p, outgoing, priority, frame, bytes, 0);
        return;
    }
    if (happens(f, f->loss)) {
        f->lost++;
        return;
    }
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
    travel(p, outgoing, priority, frame, bytes, f->delay_ns + late_ns);
    if (twice) travel(p, outgoing, priority, frame, bytes, f->delay_ns);
}

static void leave(void *to, uint32_t number, uint32_t priority, const uint8_t *frame, uint32_t bytes) {
    (void)to;
    if (number >= MAX_PORTS || ports[number].kind == NULL) return;
    if (bytes > FRAME_BYTES)
        ports[number].oversized++;
    else
        enter(&ports[number], true, priority, frame, bytes);
}

static void incoming(port_t *p, const uint8_t *frame, uint32_t bytes) {
    if (p->kind->both_ways)
        enter(p, false, 0, frame, bytes);
    else
        arrive(p, frame, bytes);
}

// Let go what is due. Returns how long the next frame still has to wait, -1 when there is none.
static int64_t release_held(void) {
    if (heap_count == 0) return -1;
    uint64_t now = now_ns();
    while (heap_count > 0 && heap[0].due_ns <= now) {
        held_t h = heap_pop();
        port_t *p = &ports[h.port];
        if (h.wait == SHAPED) {
            p->shaper.depth--;
            p->shaper.busy = false;
            take_link(p);
        }
        if (h.further_ns > 0) {
            h.due_ns += h.further_ns;
            h.further_ns = 0;
            h.wait = DELAYED_OUT;
            heap_push(h);
            continue;
        }
        held_count--;
        if (h.wait == DELAYED_IN)
            arrive(p, h.frame, h.bytes);
        else
            transmit(p, h.frame, h.bytes);
        free(h.frame);
    }
    return heap_count == 0 ? -1 : (int64_t)(heap[0].due_ns - now);
}

// ---- the loop ---------------------------------------------------------------------------------------------------

// Until `stopping`.
static void run_loop(void) {
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
        for (uint32_t i = 0; i < count; i++) ready[i].events = polled[i]->blocked ? POLLIN | POLLOUT : POLLIN;
        struct timespec timeout = {wait_ns / 1000000000, wait_ns % 1000000000};
        int n = ppoll(ready, count + 1, wait_ns < 0 ? NULL : &timeout, NULL);
        if (n > 0) atomic_fetch_add(&activity, 1);
        // A writer that waits goes first: the mutex alone is not fair.
        for (int spins = 0; atomic_load(&writers) > 0 && spins < 1000; spins++) usleep(10);
        pthread_mutex_lock(&lock);
        for (uint32_t i = 0; n > 0 && i < count; i++)
            if ((ready[i].revents & ~POLLOUT) != 0) polled[i]->kind->receive(polled[i]);
        if (n > 0 && ready[count].revents != 0) {
            uint64_t woken;
            if (read(wake, &woken, sizeof woken) < 0) { /* nothing there any more */
            }
        }
        wait_ns = release_held();
        for (uint32_t i = 0; i < count; i++)
            if (polled[i]->queued > 0 && (!polled[i]->blocked || (n > 0 && (ready[i].revents & POLLOUT))))
                polled[i]->kind->flush(polled[i]);
        pthread_mutex_unlock(&lock);
    }
}
