// Two-rate three-colour meters (RFC 2698, colour-blind).
#pragma once

enum { GREEN, YELLOW, RED };

// Rates in bytes or packets per second. Tokens are counted from one moment on, so that nothing is rounded twice.
typedef struct { uint64_t rate, burst, tokens, given; } bucket_t;
typedef struct { bool configured; uint64_t since_us; bucket_t committed, peak; } meter_t;

static inline void bucket_fill(bucket_t *b, uint64_t us) {
    uint64_t given = (uint64_t)((u128)us * b->rate / 1000000), tokens = b->tokens + (given - b->given);
    b->given = given;
    b->tokens = tokens < b->burst ? tokens : b->burst;
}

static inline uint32_t meter_execute(meter_t *m, uint64_t amount) {
    if (!m->configured) return GREEN;
    uint64_t us = clock_us() - m->since_us;
    bucket_fill(&m->committed, us);
    bucket_fill(&m->peak, us);
    if (m->peak.tokens < amount) return RED;
    m->peak.tokens -= amount;
    if (m->committed.tokens < amount) return YELLOW;
    m->committed.tokens -= amount;
    return GREEN;
}

static inline void meter_set(meter_t *m, uint64_t cir, uint64_t cburst, uint64_t pir, uint64_t pburst) {
    *m = (meter_t){true, clock_us(), {cir, cburst, cburst, 0}, {pir, pburst, pburst, 0}};
}
