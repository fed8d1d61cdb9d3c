// Egress: each replica of a result or chunk is addressed to its own rank (by egress_rid); a flooded frame does not go
// back to where it came from. Replica id 0 belongs to plain multicast and floods, which leave as they are.
control Replicas(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
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
        mark_to_drop(standard_metadata);
    }
    @name(".replicas") table replicas {
        key = { standard_metadata.egress_rid : exact @name("egress_rid"); }
        actions = { address_replica; no_replica; }
        const default_action = no_replica();
        size = REPLICAS;
    }

    apply {
        if (standard_metadata.egress_rid != 0) {
            replicas.apply();
        } else if (standard_metadata.mcast_grp != 0
                   && standard_metadata.egress_port == standard_metadata.ingress_port) {
            meta.verdict = VERDICT_DROP;
            meta.event = DROP_REFLECTED;
            mark_to_drop(standard_metadata);
        }
    }
}
