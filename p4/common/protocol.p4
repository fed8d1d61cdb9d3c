// The wire format: declared here and nowhere else. p4/generate.py makes hostlib/layout.py, hostlib/native/layout.h
// and docs/protocol.md's tables from this file; a test fails when they differ.
//
// One packet = Ethernet / IPv4 / UDP / netfold_t / ELEMENTS x int32, all in network byte order.
#ifndef NETFOLD_PROTOCOL_P4
#define NETFOLD_PROTOCOL_P4

const bit<16> NETFOLD_UDP_PORT = 4793;
const bit<16> NETFOLD_MAGIC    = 0x4e46;   // "NF"
const bit<8>  NETFOLD_VERSION  = 1;

const bit<8> OPERATION_CONTRIBUTION = 1;   // rank -> switch: one rank's values for one slot
const bit<8> OPERATION_RESULT       = 2;   // switch -> rank: the sum over all ranks

header netfold_t {
    bit<16> magic;
    bit<8>  version;
    bit<8>  operation;
    bit<16> job;
    bit<16> rank;            // sender of a contribution, receiver of a multicast result
    bit<32> epoch;           // one life of one job; never used twice on a switch
    bit<32> generation;      // uses of this slot in this epoch; the lowest bit is the set
    bit<16> slot;
    bit<16> element_count;   // always ELEMENTS: a build speaks one size
    bit<16> exponent;        // code of the block that is carried
    bit<16> reserved;
    bit<32> next_exponent;   // code of the block this slot carries next, twice: damage shows as unequal halves
    bit<32> check;           // linear in the elements and in slot, generation, exponent, epoch: sums as they sum
}

// Check word, mod 2^32: sum over i of (2i + 1) * element_i, plus these times the header fields. All odd, so that no
// single flipped bit can cancel.
const bit<32> CHECK_SLOT       = 0x9e3779b1;
const bit<32> CHECK_GENERATION = 0x85ebca77;
const bit<32> CHECK_EXPONENT   = 0xc2b2ae3d;
const bit<32> CHECK_EPOCH      = 0x27d4eb2f;

// Exponent codes: 0 is a block of zeros; e + EXPONENT_BIAS says max |x| < 2^e; the highest marks NaN or Inf inside.
const bit<16> EXPONENT_ZERO    = 0;
const bit<16> EXPONENT_BIAS    = 200;
const bit<16> EXPONENT_SPECIAL = 0xffff;

// Indices of the counters `events` (ingress) and `egress_events` (egress).
const bit<8> EVENT_CONTRIBUTION = 0;    // added to its slot
const bit<8> EVENT_COMPLETED    = 1;    // the last contribution: became the result
const bit<8> EVENT_ANSWERED     = 2;    // a duplicate for a finished slot: got the result back by unicast
const bit<8> EVENT_REPLICA      = 3;    // a result left for one rank of the group (egress)
const bit<8> DROP_MALFORMED     = 8;    // wrong magic, or longer than one vector
const bit<8> DROP_VERSION       = 9;
const bit<8> DROP_TRUNCATED     = 10;   // shorter than its header or vector
const bit<8> DROP_SIZE          = 11;   // element_count is not this build's
const bit<8> DROP_OPERATION     = 12;
const bit<8> DROP_JOB           = 13;   // no such job
const bit<8> DROP_EPOCH         = 14;   // an ended (or future) life of the job
const bit<8> DROP_RANK          = 15;   // no such rank in the job
const bit<8> DROP_SOURCE        = 16;   // not the port or the source address of that rank
const bit<8> DROP_SLOT          = 17;   // outside the job's slots
const bit<8> DROP_STALE         = 18;   // an older generation than the slot's
const bit<8> DROP_DUPLICATE     = 19;   // already added, slot not finished
const bit<8> DROP_CHECKSUM      = 20;   // IPv4 header checksum
const bit<8> DROP_NO_ROUTE      = 21;
const bit<8> DROP_TTL           = 22;
const bit<8> DROP_PARSER        = 23;   // not even Ethernet, ARP, IPv4 or UDP
const bit<8> DROP_REFLECTED     = 24;   // a flooded frame on its way back to the port it came from (egress)
const bit<8> DROP_NO_REPLICA    = 25;   // a result for a replica that no entry describes (egress)

#endif
