// netfold's data plane for v1model (BMv2, the embedded switch): in-network aggregation of int32 vectors with
// multicast results, beside plain L2/L3 forwarding. The slot protocol is described in docs/protocol.md.
#include <core.p4>
#include <v1model.p4>

#include "../common/headers.p4"
#include "metadata.p4"
#include "parser.p4"
#include "checksum.p4"
#include "membership.p4"
#include "slot.p4"
#include "vector.p4"
#include "result.p4"
#include "forwarding.p4"
#include "replicas.p4"

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(32, CounterType.packets) events;
    counter(PORTS, CounterType.packets_and_bytes) port_in;

    Membership() membership;
    Slot() slot;
    Vector() vector;
    Result() result;
    Forwarding() forwarding;

    action to_fabric() { meta.for_fabric = true; }
    action to_hosts() { meta.for_fabric = false; }
    @name(".fabric_address") table fabric_address {
        key = { hdr.ipv4.dst_addr : exact; }
        actions = { to_fabric; to_hosts; }
        const default_action = to_hosts();
        size = 64;
    }

    apply {
        port_in.count((bit<32>) standard_metadata.ingress_port);
        meta.verdict = VERDICT_FORWARD;
        meta.for_fabric = false;
        if (hdr.ipv4.isValid()) {
            fabric_address.apply();
        }
        if (meta.for_fabric && hdr.udp.isValid() && hdr.udp.dst_port == NETFOLD_UDP_PORT) {
            membership.apply(hdr, meta, standard_metadata);
            if (meta.verdict == VERDICT_ADMITTED) {
                slot.apply(hdr, meta);
                vector.apply(hdr, meta);
                result.apply(hdr, meta, standard_metadata);
            }
        } else {
            forwarding.apply(hdr, meta, standard_metadata);
        }

        if (meta.verdict == VERDICT_DROP) {
            mark_to_drop(standard_metadata);
            events.count((bit<32>) meta.reason);
        } else if (meta.verdict == VERDICT_ANSWER) {
            events.count((bit<32>) EVENT_ANSWERED);
        } else if (meta.verdict == VERDICT_ABSORBED || meta.verdict == VERDICT_COMPLETE) {
            events.count((bit<32>) EVENT_CONTRIBUTION);
            if (meta.verdict == VERDICT_COMPLETE) {
                events.count((bit<32>) EVENT_COMPLETED);
            } else {
                mark_to_drop(standard_metadata);
            }
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    counter(32, CounterType.packets) egress_events;
    counter(PORTS, CounterType.packets_and_bytes) port_out;

    Replicas() replicas;

    apply {
        meta.verdict = VERDICT_FORWARD;
        replicas.apply(hdr, meta, standard_metadata);
        if (meta.verdict == VERDICT_DROP) {
            egress_events.count((bit<32>) meta.reason);
            mark_to_drop(standard_metadata);
        } else {
            port_out.count((bit<32>) standard_metadata.egress_port);
            if (meta.verdict == VERDICT_COMPLETE) {
                egress_events.count((bit<32>) EVENT_REPLICA);
            }
        }
    }
}

control deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.arp);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.netfold);
        packet.emit(hdr.vector);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparser()) main;
