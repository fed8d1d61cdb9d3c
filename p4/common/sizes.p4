// Build-time sizes. Everything indexed by a slot is masked with SLOT_MASK, so SLOTS is a power of two.
#ifndef NETFOLD_SIZES_P4
#define NETFOLD_SIZES_P4

// E, the int32 elements that one packet carries: 64, 256, 1024 or 2048 for v1model, 32 or 64 for TNA. Given to the
// compiler.
#ifndef ELEMENTS
#define ELEMENTS 256
#endif

#ifndef __TARGET_TOFINO__
#define SLOTS 1024           // slots per switch, shared out among the jobs by the controller
#define SLOT_SETS 2048       // two sets per slot: consecutive generations never share one
#define SLOT_MASK 0x3ff
#define SLOT_BITS 10
#define MEMBERSHIPS 4096     // about four entries per rank and pool of slots, and two per job
#else
#define SLOTS 2048           // a memory block holds 4096 words
#define SLOT_SETS 4096
#define SLOT_MASK 0x7ff
#define SLOT_BITS 11
#define MEMBERSHIPS 2048     // more would not fit one stage
#endif
#define PORTS 512            // every value of a 9-bit port
#define REPLICAS 1024        // receivers of results, over all jobs
#define FABRIC_SOURCES 1024  // switches of the fabric
#define EVENT_CELLS 64       // cells of the event counters
#define CREDIT 255           // collisions in a row that a shared slot's owner survives

#endif
