// Egress, as in ../v1model/replicas.p4: each replica of a result or chunk is addressed to its own rank (by egress_rid);
// a flooded frame does not go back to where it came from.
control Replicas(inout egress_headers_t hdr, inout egress_metadata_t meta,
                 in egress_intrinsic_metadata_t intrinsic,
                 inout egress_intrinsic_metadata_for_deparser_t deparser_metadata) {
    action address_replica(bit<48> mac, bit<32> address, bit<16> udp_port, bit<16> rank) {
        meta.verdict = VERDICT_COMPLETE;
        meta.event = EVENT_REPLICA;
        hdr.ethernet.dst_mac = mac;
        hdr.ipv4.dst_addr = address;
        hdr.udp.dst_port = udp_port;
        hdr.netfold.rank = rank;
    }
    action no_replica() {
        meta.verdict = VERDICT_DROP;
        meta.event = DROP_NO_REPLICA;
        deparser_metadata.drop_ctl = 1;
    }
    @name(".replicas") table replicas {
        key = { intrinsic.egress_rid : exact @name("egress_rid"); }
        actions = { address_replica; no_replica; }
        const default_action = no_replica();
        size = REPLICAS;
    }

    action compare() {
        meta.elsewhere = hdr.bridge.ingress_port ^ intrinsic.egress_port;
    }

    apply {
        compare();
        if (intrinsic.egress_rid != 0) {
            replicas.apply();
        } else if (hdr.bridge.kind == KIND_FLOODED && meta.elsewhere == 0) {
            meta.verdict = VERDICT_DROP;
            meta.event = DROP_REFLECTED;
            deparser_metadata.drop_ctl = 1;
        }
        hdr.bridge.setInvalid();
    }
}
