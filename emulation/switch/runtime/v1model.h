// A packet's way through the program as v1model has it: ingress, clones, digests, resubmission, replication, egress,
// recirculation. Stands behind the generated parser, pipelines and deparser.
#pragma once

#include "base.h"

#include "program.h"
#include "runtime.h"

enum { NORMAL, INGRESS_CLONE, EGRESS_CLONE, COALESCED, RECIRCULATED, REPLICATED, RESUBMITTED };
// One packet passes the pipelines at most so often: a program may resubmit or recirculate for ever.
enum { MOST_PASSES = 256 };

static uint32_t cpu_port;  // 0: none

static void run_ingress(context_t *c, const uint8_t *frame, uint32_t bytes, uint32_t passes, emit_t emit, void *to);

static void run_egress(context_t *c, uint32_t port, uint32_t instance, uint32_t most, uint32_t passes, emit_t emit,
                       void *to);

// To each replica of a group; `last`: of the packet's groups this is the last one, and `c` is needed no more.
static void replicate(context_t *c, const group_t *group, bool last, uint32_t most, uint32_t passes, emit_t emit,
                      void *to) {
    kept_t kept;
    keep(&kept, c);
    for (uint32_t i = 0; i < group->count; i++) {
        const replica_t *r = &group->replicas[i];
        run_egress(c, r->port, r->instance, most, passes, emit, to);
        if (!last || i + 1 < group->count) put_back(c, &kept);
    }
}

static void clear_requests(context_t *c) {
    c->clone = c->clone_list = c->resubmit = c->recirculate = c->digest = 0;  // but what cuts it goes on
    c->exited = false;
}

static void mirror(context_t *c, uint32_t session, uint32_t passes, emit_t emit, void *to) {
    const session_t *s = &sessions[session];
    if (!s->used) return;
    TRACE("clone by session %u", session);
    replicate(c, &s->own, s->group == 0, s->bytes, passes, emit, to);
    if (s->group != 0) replicate(c, &groups[s->group], true, s->bytes, passes, emit, to);
}

static void run_egress(context_t *c, uint32_t port, uint32_t instance, uint32_t most, uint32_t passes, emit_t emit,
                       void *to) {
    static uint8_t out[OUT_BYTES + 65536];
    if (passes >= MOST_PASSES) {
        endless++;
        return;
    }
    clear_requests(c);
    uint32_t priority = priority_of(c);
    enter_egress(c, port, instance);
    TRACE("egress to port %u", port);
    egress(c);
    if (c->clone & CLONE) {
        context_t copy = *c;
        reset_metadata(&copy);
        preserve(&copy, c, c->clone_list);
        set_kind(&copy, EGRESS_CLONE);
        mirror(&copy, c->clone & (CLONE - 1), passes + 1, emit, to);
    }
    if (spec_of(c) == DROP_PORT) {
        TRACE("dropped in egress");
        return;
    }
    update_checksums(c);
    uint32_t bytes = deparse(c, out);
    uint32_t rest = c->payload_bytes;
    if (bytes + rest > sizeof out) rest = (uint32_t)sizeof out - bytes;
    if (rest != 0) memcpy(out + bytes, c->payload, rest);
    bytes += rest;
    if (c->truncate != 0 && bytes > c->truncate - 1) bytes = c->truncate - 1;
    if (most != 0 && bytes > most) bytes = most;
    if (c->recirculate != 0) {
        TRACE("recirculated");
        uint8_t *again = copied(out, bytes);
        if (again == NULL) {
            no_memory++;
            return;
        }
        context_t next;
        begin(&next, 0, bytes, RECIRCULATED);
        preserve(&next, c, c->recirculate);
        set_kind(&next, RECIRCULATED);
        run_ingress(&next, again, bytes, passes + 1, emit, to);
        free(again);
        return;
    }
    TRACE("leaves by port %u, %u bytes", port, bytes);
    if (cpu_port != 0 && port == cpu_port)
        tell(TOLD_PACKET, 0, out, bytes);
    else
        emit(to, port, priority, out, bytes);
}

static void run_ingress(context_t *c, const uint8_t *frame, uint32_t bytes, uint32_t passes, emit_t emit, void *to) {
    for (; passes < MOST_PASSES; passes++) {
        if (!parse(c, frame, bytes)) {
            endless++;
            return;
        }
        parsed(c);
        ingress(c);
        if (c->clone & CLONE) {
            context_t copy;
            begin(&copy, 0, bytes, INGRESS_CLONE);
            if (parse(&copy, frame, bytes)) {
                parsed(&copy);
                reset_metadata(&copy);
                preserve(&copy, c, c->clone_list);
                set_kind(&copy, INGRESS_CLONE);
                mirror(&copy, c->clone & (CLONE - 1), passes + 1, emit, to);
            } else {
                endless++;
            }
        }
        if (c->digest != 0) digest(c, c->digest);
        if (c->resubmit == 0) break;
        TRACE("resubmitted");
        context_t next;
        begin(&next, 0, bytes, RESUBMITTED);
        preserve(&next, c, c->resubmit);
        set_kind(&next, RESUBMITTED);
        *c = next;
    }
    if (passes >= MOST_PASSES) {
        endless++;
        return;
    }
    uint32_t group = group_of(c), port = spec_of(c);
    if (group != 0) {
        TRACE("to multicast group %u", group);
        set_kind(c, REPLICATED);
        replicate(c, &groups[group], true, 0, passes, emit, to);
    } else if (port == DROP_PORT) {
        TRACE("dropped in ingress");
    } else {
        set_kind(c, NORMAL);
        run_egress(c, port, 0, 0, passes, emit, to);
    }
}

static void process_packet(uint32_t port, const uint8_t *frame, uint32_t bytes, emit_t emit, void *to) {
    context_t c;
    TRACE("packet of %u bytes from port %u", bytes, port);
    begin(&c, port, bytes, NORMAL);
    run_ingress(&c, frame, bytes, 0, emit, to);
}
