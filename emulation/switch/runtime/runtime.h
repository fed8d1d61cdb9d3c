// What every generated program is compiled with: bit access, match tables, counters, multicast groups. The generated
// code follows this header in the same translation unit; control.h and loop.h follow the generated code.
#pragma once

#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef __int128 i128;
typedef unsigned __int128 u128;

// MAX_KEYS and MAX_PARAMS: program.py refuses what has more.
enum { DROP_PORT = 511, MAX_KEYS = 16, MAX_PARAMS = 16, MAX_GROUPS = 65536 };

// ---- bits of a packet, most significant first -------------------------------------------------------------------

static inline uint16_t load16(const uint8_t *p) { uint16_t v; memcpy(&v, p, 2); return __builtin_bswap16(v); }
static inline uint32_t load32(const uint8_t *p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
static inline uint64_t load64(const uint8_t *p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
static inline void store16(uint8_t *p, uint16_t v) { v = __builtin_bswap16(v); memcpy(p, &v, 2); }
static inline void store32(uint8_t *p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
static inline void store64(uint8_t *p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

// `width` (1..64) bits from bit `offset` of p.
static inline uint64_t get_bits(const uint8_t *p, uint32_t offset, uint32_t width) {
    uint64_t value = 0;
    for (uint32_t i = 0; i < width;) {
        uint32_t bit = offset + i, in_byte = bit & 7, take = 8 - in_byte;
        if (take > width - i) take = width - i;
        uint32_t part = (uint32_t)(p[bit >> 3] >> (8 - in_byte - take)) & ((1u << take) - 1);
        value = value << take | part;
        i += take;
    }
    return value;
}

static inline void put_bits(uint8_t *p, uint32_t offset, uint32_t width, uint64_t value) {
    for (uint32_t i = 0; i < width;) {
        uint32_t bit = offset + i, in_byte = bit & 7, take = 8 - in_byte;
        if (take > width - i) take = width - i;
        uint32_t shift = 8 - in_byte - take, mask = ((1u << take) - 1) << shift;
        uint32_t part = (uint32_t)(value >> (width - i - take)) << shift;
        p[bit >> 3] = (uint8_t)((p[bit >> 3] & ~mask) | (part & mask));
        i += take;
    }
}

// The Internet checksum (RFC 1071) of an even or odd number of bytes.
static inline uint16_t csum16(const uint8_t *p, uint32_t bytes) {
    uint32_t sum = 0;
    for (uint32_t i = 0; i + 1 < bytes; i += 2) sum += load16(p + i);
    if (bytes & 1) sum += (uint32_t)p[bytes - 1] << 8;
    while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

static inline int64_t sign_extend(uint64_t value, uint32_t width) {
    return (int64_t)(value << (64 - width)) >> (64 - width);
}

// ---- match tables -----------------------------------------------------------------------------------------------

typedef struct { uint64_t packets, bytes; } counter_t;

typedef struct entry {
    uint64_t value[MAX_KEYS], mask[MAX_KEYS];
    uint64_t params[MAX_PARAMS];
    counter_t hits;
    struct entry *next_same;    // the same masked key, lower priority
    int32_t action, priority;   // priority: higher wins; the prefix length for lpm
    uint32_t handle;
    bool used;
} entry_t;

// Entries that share a mask: one hash table, probed linearly (tuple space search).
typedef struct {
    uint64_t mask[MAX_KEYS];
    int32_t best;               // highest priority inside
    uint32_t slots;             // power of two
    entry_t **slot;
} tuple_t;

typedef struct {
    uint32_t keys;
    entry_t **entries;          // all of them, by handle - 1; NULL where deleted
    uint32_t count, room;
    tuple_t *tuples;            // by descending best priority
    uint32_t tuple_count;
    entry_t fallback;           // the default action
} table_t;

static inline uint64_t hash_key(const uint64_t *key, const uint64_t *mask, uint32_t keys) {
    uint64_t h = 0x9e3779b97f4a7c15ull;
    for (uint32_t i = 0; i < keys; i++) {
        h ^= key[i] & mask[i];
        h *= 0xbf58476d1ce4e5b9ull;
        h ^= h >> 29;
    }
    return h;
}

static inline bool same_key(const entry_t *e, const uint64_t *key, const uint64_t *mask, uint32_t keys) {
    for (uint32_t i = 0; i < keys; i++)
        if (e->value[i] != (key[i] & mask[i])) return false;
    return true;
}

static inline entry_t *table_lookup(const table_t *t, const uint64_t *key) {
    entry_t *best = NULL;
    for (uint32_t i = 0; i < t->tuple_count; i++) {
        const tuple_t *tuple = &t->tuples[i];
        if (best != NULL && best->priority >= tuple->best) break;
        for (uint64_t h = hash_key(key, tuple->mask, t->keys);; h++) {
            entry_t *e = tuple->slot[h & (tuple->slots - 1)];
            if (e == NULL) break;
            if (same_key(e, key, tuple->mask, t->keys)) {
                if (best == NULL || e->priority > best->priority) best = e;
                break;
            }
        }
    }
    return best;
}

static void table_forget_tuples(table_t *t) {
    for (uint32_t i = 0; i < t->tuple_count; i++) free(t->tuples[i].slot);
    free(t->tuples);
    t->tuples = NULL;
    t->tuple_count = 0;
}

static int by_best(const void *a, const void *b) {
    int32_t x = ((const tuple_t *)a)->best, y = ((const tuple_t *)b)->best;
    return x < y ? 1 : x > y ? -1 : 0;
}

// Build the search structure anew from the entries. Writes are rare and batched, packets are not.
static void table_rebuild(table_t *t) {
    table_forget_tuples(t);
    t->tuples = calloc(t->count + 1, sizeof *t->tuples);
    size_t mask_bytes = t->keys * sizeof(uint64_t);
    uint32_t *members = calloc(t->count + 1, sizeof *members);
    for (uint32_t i = 0; i < t->count; i++) {
        entry_t *e = t->entries[i];
        if (e == NULL) continue;
        uint32_t k = 0;
        while (k < t->tuple_count && memcmp(t->tuples[k].mask, e->mask, mask_bytes) != 0) k++;
        if (k == t->tuple_count) {
            memcpy(t->tuples[k].mask, e->mask, mask_bytes);
            t->tuples[k].best = e->priority;
            t->tuple_count++;
        }
        if (e->priority > t->tuples[k].best) t->tuples[k].best = e->priority;
        members[k]++;
    }
    for (uint32_t k = 0; k < t->tuple_count; k++) {
        t->tuples[k].slots = 4;
        while (t->tuples[k].slots < 2 * members[k]) t->tuples[k].slots *= 2;
        t->tuples[k].slot = calloc(t->tuples[k].slots, sizeof(entry_t *));
    }
    free(members);
    for (uint32_t i = 0; i < t->count; i++) {
        entry_t *e = t->entries[i];
        if (e == NULL) continue;
        uint32_t k = 0;
        while (memcmp(t->tuples[k].mask, e->mask, mask_bytes) != 0) k++;
        tuple_t *tuple = &t->tuples[k];
        e->next_same = NULL;
        for (uint64_t h = hash_key(e->value, tuple->mask, t->keys);; h++) {
            entry_t **at = &tuple->slot[h & (tuple->slots - 1)];
            if (*at == NULL) { *at = e; break; }
            if (same_key(*at, e->value, tuple->mask, t->keys)) {
                while (*at != NULL && (*at)->priority >= e->priority) at = &(*at)->next_same;
                e->next_same = *at;
                *at = e;
                break;
            }
        }
    }
    qsort(t->tuples, t->tuple_count, sizeof *t->tuples, by_best);
}

// ---- replication ------------------------------------------------------------------------------------------------

typedef struct { uint16_t port, instance; } replica_t;
typedef struct { uint32_t count; replica_t *replicas; } group_t;

static group_t groups[MAX_GROUPS];

// ---- one packet -------------------------------------------------------------------------------------------------

// Called for each frame that leaves: headers and payload are already one piece.
typedef void (*emit_t)(void *to, uint32_t port, const uint8_t *frame, uint32_t bytes);
