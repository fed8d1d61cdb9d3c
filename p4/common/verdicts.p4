// What a packet of the protocol is here for, and what becomes of it: the same words on every target.
#ifndef NETFOLD_VERDICTS_P4
#define NETFOLD_VERDICTS_P4

typedef bit<8> role_t;                  // what a packet is here for, from the membership entry that admitted it
const role_t ROLE_NONE       = 0;
const role_t ROLE_CONTRIBUTE = 1;       // add me; the sum becomes the result here
const role_t ROLE_UP         = 2;       // add me; the sum goes up
const role_t ROLE_SHARED     = 3;       // as ROLE_UP, in a slot that must be claimed first
const role_t ROLE_DOWN       = 4;       // a result from above, for a slot that was sent up
const role_t ROLE_RELAY      = 5;       // a result from above, for a shared slot
const role_t ROLE_CHUNK      = 6;       // a chunk from above
const role_t ROLE_NACK       = 7;       // a rank misses a chunk
const role_t ROLE_HARVEST    = 8;       // a result that comes by again for its high halves (Tofino, 64 elements)

typedef bit<8> verdict_t;               // what becomes of it
const verdict_t VERDICT_FORWARD  = 0;   // plain L2/L3, or nothing decided yet
const verdict_t VERDICT_DROP     = 1;   // for meta.reason
const verdict_t VERDICT_ABSORBED = 2;
const verdict_t VERDICT_COMPLETE = 3;   // to the group
const verdict_t VERDICT_UP       = 4;   // up: sum, stored sum, collision or NACK
const verdict_t VERDICT_ANSWER   = 5;   // back where it came from

#endif
