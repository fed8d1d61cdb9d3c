// What a generated program defines for v1model.h. A header that is opened by itself finds a program that does nothing.
#pragma once

#include "base.h"

#ifndef OUT_BYTES
#define OUT_BYTES 0  // of the longest headers that leave
typedef struct {
    uint32_t packet_bytes, length, payload_bytes;
    const uint8_t *payload;
    uint32_t clone, clone_list, resubmit, recirculate, digest, truncate;
    bool exited;
} context_t;
typedef struct {
    bool none;
} kept_t;
#endif

// A fresh packet.
static void begin(context_t *restrict c, uint32_t port, uint32_t bytes, uint32_t kind);
// False: the packet is given up, its parser does not come to an end.
static bool parse(context_t *restrict c, const uint8_t *p, uint32_t bytes);
static void parsed(context_t *restrict c);
static void ingress(context_t *restrict c);
static void egress(context_t *restrict c);
static void enter_egress(context_t *restrict c, uint32_t port, uint32_t instance);
static void update_checksums(context_t *restrict c);
// What egress may change of a packet: for its next replica it is put back.
static void keep(kept_t *restrict kept, const context_t *restrict c);
static void put_back(context_t *restrict c, const kept_t *restrict kept);
// Returns how many bytes of headers there are. `out` is the same memory each time.
static uint32_t deparse(context_t *restrict c, uint8_t *restrict out);

static void reset_metadata(context_t *restrict c);
static void set_kind(context_t *restrict c, uint32_t kind);
// A field list, from a packet to its clone.
static void preserve(context_t *to, const context_t *from, uint32_t list);
static void digest(context_t *c, uint32_t list);
static uint32_t group_of(const context_t *c);
static uint32_t spec_of(const context_t *c);
// 0 of programs that do not set it.
static uint32_t priority_of(const context_t *c);

// What the program starts with. False: there is no memory for it.
static bool program_init(void);
