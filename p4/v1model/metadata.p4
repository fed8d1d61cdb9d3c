// What the controls tell each other about one packet.
#include "../common/verdicts.p4"

typedef bit<2> work_t;                  // what the packet and the slot's stored values do to each other
const work_t WORK_NONE  = 0;
const work_t WORK_STORE = 1;
const work_t WORK_ADD   = 2;
const work_t WORK_LOAD  = 3;

typedef bit<33> seen_t;                 // ranks seen, one bit each, and on top:
const seen_t DONE = 1 << 32;            // the stored values came from above

struct metadata_t {
    bool      for_fabric;
    bool      forged;        // from the fabric's address, and not from the fabric
    bool      rewritten;     // the IPv4 header: its checksum is made anew
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
