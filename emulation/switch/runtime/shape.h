// What lies between a port and its other end: seeded faults, a delay, a rate. Frames that wait for their time are kept
// in one heap.
#pragma once

#include "base.h"

enum { FRAME_BYTES = 9728, MAX_HELD = 1 << 18, MOST_PRIORITIES = 8 };

// Of the frames that find a queue nearly as long as where all are marked: so many are (RED's max_p, RFC 2309). Of
// those that cannot be marked no more are dropped in a longer queue, either: TCP's acknowledgements are among them.
#define MARK_MOST 0.1

// As ports/open_port.py fills it in: one for each port.
typedef struct {
    double loss, duplicate, reorder, corrupt;  // probabilities
    double rate;                               // bits of frames per second; 0: no limit
    uint64_t delay_ns, burst, queue, seed;     // burst in bytes, queue in frames of one priority
    uint64_t mark_from, mark_to;               // frames in that queue at which marking begins, and all are; 0: never
} link_t;

// One direction of a link.
typedef struct {
    double loss, duplicate, reorder, corrupt;
    uint64_t delay_ns, state;
    uint64_t lost, duplicated, reordered, corrupted;
} fault_t;

// A frame that waits for its turn.
typedef struct waiting {
    struct waiting *next;
    uint64_t came_ns, further_ns;
    uint8_t *frame;
    uint32_t bytes;
} waiting_t;

// Those of one priority, in the order in which they came.
typedef struct {
    waiting_t *first, *last;
    uint64_t frames, bytes;
} queue_of_t;

// A token bucket as its equivalent in time: `free_ns` is when a link of this rate has sent all that it was given, and a
// frame leaves when that is at most the bucket's depth ahead.
typedef struct {
    double ns_per_byte;  // 0: no limit
    double burst_ns, free_ns;
    uint64_t limit, depth, deepest, dropped;
    uint64_t mark_from, mark_to, marked, dropped_early;
    queue_of_t queues[MOST_PRIORITIES];
    bool busy;  // a frame of it is in the heap, for the link to be free
} shaper_t;

static uint32_t priorities = MOST_PRIORITIES;  // that there are queues for
static bool trusts_dscp;                       // of packets that the program gives no priority

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

static fault_t fault_of(const link_t *l, uint64_t state) {
    return (fault_t){.loss = l->loss,
                     .duplicate = l->duplicate,
                     .reorder = l->reorder,
                     .corrupt = l->corrupt,
                     .delay_ns = l->delay_ns,
                     .state = state};
}

static bool untouched(const fault_t *f) {
    return f->loss == 0 && f->duplicate == 0 && f->reorder == 0 && f->corrupt == 0 && f->delay_ns == 0;
}

static shaper_t shaper_of(const link_t *l) {
    double ns_per_byte = l->rate > 0 ? 8e9 / l->rate : 0;
    return (shaper_t){.ns_per_byte = ns_per_byte,
                      .burst_ns = (double)l->burst * ns_per_byte,
                      .limit = l->queue,
                      .mark_from = l->mark_from,
                      .mark_to = l->mark_to};
}

// Whether a frame that finds so many in its queue tells its sender of them, by a mark or by its loss. The queue's
// length is the present one, not RED's average: as in data centres, a sender is told within a round trip (RFC 8257).
static bool tells(const shaper_t *s, fault_t *f, uint64_t ahead, bool capable) {
    if (s->mark_to == 0 || ahead < s->mark_from) return false;
    if (ahead >= s->mark_to) return capable || happens(f, MARK_MOST);
    return happens(f, MARK_MOST * (double)(ahead - s->mark_from) / (double)(s->mark_to - s->mark_from));
}

// When the last bit of a frame that comes now will have left.
static uint64_t departure(shaper_t *s, uint32_t bytes, uint64_t now) {
    double start = s->free_ns > (double)now ? s->free_ns : (double)now;
    s->free_ns = start + bytes * s->ns_per_byte;
    double leaves = s->free_ns - s->burst_ns;
    return leaves > (double)now ? (uint64_t)leaves : now;
}

// How long a frame that comes now waits for those before it.
static uint64_t turn_ns(const shaper_t *s, uint32_t priority, uint64_t now) {
    double turn = (s->free_ns > (double)now ? s->free_ns : (double)now) - s->burst_ns;
    for (uint32_t i = priority; i < MOST_PRIORITIES; i++) turn += (double)s->queues[i].bytes * s->ns_per_byte;
    return turn > (double)now ? (uint64_t)(turn - (double)now) : 0;
}

static void join_queue(queue_of_t *q, waiting_t *w) {
    *(q->last == NULL ? &q->first : &q->last->next) = w;
    q->last = w;
    q->frames++;
    q->bytes += w->bytes;
}

// The frame whose turn it is; NULL: none waits.
static waiting_t *take_first(shaper_t *s) {
    for (uint32_t i = MOST_PRIORITIES; i-- > 0;) {
        queue_of_t *q = &s->queues[i];
        waiting_t *w = q->first;
        if (w == NULL) continue;
        q->first = w->next;
        if (q->first == NULL) q->last = NULL;
        q->frames--;
        q->bytes -= w->bytes;
        return w;
    }
    return NULL;
}

static void forget_waiting(shaper_t *s) {
    for (waiting_t *w; (w = take_first(s)) != NULL; free(w)) free(w->frame);
}

// ---- frames that wait -------------------------------------------------------------------------------------------

// SHAPED: for the link to be free, then `further_ns` more. DELAYED_OUT and DELAYED_IN: for their time to come.
typedef enum { SHAPED, DELAYED_OUT, DELAYED_IN } wait_t;
typedef struct {
    uint64_t due_ns, sequence, further_ns;
    uint8_t *frame;
    uint32_t port, bytes;
    wait_t wait;
} held_t;

static held_t *heap;
static uint32_t heap_count, heap_room;
static uint64_t held_count;  // frames in the heap, and in ports' queues
static uint64_t heap_sequence;

// What is due at the same time leaves in the order in which it came.
static bool sooner(const held_t *a, const held_t *b) {
    return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->sequence < b->sequence;
}

// False: there is no memory for it.
static bool heap_push(held_t h) {
    if (heap_count == heap_room) {
        uint32_t room = heap_room == 0 ? 1024 : 2 * heap_room;
        if (!grown(&heap, room * sizeof *heap)) return false;
        heap_room = room;
    }
    h.sequence = heap_sequence++;
    uint32_t i = heap_count++;
    for (; i > 0 && sooner(&h, &heap[(i - 1) / 2]); i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = h;
    return true;
}

static held_t heap_pop(void) {
    held_t first = heap[0], last = heap[--heap_count];
    uint32_t i = 0;
    for (uint32_t child; (child = 2 * i + 1) < heap_count; i = child) {
        if (child + 1 < heap_count && sooner(&heap[child + 1], &heap[child])) child++;
        if (!sooner(&heap[child], &last)) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return first;
}

static void heap_free(void) {
    for (uint32_t i = 0; i < heap_count; i++) free(heap[i].frame);
    free(heap);
}
