// Match tables, action profiles and parser value sets. Keys are 64-bit words, the highest of each key first.
#pragma once

#include "base.h"

#include "link.h"
#include "meter.h"

#ifndef KEY_WORDS  // Opened by itself.
#define KEY_WORDS 1
#define PARAM_WORDS 1
#define TABLES 1
#define PROFILES 1
#define VALUE_SETS 1
#endif

typedef struct {
    int32_t action;
    uint64_t params[PARAM_WORDS];
} action_t;

typedef struct entry {
    uint64_t value[KEY_WORDS], mask[KEY_WORDS];  // of a range: its ends
    action_t own;
    uint32_t member, group;   // of the table's action profile, instead of an action of its own; from 1
    struct entry *next_same;  // the same masked key, lower priority
    int32_t priority;         // higher wins; the prefix length for lpm
    uint32_t handle;
    counter_t hits;
    uint64_t hit_us;
    meter_t meter;
} entry_t;

// Entries that share a mask: one hash table, probed linearly (tuple space search).
typedef struct {
    uint64_t mask[KEY_WORDS];
    int32_t best;           // highest priority inside
    uint32_t members;       // entries with this mask
    uint32_t slots, shift;  // 2^n, and 64 - n: at most SLOTS_EACH for each member
    entry_t **slot;         // in the table's slots
} tuple_t;

enum { SLOTS_EACH = 4 };

typedef struct {
    uint32_t words;
    bool ordered;       // a list by priority instead: a range has no mask
    entry_t **entries;  // all of them, by handle - 1; NULL where deleted
    uint32_t count, room;
    tuple_t *tuples;  // by descending best priority
    uint32_t tuple_count;
    entry_t **slots;  // the tuples' one behind the other; of an ordered table, the list
    uint32_t order_count;
    entry_t fallback;  // the default action
} table_t;

static table_t tables[TABLES];

// An odd number for each word of a key, without a pattern that two words could share (splitmix64's mixing).
static inline uint64_t hash_factor(uint32_t i) {
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    return z | 1;
}
// Multiply-shift hashing (Dietzfelbinger et al. 1997): the products do not wait for each other, and their highest bits
// depend on all of the key. A tuple with 2^n slots takes n of them.
static inline uint64_t hash_key(const uint64_t *key, const uint64_t *mask, uint32_t words) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < words; i++) h += (key[i] & mask[i]) * hash_factor(i);
    return h;
}
static inline uint64_t hash_exact(const uint64_t *key, uint32_t words) {
    uint64_t h = 0;
    for (uint32_t i = 0; i < words; i++) h += key[i] * hash_factor(i);
    return h;
}

static inline bool same_key(const entry_t *e, const uint64_t *key, const uint64_t *mask, uint32_t words) {
    uint64_t different = 0;
    for (uint32_t i = 0; i < words; i++) different |= e->value[i] ^ (key[i] & mask[i]);
    return different == 0;
}

// `words` is t->words, known to the compiler.
static inline __attribute__((always_inline)) entry_t *table_lookup(const table_t *t, const uint64_t *key,
                                                                   uint32_t words) {
    entry_t *best = NULL;
    for (uint32_t i = 0; i < t->tuple_count; i++) {
        const tuple_t *tuple = &t->tuples[i];
        if (best != NULL && best->priority >= tuple->best) break;
        for (uint64_t h = hash_key(key, tuple->mask, words) >> tuple->shift;; h++) {
            entry_t *e = tuple->slot[h & (tuple->slots - 1)];
            if (e == NULL) break;
            if (same_key(e, key, tuple->mask, words)) {
                if (best == NULL || e->priority > best->priority) best = e;
                break;
            }
        }
    }
    return best;
}

// The same where every entry's mask is that of the whole key: there is one tuple at most.
static inline __attribute__((always_inline)) entry_t *table_lookup_exact(const table_t *t, const uint64_t *key,
                                                                         uint32_t words) {
    if (t->tuple_count == 0) return NULL;
    const tuple_t *tuple = t->tuples;
    entry_t *e;
    for (uint64_t h = hash_exact(key, words) >> tuple->shift; (e = tuple->slot[h]) != NULL;
         h = (h + 1) & (tuple->slots - 1)) {
        uint64_t different = 0;
        for (uint32_t i = 0; i < words; i++) different |= e->value[i] ^ key[i];
        if (different == 0) break;
    }
    return e;
}

