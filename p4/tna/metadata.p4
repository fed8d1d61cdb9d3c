// What the controls tell each other about one packet, and the headers that never leave the switch.
#include "../common/verdicts.p4"

typedef bit<16> index_t;

// A bitmap has the bits of ranks that there are not set, too, so that the same value means the same for every job.
const bit<32> ALL_THERE = 0xffffffff;
const bit<32> DONE      = 0x7fffffff;   // the stored values came from above; so at most 31 ranks

typedef bit<8> kind_t;                  // of a frame, in egress
const kind_t KIND_PASSING = 0;
const kind_t KIND_FLOODED = 1;          // must not go back to where it came from
const kind_t KIND_SPOKEN  = 2;          // by the fabric itself

// Between ingress and egress, in front of the frame.
header bridge_t {
    kind_t kind;
    @padding bit<7> pad;
    PortId_t ingress_port;
}

// In front of a result on its way through ingress a second time: where it goes then (a group, or else a port), and
// whose high halves it takes.
header harvest_t {
    bit<16> group;
    @padding bit<7> pad;
    PortId_t port;
    bit<16> slot;
}

struct ingress_headers_t {
    bridge_t   bridge;
    harvest_t  harvest;
    ethernet_t ethernet;
    arp_t      arp;
    ipv4_t     ipv4;
    udp_t      udp;
    netfold_t  netfold;
    vector_t   vector;
}

struct ingress_metadata_t {
    bit<1>    checksum_error;
    bit<1>    behind_udp;    // the UDP header is there as a whole
    bit<1>    to_fabric;     // by its address
    PortId_t  detour;        // 0 unless it is from a fabric's address, and came in where that fabric is not
    bit<1>    routed;        // to the router's MAC, or IP multicast
    role_t    role;
    verdict_t verdict;
    bit<8>    event;         // counted at the end: an EVENT_ or a DROP_
    bit<8>    flaw;          // the DROP_ of what needs no membership to be wrong
    bit<32>   member;        // this rank's bit
    bit<32>   full;          // the bits of all ranks
    bit<32>   bits;          // what this rank adds to a bitmap: its own, and those of ranks that there are not
    bit<16>   group;
    bit<16>   slot;          // the job's slot, moved into a shared pool where it is shared
    bit<9>    up_port;
    bit<48>   up_mac;
    bit<32>   up_address;
    bit<16>   up_udp_port;
    bit<8>    up_operation;
    bit<16>   up_rank;
    bit<1>    fresh;         // from the positions: another epoch or the set's next generation
    bit<1>    newer;         // it is not fresh because it is newer than that
    bit<4>    claim;         // from the positions of a shared slot: which of its comparisons held
    bit<1>    started;       // the set starts afresh with this packet
    bit<32>   seen;          // the set's bitmap before this packet; 0: another generation
    bit<32>   hit;           // this rank's bit in it
    bit<32>   after;         // the bitmap with this rank
}

struct egress_headers_t {
    bridge_t   bridge;
    ethernet_t ethernet;
    ipv4_t     ipv4;
    udp_t      udp;
    netfold_t  netfold;
}

struct egress_metadata_t {
    verdict_t verdict;
    bit<8>    event;
    PortId_t  elsewhere;     // 0 when the frame goes out where it came in
}
