// Two-rate three-colour meters (RFC 2698), and single-rate ones with an excess burst (RFC 2697); colour-blind.
#pragma once

#include "base.h"

enum { GREEN, YELLOW, RED, COLOURS };

typedef struct {
    uint64_t packets, bytes;
} counter_t;

// Rates in bytes or packets per second. Tokens are counted from one moment on, so that nothing is rounded twice.
typedef struct {
    uint64_t rate, burst, tokens, given;
} bucket_t;
// `excess`: a single rate; `peak` gets what the committed bucket has no room for.
typedef struct {
    bool configured, excess;
    uint64_t since_us;
    bucket_t committed, peak;
    counter_t marked[COLOURS];
} meter_t;

// Returns what there was no room for.
static inline uint64_t bucket_add(bucket_t *b, uint64_t tokens) {
    uint64_t room = b->burst - b->tokens, added = tokens < room ? tokens : room;
    b->tokens += added;
    return tokens - added;
}
static inline uint64_t bucket_fill(bucket_t *b, uint64_t us) {
    uint64_t given = (uint64_t)((u128)us * b->rate / 1000000), tokens = given - b->given;
    b->given = given;
    return bucket_add(b, tokens);
}
static inline bool bucket_take(bucket_t *b, uint64_t amount) {
    if (b->tokens < amount) return false;
    b->tokens -= amount;
    return true;
}

static inline uint32_t meter_colour(meter_t *m, uint64_t amount) {
    if (!m->configured) return GREEN;
    uint64_t us = clock_us() - m->since_us, over = bucket_fill(&m->committed, us);
    if (m->excess) {
        bucket_add(&m->peak, over);
        return bucket_take(&m->committed, amount) ? GREEN : bucket_take(&m->peak, amount) ? YELLOW : RED;
    }
    bucket_fill(&m->peak, us);
    if (!bucket_take(&m->peak, amount)) return RED;
    return bucket_take(&m->committed, amount) ? GREEN : YELLOW;
}

// A packet of so many bytes, which takes `amount` of the meter's tokens.
static inline uint32_t meter_execute(meter_t *m, uint64_t amount, uint64_t bytes) {
    uint32_t colour = meter_colour(m, amount);
    m->marked[colour].packets++;
    m->marked[colour].bytes += bytes;
    return colour;
}

// Every packet is green. What was counted stays.
static inline void meter_reset(meter_t *m) { m->configured = false; }

// `eburst` 0: two rates. What was counted stays.
static inline void meter_set(meter_t *m, uint64_t cir, uint64_t cburst, uint64_t pir, uint64_t pburst,
                             uint64_t eburst) {
    bucket_t committed = {cir, cburst, cburst, 0}, peak = {pir, pburst, pburst, 0}, excess = {0, eburst, eburst, 0};
    m->configured = true;
    m->excess = eburst > 0;
    m->since_us = clock_us();
    m->committed = committed;
    m->peak = eburst > 0 ? excess : peak;
}
