// The ranks of a job on network interfaces: each contributes to a window of slots, and to a slot's next generation when
// it has the result of the one before. For `emulation bench`, which writes the offsets (..._AT) and CHECK_STEP in
// front: by that much check words grow from one generation to the next, whatever a host would say of them. Rank r is on
// port r, which nf_packet_port() opens.
#pragma once

#include "base.h"

#include <poll.h>

#include "ports/packet.h"
#include "ports/port.h"

#ifndef SLOT_AT  // Opened by itself.
enum { OPERATION_AT, SLOT_AT, GENERATION_AT, CHECK_AT, PAYLOAD_AT, OPERATION_RESULT, CHECK_STEP };
#endif

typedef struct {
    uint32_t ranks, slots, bytes;
    uint8_t *frames;     // [rank][slot]: the contribution that is under way
    uint32_t *checks;    // [rank][slot]: the check word of its result
    const uint8_t *sum;  // the elements of every result
    uint64_t again_ns;   // without a result for so long, everything is sent again
    uint64_t results, wrong, resent, ns;
} generator_t;

static generator_t *generator;  // the one that runs

static void send_slot(uint32_t rank, uint32_t slot) {
    const generator_t *g = generator;
    enqueue(&ports[rank], g->frames + ((size_t)rank * g->slots + slot) * g->bytes, g->bytes);
}

static void send_all(void) {
    for (uint32_t rank = 0; rank < generator->ranks; rank++) {
        for (uint32_t slot = 0; slot < generator->slots; slot++) send_slot(rank, slot);
        packet_flush(&ports[rank]);
    }
}

static void incoming(port_t *p, const uint8_t *frame, uint32_t bytes) {
    generator_t *g = generator;
    if (bytes != g->bytes || frame[OPERATION_AT] != OPERATION_RESULT) return;
    uint32_t slot = (uint32_t)load16(frame + SLOT_AT) - load16(g->frames + SLOT_AT);  // from the first of the window
    if (slot >= g->slots) return;
    uint32_t at = p->number * g->slots + slot;
    uint8_t *own = g->frames + (size_t)at * g->bytes;
    if (load32(frame + GENERATION_AT) != load32(own + GENERATION_AT)) return;
    if (load32(frame + CHECK_AT) != g->checks[at] || memcmp(frame + PAYLOAD_AT, g->sum, bytes - PAYLOAD_AT) != 0)
        g->wrong++;
    g->results++;
    store32(own + GENERATION_AT, load32(own + GENERATION_AT) + 1);
    store32(own + CHECK_AT, load32(own + CHECK_AT) + CHECK_STEP);
    g->checks[at] += g->ranks * CHECK_STEP;
    send_slot(p->number, slot);
}

void ng_close(uint32_t rank) { packet_close(&ports[rank]); }

// Go on for `run_ns`; what is under way at the end is awaited by the next call.
void ng_run(generator_t *g, uint64_t run_ns) {
    struct pollfd ready[MAX_PORTS];
    generator = g;
    for (uint32_t rank = 0; rank < g->ranks; rank++) ready[rank] = (struct pollfd){ports[rank].fd, POLLIN, 0};
    uint64_t start = now_ns(), now = start, heard = g->ns == 0 ? 0 : start;
    while (now - start < run_ns) {
        if (now - heard >= g->again_ns) {
            if (heard != 0) g->resent += (uint64_t)g->ranks * g->slots;
            heard = now;
            send_all();
        }
        struct timespec timeout = {0, (long)(g->again_ns - (now - heard))};
        if (ppoll(ready, g->ranks, &timeout, NULL) > 0) {
            uint64_t before = g->results;
            for (uint32_t rank = 0; rank < g->ranks; rank++) {
                if (ready[rank].revents == 0) continue;
                packet_receive(&ports[rank]);
                packet_flush(&ports[rank]);
            }
            if (g->results != before) heard = now;
        }
        now = now_ns();
    }
    g->ns += now - start;
}
