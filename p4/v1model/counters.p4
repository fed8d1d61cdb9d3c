// What happened, by reason, and traffic by port. Each packet counts once in `events`, unless it was plainly forwarded,
// and each that leaves once in `egress_events`, if it is a replica or a drop.
control IngressCounters(in metadata_t meta, in standard_metadata_t standard_metadata) {
    counter(EVENT_CELLS, CounterType.packets) events;
    counter(PORTS, CounterType.packets_and_bytes) port_in;

    apply {
        port_in.count((bit<32>) standard_metadata.ingress_port);
        if (meta.verdict != VERDICT_FORWARD) {
            events.count((bit<32>) meta.event);
        }
    }
}

control EgressCounters(in metadata_t meta, in standard_metadata_t standard_metadata) {
    counter(EVENT_CELLS, CounterType.packets) egress_events;
    counter(PORTS, CounterType.packets_and_bytes) port_out;

    apply {
        if (meta.verdict != VERDICT_DROP) {
            port_out.count((bit<32>) standard_metadata.egress_port);
        }
        if (meta.verdict != VERDICT_FORWARD) {
            egress_events.count((bit<32>) meta.event);
        }
    }
}
