// What becomes of a packet (verdict and event), and where it leaves to (rules 3, 4 and 5), as in ../v1model/slot.p4 and
// ../v1model/result.p4. Runs beside the elements: one table for the verdict, then one for the way out.
//
// With 64 elements, what carries stored values passes ingress once more before it leaves. If its set starts afresh
// meanwhile, then all ranks have this result already, and what leaves is a mixture whose check word nobody believes.
control Result(inout ingress_headers_t hdr, inout ingress_metadata_t meta,
               in ingress_intrinsic_metadata_t intrinsic,
               inout ingress_intrinsic_metadata_for_deparser_t deparser_metadata,
               inout ingress_intrinsic_metadata_for_tm_t manager) {
    action compare() {
        meta.hit = meta.seen & meta.member;
        meta.after = meta.seen | meta.bits;
    }

    action decide(verdict_t verdict, bit<8> event) {
        meta.verdict = verdict;
        meta.event = event;
    }
    table outcome {
        key = {
            meta.role              : exact;
            meta.claim             : ternary;
            meta.fresh             : ternary;
            meta.newer             : ternary;
            meta.started           : ternary;
            meta.seen              : ternary;
            meta.hit               : ternary;
            meta.after             : ternary;
            hdr.netfold.flags[0:0] : ternary @name("again");
        }
        actions = { decide; NoAction; }
        const default_action = NoAction();
        const entries = {
            (ROLE_DOWN, _, _, _, _, 0, _, _, _): decide(VERDICT_DROP, DROP_UNASKED);
            (ROLE_DOWN, _, _, _, _, _, _, _, _): decide(VERDICT_COMPLETE, EVENT_DOWN);
            (ROLE_RELAY, _, _, _, _, _, _, _, _): decide(VERDICT_COMPLETE, EVENT_RELAYED);
            (ROLE_CHUNK, _, _, _, 1, _, _, _, _): decide(VERDICT_COMPLETE, EVENT_CHUNK);
            (ROLE_CHUNK, _, _, 1, 0, 0, _, _, _): decide(VERDICT_DROP, DROP_FUTURE);
            (ROLE_CHUNK, _, _, _, 0, 0, _, _, _): decide(VERDICT_DROP, DROP_STALE);
            (ROLE_CHUNK, _, _, _, 0, _, _, _, _): decide(VERDICT_DROP, DROP_DUPLICATE);
            (ROLE_NACK, _, _, _, _, DONE, _, _, _): decide(VERDICT_ANSWER, EVENT_ANSWERED);
            (ROLE_NACK, _, _, _, _, _, _, _, _): decide(VERDICT_UP, EVENT_NACK_UP);
            // Another's shared slot, or another generation in this job's own.
            (ROLE_SHARED, HELD_NEITHER, _, _, _, _, _, _, _): decide(VERDICT_UP, EVENT_COLLISION);
            (ROLE_SHARED, _, 1, _, _, _, _, _, _): decide(VERDICT_UP, EVENT_COLLISION);
            (ROLE_SHARED, _, _, _, 0, 0, _, _, _): decide(VERDICT_UP, EVENT_COLLISION);
            (ROLE_CONTRIBUTE, _, _, 1, 0, 0, _, _, _): decide(VERDICT_DROP, DROP_FUTURE);
            (ROLE_CONTRIBUTE, _, _, _, 0, 0, _, _, _): decide(VERDICT_DROP, DROP_STALE);
            (ROLE_UP, _, _, 1, 0, 0, _, _, _): decide(VERDICT_DROP, DROP_FUTURE);
            (ROLE_UP, _, _, _, 0, 0, _, _, _): decide(VERDICT_DROP, DROP_STALE);
            (ROLE_UP, _, _, _, _, DONE, _, _, _): decide(VERDICT_ANSWER, EVENT_ANSWERED);
            // Not in the set yet ...
            (ROLE_CONTRIBUTE, _, _, _, _, _, 0, ALL_THERE, _): decide(VERDICT_COMPLETE, EVENT_COMPLETED);
            (ROLE_UP, _, _, _, _, _, 0, ALL_THERE, _): decide(VERDICT_UP, EVENT_SENT_UP);
            (ROLE_SHARED, _, _, _, _, _, 0, ALL_THERE, _): decide(VERDICT_UP, EVENT_SENT_UP);
            (ROLE_CONTRIBUTE, _, _, _, _, _, 0, _, _): decide(VERDICT_ABSORBED, EVENT_ABSORBED);
            (ROLE_UP, _, _, _, _, _, 0, _, _): decide(VERDICT_ABSORBED, EVENT_ABSORBED);
            (ROLE_SHARED, _, _, _, _, _, 0, _, _): decide(VERDICT_ABSORBED, EVENT_ABSORBED);
            // ... or again.
            (ROLE_CONTRIBUTE, _, _, _, _, ALL_THERE, _, _, _): decide(VERDICT_ANSWER, EVENT_ANSWERED);
            (ROLE_UP, _, _, _, _, ALL_THERE, _, _, _): decide(VERDICT_UP, EVENT_UP_AGAIN);
            (ROLE_SHARED, _, _, _, _, ALL_THERE, _, _, _): decide(VERDICT_UP, EVENT_UP_AGAIN);
            // The others may have their result, and this set be a late packet's claim: only the server knows.
            (ROLE_SHARED, _, _, _, _, _, _, _, 1): decide(VERDICT_UP, EVENT_COLLISION);
            (ROLE_CONTRIBUTE, _, _, _, _, _, _, _, _): decide(VERDICT_DROP, DROP_DUPLICATE);
            (ROLE_UP, _, _, _, _, _, _, _, _): decide(VERDICT_DROP, DROP_DUPLICATE);
            (ROLE_SHARED, _, _, _, _, _, _, _, _): decide(VERDICT_DROP, DROP_DUPLICATE);
        }
        size = 64;
    }

    // The fabric speaks from the address it was spoken to.
#define SPEAK_AS_FABRIC \
        hdr.ethernet.src_mac = hdr.ethernet.dst_mac; \
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr; \
        hdr.udp.src_port = hdr.udp.dst_port; \
        hdr.udp.checksum = 0; \
        hdr.ipv4.ttl = 64; \
        hdr.bridge.kind = KIND_SPOKEN;
#define UP \
        SPEAK_AS_FABRIC \
        hdr.ethernet.dst_mac = meta.up_mac; \
        hdr.ipv4.dst_addr = meta.up_address; \
        hdr.udp.dst_port = meta.up_udp_port; \
        hdr.netfold.rank = meta.up_rank;
#define BACK \
        bit<48> mac = hdr.ethernet.src_mac; \
        bit<32> address = hdr.ipv4.src_addr; \
        bit<16> udp_port = hdr.udp.src_port; \
        SPEAK_AS_FABRIC \
        hdr.ethernet.dst_mac = mac; \
        hdr.ipv4.dst_addr = address; \
        hdr.udp.dst_port = udp_port; \
        hdr.netfold.flags = 0;

#if ONE_PASS
#define LEAVE_TO(where) manager.ucast_egress_port = where;
#define LEAVE_TO_GROUP manager.mcast_grp_a = meta.group;
#else
    // Once more through ingress, for the high halves.
#define ROUND_AGAIN \
        hdr.harvest.setValid(); \
        hdr.harvest.slot = meta.slot; \
        hdr.bridge.setInvalid(); \
        manager.ucast_egress_port = RECIRCULATION_PORT; \
        manager.bypass_egress = 1;
#define LEAVE_TO(where) ROUND_AGAIN hdr.harvest.port = where; hdr.harvest.group = 0;
#define LEAVE_TO_GROUP  ROUND_AGAIN hdr.harvest.port = 0; hdr.harvest.group = meta.group;
#endif

    action result_to_group() {
        SPEAK_AS_FABRIC
        hdr.netfold.operation = OPERATION_RESULT;
        hdr.netfold.flags = 0;
        LEAVE_TO_GROUP
    }
    action on_to_group() {      // as it came: a result or chunk from above
        SPEAK_AS_FABRIC
        hdr.netfold.flags = 0;
        manager.mcast_grp_a = meta.group;
    }
    action sum_up() {
        UP
        hdr.netfold.operation = meta.up_operation;
        LEAVE_TO(meta.up_port)
    }
    action on_up() {            // as it came: a collision or NACK
        UP
        manager.ucast_egress_port = meta.up_port;
    }
    action result_back() {
        BACK
        hdr.netfold.operation = OPERATION_RESULT;
        LEAVE_TO(intrinsic.ingress_port)
    }
    action chunk_back() {
        BACK
        hdr.netfold.operation = OPERATION_CHUNK;
        LEAVE_TO(intrinsic.ingress_port)
    }
    action stop() {
        deparser_metadata.drop_ctl = 1;
    }
    action harvested_to_group() {
        manager.mcast_grp_a = hdr.harvest.group;
        hdr.bridge.kind = KIND_SPOKEN;
        hdr.harvest.setInvalid();
    }
    action harvested_to_port() {
        manager.ucast_egress_port = hdr.harvest.port;
        hdr.bridge.kind = KIND_SPOKEN;
        hdr.harvest.setInvalid();
    }
    table way_out {
        key = {
            meta.event        : ternary;
            meta.role         : ternary;
            hdr.harvest.group : ternary;
        }
        actions = {
            result_to_group; on_to_group; sum_up; on_up; result_back; chunk_back; harvested_to_group;
            harvested_to_port; stop;
        }
        const default_action = stop();
        const entries = {
            (_, ROLE_HARVEST, 0): harvested_to_port();
            (_, ROLE_HARVEST, _): harvested_to_group();
            (EVENT_COMPLETED, _, _): result_to_group();
            (EVENT_DOWN, _, _): on_to_group();
            (EVENT_RELAYED, _, _): on_to_group();
            (EVENT_CHUNK, _, _): on_to_group();
            (EVENT_SENT_UP, _, _): sum_up();
            (EVENT_UP_AGAIN, _, _): sum_up();
            (EVENT_COLLISION, _, _): on_up();
            (EVENT_NACK_UP, _, _): on_up();
            (EVENT_ANSWERED, ROLE_NACK, _): chunk_back();
            (EVENT_ANSWERED, _, _): result_back();
        }
        size = 16;
    }

    apply {
        compare();
        outcome.apply();
        way_out.apply();
    }
}