// ---- tables with range keys -------------------------------------------------------------------------------------

typedef struct {
    uint8_t words;
    bool range;
} key_part_t;

static inline int compare_words(const uint64_t *a, const uint64_t *b, uint32_t words) {
    for (uint32_t i = 0; i < words; i++)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

static inline entry_t *table_lookup_ranges(const table_t *t, const uint64_t *key, const key_part_t *parts,
                                           uint32_t count) {
    for (uint32_t i = 0; i < t->order_count; i++) {
        entry_t *e = t->slots[i];
        uint32_t at = 0, k = 0;
        for (; k < count; at += parts[k++].words) {
            if (parts[k].range) {
                if (compare_words(key + at, e->value + at, parts[k].words) < 0) break;
                if (compare_words(key + at, e->mask + at, parts[k].words) > 0) break;
                continue;
            }
            uint32_t w = 0;
            while (w < parts[k].words && (key[at + w] & e->mask[at + w]) == e->value[at + w]) w++;
            if (w < parts[k].words) break;
        }
        if (k == count) return e;
    }
    return NULL;
}

static int by_priority(const void *a, const void *b) {
    const entry_t *x = *(entry_t *const *)a, *y = *(entry_t *const *)b;
    if (x->priority != y->priority) return x->priority < y->priority ? 1 : -1;
    return x->handle < y->handle ? -1 : 1;
}

// ---- building ---------------------------------------------------------------------------------------------------

// Until it is built anew, nothing is found.
static void table_forget(table_t *t) { t->tuple_count = t->order_count = 0; }

static int by_best(const void *a, const void *b) {
    int32_t x = ((const tuple_t *)a)->best, y = ((const tuple_t *)b)->best;
    return x < y ? 1 : x > y ? -1 : 0;
}

static void table_order(table_t *t) {
    for (uint32_t i = 0; i < t->count; i++)
        if (t->entries[i] != NULL) t->slots[t->order_count++] = t->entries[i];
    qsort(t->slots, t->order_count, sizeof *t->slots, by_priority);
}

// The tuple of an entry's mask, a new one with no slots if there is none yet.
static tuple_t *table_tuple(table_t *t, const entry_t *e) {
    size_t mask_bytes = t->words * sizeof(uint64_t);
    uint32_t k = 0;
    while (k < t->tuple_count && memcmp(t->tuples[k].mask, e->mask, mask_bytes) != 0) k++;
    tuple_t *tuple = &t->tuples[k];
    if (k == t->tuple_count) {
        memcpy(tuple->mask, e->mask, mask_bytes);
        tuple->best = e->priority;
        tuple->members = 0;
        t->tuple_count++;
    }
    return tuple;
}

// Build the search structure anew from the entries. Writes are rare and batched, packets are not. It takes no memory
// but what table_grow() has taken: what was inserted cannot be refused any more.
static void table_rebuild(table_t *t) {
    table_forget(t);
    if (t->count == 0) return;
    if (t->ordered) {
        table_order(t);
        return;
    }
    for (uint32_t i = 0; i < t->count; i++) {
        const entry_t *e = t->entries[i];
        if (e == NULL) continue;
        tuple_t *tuple = table_tuple(t, e);
        if (e->priority > tuple->best) tuple->best = e->priority;
        tuple->members++;
    }
    entry_t **free_slots = t->slots;
    for (uint32_t k = 0; k < t->tuple_count; k++) {
        tuple_t *tuple = &t->tuples[k];
        for (tuple->slots = 4, tuple->shift = 62; tuple->slots < 2 * tuple->members; tuple->slots *= 2) tuple->shift--;
        tuple->slot = memset(free_slots, 0, tuple->slots * sizeof *free_slots);
        free_slots += tuple->slots;
    }
    for (uint32_t i = 0; i < t->count; i++) {
        entry_t *e = t->entries[i];
        if (e == NULL) continue;
        const tuple_t *tuple = table_tuple(t, e);
        e->next_same = NULL;
        for (uint64_t h = hash_key(e->value, tuple->mask, t->words) >> tuple->shift;; h++) {
            entry_t **at = &tuple->slot[h & (tuple->slots - 1)];
            if (*at == NULL) {
                *at = e;
                break;
            }
            if (same_key(*at, e->value, tuple->mask, t->words)) {
                while (*at != NULL && (*at)->priority >= e->priority) at = &(*at)->next_same;
                e->next_same = *at;
                *at = e;
                break;
            }
        }
    }
    qsort(t->tuples, t->tuple_count, sizeof *t->tuples, by_best);
}

// Room for more entries, and for all that table_rebuild() makes of them. False: there is no memory.
static bool table_grow(table_t *t) {
    size_t room = t->room == 0 ? 16 : 2 * (size_t)t->room;
    table_forget(t);
    if (!grown(&t->entries, room * sizeof *t->entries) || !grown(&t->tuples, room * sizeof *t->tuples)
        || !grown(&t->slots, room * SLOTS_EACH * sizeof *t->slots))
        return false;
    t->room = (uint32_t)room;
    return true;
}

static void action_set(action_t *a, int32_t action, const uint64_t *params, uint32_t words) {
    a->action = action;
    memset(a->params, 0, sizeof a->params);
    memcpy(a->params, params, words * sizeof *params);
}

// The new entry's handle, from 1; 0: there is no memory for it. table_rebuild follows a batch.
static uint32_t table_insert(uint32_t table, const uint64_t *value, const uint64_t *mask, int32_t priority,
                             int32_t action, const uint64_t *params, uint32_t words) {
    table_t *t = &tables[table];
    uint32_t i = 0;
    while (i < t->count && t->entries[i] != NULL) i++;
    if (i == t->room && !table_grow(t)) return 0;
    entry_t *e = calloc(1, sizeof *e);
    if (e == NULL) return 0;
    t->entries[i] = e;
    if (i == t->count) t->count++;
    for (uint32_t k = 0; k < t->words; k++) {
        e->mask[k] = mask[k];
        e->value[k] = value[k];
    }
    e->priority = priority;
    e->handle = i + 1;
    e->hit_us = clock_us();
    action_set(&e->own, action, params, words);
    return e->handle;
}

// ---- action profiles --------------------------------------------------------------------------------------------

// Handles; a member of weight w stands w times. `watched`: the port that each depends on, NO_PORT for none; NULL: none
// depends on any.
typedef struct {
    uint32_t count;
    uint32_t *members;
    uint16_t *watched;
} choice_t;
typedef struct {
    action_t *members;
    choice_t *groups;
    uint32_t member_count, group_count;
} profile_t;

static profile_t profiles[PROFILES];

enum { NO_PORT = UINT16_MAX };

// A member whose port is up, from 1; 0: there is none.
static inline uint32_t pick_watched(const choice_t *g, uint64_t hash) {
    uint32_t left = 0;
    for (uint32_t i = 0; i < g->count; i++) left += g->watched[i] == NO_PORT || port_up(g->watched[i]);
    if (left == 0) return 0;
    left = (uint32_t)(hash % left);
    for (uint32_t i = 0; i < g->count; i++)
        if ((g->watched[i] == NO_PORT || port_up(g->watched[i])) && left-- == 0) return g->members[i];
    return 0;
}

static inline const action_t *profile_pick(const profile_t *p, const entry_t *e, uint64_t hash) {
    uint32_t member = e->member;
    if (e->group != 0) {
        const choice_t *g = &p->groups[e->group - 1];
        member = g->count == 0 ? 0 : g->watched != NULL ? pick_watched(g, hash) : g->members[hash % g->count];
    }
    return member == 0 ? &e->own : &p->members[member - 1];
}

// ---- parser value sets ------------------------------------------------------------------------------------------

typedef struct {
    uint64_t value[KEY_WORDS], mask[KEY_WORDS];
} set_member_t;
typedef struct {
    set_member_t *members;
    uint32_t count;
} value_set_t;

static value_set_t value_sets[VALUE_SETS];

static inline bool value_set_has(const value_set_t *s, const uint64_t *key, uint32_t words) {
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t w = 0;
        while (w < words && (key[w] & s->members[i].mask[w]) == s->members[i].value[w]) w++;
        if (w == words) return true;
    }
    return false;
}
