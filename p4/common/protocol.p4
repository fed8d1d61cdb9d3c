// The wire format: declared here and nowhere else. p4/generate.py makes hostlib/protocol/constants.py and
// header_fields.py, hostlib/native/wire/layout.h and header.h, and docs/protocol.md's diagram and tables from this file;
// a test fails when they differ.
//
// One packet = Ethernet / IPv4 / UDP / netfold_t / ELEMENTS x int32, all in network byte order.
#ifndef NETFOLD_PROTOCOL_P4
#define NETFOLD_PROTOCOL_P4

const bit<16> NETFOLD_UDP_PORT = 4793;
const bit<16> NETFOLD_MAGIC    = 0x4e46;   // "NF"
const bit<8>  NETFOLD_VERSION  = 1;

const bit<8> OPERATION_CONTRIBUTION = 1;   // rank -> switch, leaf -> parent: values for one slot, to be summed
const bit<8> OPERATION_RESULT       = 2;   // switch -> rank, parent or server -> switch: the sum over all ranks
const bit<8> OPERATION_SUM          = 3;   // switch -> server: the sum over all ranks, for the server to finish
const bit<8> OPERATION_CHUNK        = 4;   // server -> switch -> ranks: the server's own words, not summed
const bit<8> OPERATION_NACK         = 5;   // rank -> switch -> server: the chunk of this slot is missing; zeros
const bit<8> OPERATION_ACKNOWLEDGEMENT = 6; // owner -> rank, past the program: sums of its shard that have arrived

const bit<16> FLAG_AGAIN = 1;              // sent before: never claims a shared slot
const bit<16> RANK_ALL   = 0xffff;         // the rank of what a server sends to everybody

header netfold_t {
    bit<16> magic;
    bit<8>  version;
    bit<8>  operation;
    bit<16> job;
    bit<16> rank;            // sender of a contribution or NACK, receiver of a result or chunk
    bit<32> epoch;           // one life of one job; never used twice on a switch
    bit<32> generation;      // uses of this slot in this epoch; the lowest bit is the set
    bit<16> slot;
    bit<16> element_count;   // always ELEMENTS: a build speaks one size
    bit<16> exponent;        // code of the block that is carried; 0 in a chunk
    bit<16> flags;
    bit<32> next_exponent;   // word of the code of the block this slot carries next: a larger code's is larger
    bit<32> check;           // linear in the elements and in slot, generation, exponent, epoch: sums as they sum
}

// Check words and next exponents are numbers to the switch, which adds the ones and takes the largest of the others.
// What they mean follows from a secret of the job's members (docs/protocol.md, docs/adr/0019).

// Exponent codes: 0 is a block of zeros; e + EXPONENT_BIAS says max |x| < 2^e; the highest marks NaN or Inf inside.
const bit<16> EXPONENT_ZERO    = 0;
const bit<16> EXPONENT_BIAS    = 200;
const bit<16> EXPONENT_SPECIAL = 0xffff;

// Indices of the counters `events` (ingress) and `egress_events` (egress). A packet counts once in each, at most.
const bit<8> EVENT_ABSORBED  = 0;       // added to its slot, others are missing
const bit<8> EVENT_COMPLETED = 1;       // added, and the last: became the result
const bit<8> EVENT_SENT_UP   = 2;       // added, and the last: the sum left for the parent or the server
const bit<8> EVENT_UP_AGAIN  = 3;       // a duplicate for a slot that was sent up: the stored sum left again
const bit<8> EVENT_DOWN      = 4;       // a result from above: stored, and on to the group
const bit<8> EVENT_ANSWERED  = 5;       // a duplicate for a finished slot, or a NACK: got the stored values by unicast
const bit<8> EVENT_COLLISION = 6;       // found its shared slot taken: passed on to the server as it came
const bit<8> EVENT_RELAYED   = 7;       // a result for shared slots: on to the group, the slot is free again
const bit<8> EVENT_CHUNK     = 8;       // a chunk from above: stored, and on to the group
const bit<8> EVENT_NACK_UP   = 9;       // a NACK for a chunk that is not here: passed on
const bit<8> EVENT_REPLICA   = 10;      // one receiver's copy left (egress)
const bit<8> DROP_MALFORMED  = 16;      // wrong magic, longer than one vector, or lengths that contradict each other
const bit<8> DROP_VERSION    = 17;
const bit<8> DROP_TRUNCATED  = 18;      // shorter than its header or vector
const bit<8> DROP_SIZE       = 19;      // element_count is not this build's
const bit<8> DROP_OPERATION  = 20;      // unknown, or not for this sender to ask
const bit<8> DROP_JOB        = 21;      // no such job
const bit<8> DROP_EPOCH      = 22;      // an ended (or future) life of the job
const bit<8> DROP_RANK       = 23;      // no such rank in the job
const bit<8> DROP_SOURCE     = 24;      // not the port, the source address or the UDP port of that rank
const bit<8> DROP_SLOT       = 25;      // outside the job's slots
const bit<8> DROP_STALE      = 26;      // an older generation than the slot's
const bit<8> DROP_DUPLICATE  = 27;      // already there, slot not finished
const bit<8> DROP_UNASKED    = 28;      // a result from above that the slot does not wait for
const bit<8> DROP_CHECKSUM   = 29;      // IPv4 header checksum
const bit<8> DROP_NO_ROUTE   = 30;
const bit<8> DROP_TTL        = 31;
const bit<8> DROP_PARSER     = 32;      // not even Ethernet, ARP, IPv4 or UDP
const bit<8> DROP_REFLECTED  = 33;      // a flooded frame on its way back to the port it came from (egress)
const bit<8> DROP_NO_REPLICA = 34;      // a result for a replica that no entry describes (egress)
const bit<8> DROP_OPTIONS    = 35;      // IPv4 options, which are not routed
const bit<8> DROP_FORGED     = 36;      // from an address of the fabric, on a port where the fabric does not speak
const bit<8> DROP_FUTURE     = 37;      // a generation that is newer than the slot's next
const bit<8> DROP_TAGGED     = 38;      // a VLAN or priority tag, behind which anybody might speak as the fabric

#endif
