// What the controls tell each other about one packet.
typedef bit<8> verdict_t;
const verdict_t VERDICT_FORWARD  = 0;   // plain L2/L3, or nothing decided yet
const verdict_t VERDICT_DROP     = 1;   // for meta.reason
const verdict_t VERDICT_ADMITTED = 2;   // a member's contribution, slot not looked at yet
const verdict_t VERDICT_FRESH    = 3;   // starts its set afresh
const verdict_t VERDICT_ADD      = 4;   // joins a started set
const verdict_t VERDICT_ANSWER   = 5;   // a duplicate for a finished set
const verdict_t VERDICT_ABSORBED = 6;   // added, others are missing
const verdict_t VERDICT_COMPLETE = 7;   // added, and it was the last

struct metadata_t {
    bool      for_fabric;
    verdict_t verdict;
    bit<8>    reason;    // of the drop
    bit<32>   member;    // this rank's bit
    bit<32>   full;      // the bits of all ranks
    bit<16>   group;     // multicast group of the result
    bit<32>   set;       // register index: masked slot ++ lowest generation bit
    bool      last;      // this contribution completes the set
}
