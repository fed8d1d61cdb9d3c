// What the controls tell each other about one packet.
typedef bit<8> role_t;                  // what a packet is here for, from the membership entry that admitted it
const role_t ROLE_NONE       = 0;
const role_t ROLE_CONTRIBUTE = 1;       // add me; the sum becomes the result here
const role_t ROLE_UP         = 2;       // add me; the sum goes up
const role_t ROLE_SHARED     = 3;       // as ROLE_UP, in a slot that must be claimed first
const role_t ROLE_DOWN       = 4;       // a result from above, for a slot that was sent up
const role_t ROLE_RELAY      = 5;       // a result from above, for a shared slot
const role_t ROLE_CHUNK      = 6;       // a chunk from above
const role_t ROLE_NACK       = 7;       // a rank misses a chunk

typedef bit<8> verdict_t;               // what becomes of it
const verdict_t VERDICT_FORWARD  = 0;   // plain L2/L3, or nothing decided yet
const verdict_t VERDICT_DROP     = 1;   // for meta.reason
const verdict_t VERDICT_ABSORBED = 2;
const verdict_t VERDICT_COMPLETE = 3;   // to the group
const verdict_t VERDICT_UP       = 4;   // up: sum, stored sum, collision or NACK
const verdict_t VERDICT_ANSWER   = 5;   // back where it came from

typedef bit<2> work_t;                  // what the packet and the slot's stored values do to each other
const work_t WORK_NONE  = 0;
const work_t WORK_STORE = 1;
const work_t WORK_ADD   = 2;
const work_t WORK_LOAD  = 3;

typedef bit<33> seen_t;                 // ranks seen, one bit each, and on top:
const seen_t DONE = 1 << 32;            // the stored values came from above

struct metadata_t {
    bool      for_fabric;
    role_t    role;
    verdict_t verdict;
    bit<8>    event;         // counted at the end: an EVENT_ or a DROP_
    work_t    work;
    seen_t    member;        // this rank's bit
    seen_t    full;          // the bits of all ranks
    bit<16>   group;         // multicast group of results and chunks
    bool      claimed;       // a shared slot, by this very packet
    bit<16>   offset;        // of shared slots: where this job's slots lie in the pool
    bit<32>   set;           // register index: masked slot ++ lowest generation bit
    bit<9>    up_port;       // the parent or server
    bit<48>   up_mac;
    bit<32>   up_address;
    bit<16>   up_udp_port;
    bit<8>    up_operation;
    bit<16>   up_rank;
}
