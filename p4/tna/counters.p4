// What happened, by reason, and traffic by port, as in ../v1model/counters.p4. A packet that comes by again for its
// high halves was counted the first time.
control IngressCounters(in ingress_metadata_t meta, in ingress_intrinsic_metadata_t intrinsic) {
    Counter<bit<32>, bit<8>>(EVENT_CELLS, CounterType_t.PACKETS) events;
    Counter<bit<64>, PortId_t>(PORTS, CounterType_t.PACKETS_AND_BYTES) port_in;

    apply {
        if (meta.role != ROLE_HARVEST) {
            port_in.count(intrinsic.ingress_port);
            if (meta.verdict != VERDICT_FORWARD) {
                events.count(meta.event);
            }
        }
    }
}

control EgressCounters(in egress_headers_t hdr, in egress_metadata_t meta, in egress_intrinsic_metadata_t intrinsic) {
    Counter<bit<32>, bit<8>>(EVENT_CELLS, CounterType_t.PACKETS) egress_events;
    Counter<bit<64>, PortId_t>(PORTS, CounterType_t.PACKETS_AND_BYTES) port_out;

    apply {
        if (meta.verdict != VERDICT_DROP) {
            port_out.count(intrinsic.egress_port, sizeInBytes(hdr.bridge));
        }
        if (meta.verdict != VERDICT_FORWARD) {
            egress_events.count(meta.event);
        }
    }
}
