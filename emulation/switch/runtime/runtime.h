// What every generated program is compiled with: hashes, meters, match tables, multicast groups and clone sessions, and
// what is told to controllers. The program's sizes come before this header, its code after it.
#pragma once

#include "base.h"

#include "big.h"
#include "hash.h"
#include "link.h"
#include "meter.h"
#include "table.h"

// ---- replication ------------------------------------------------------------------------------------------------

enum { MAX_GROUPS = 65536, MAX_SESSIONS = 32768, CLONE = 0x8000 };

typedef struct {
    uint16_t port, instance;
} replica_t;
typedef struct {
    uint32_t count;
    replica_t *replicas;
} group_t;
// A clone session sends to its own replicas and to a multicast group, cut to so many bytes (0: whole).
typedef struct {
    bool used;
    group_t own;
    uint32_t group, bytes;
} session_t;

static group_t groups[MAX_GROUPS];
static session_t sessions[MAX_SESSIONS];

// ---- one packet -------------------------------------------------------------------------------------------------

enum { DROP_PORT = 511 };

static uint64_t packets_begun;

// Called for each frame that leaves: headers and payload are already one piece. Those of higher priority overtake
// others that wait for the port.
typedef void (*emit_t)(void *to, uint32_t port, uint32_t priority, const uint8_t *frame, uint32_t bytes);

// ---- what is lost -----------------------------------------------------------------------------------------------

static uint64_t endless;    // packets given up: they would have gone round in the program for ever
static uint64_t told_lost;  // digests and packets for the controllers that were not fetched in time
static uint64_t no_memory;  // packets that there was no memory for

// ---- to the controller ------------------------------------------------------------------------------------------

// Digests, and frames for the CPU port, wait here: (what, id or bytes, count) and then words or bytes.
enum { TOLD_BYTES = 1 << 20, TOLD_DIGEST = 1, TOLD_PACKET = 2 };
static uint8_t told[TOLD_BYTES];
static uint32_t told_bytes;

static void tell(uint32_t what, uint32_t id, const void *data, uint32_t bytes) {
    uint32_t head[3] = {what, id, bytes};
    if (told_bytes + sizeof head + bytes > TOLD_BYTES) {
        told_lost++;
        return;
    }
    memcpy(told + told_bytes, head, sizeof head);
    memcpy(told + told_bytes + sizeof head, data, bytes);
    told_bytes += (uint32_t)sizeof head + bytes;
}
static void tell_digest(uint32_t id, const uint64_t *words, uint32_t count) {
    tell(TOLD_DIGEST, id, words, count * (uint32_t)sizeof *words);
}
