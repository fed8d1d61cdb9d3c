// netfold's data plane for v1model (BMv2, the embedded switch): in-network aggregation of int32 vectors and multicast,
// beside plain L2/L3 forwarding. The slot protocol is described in docs/protocol.md.
#include <core.p4>
#include <v1model.p4>

#include "../common/headers.p4"
#include "metadata.p4"
#include "parser.p4"
#include "checksum.p4"
#include "membership.p4"
#include "sharing.p4"
#include "slot.p4"
#include "exponent.p4"
#include "vector.p4"
#include "result.p4"
#include "forwarding.p4"
#include "replicas.p4"
#include "counters.p4"

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Membership() membership;
    Sharing() sharing;
    Slot() slot;
    Exponent() exponent;
    Vector() vector;
    Result() result;
    Forwarding() forwarding;
    IngressCounters() counters;

    action to_fabric() { meta.for_fabric = true; }
    action to_hosts() { meta.for_fabric = false; }
    @name(".fabric_address") table fabric_address {
        key = { hdr.ipv4.dst_addr : exact; }
        actions = { to_fabric; to_hosts; }
        const default_action = to_hosts();
        size = 64;
    }

    // A switch of the fabric is heard where its cable is; this one's own address never comes in.
    action only_from(bit<9> port) { meta.forged = standard_metadata.ingress_port != port; }
    action from_nowhere() { meta.forged = true; }
    @name(".fabric_source") table fabric_source {
        key = { hdr.ipv4.src_addr : exact @name("src_addr"); }
        actions = { only_from; from_nowhere; NoAction; }
        const default_action = NoAction();
        size = FABRIC_SOURCES;
    }

    apply {
        meta.role = ROLE_NONE;
        meta.verdict = VERDICT_FORWARD;
        meta.work = WORK_NONE;
        meta.offset = 0;
        meta.claimed = false;
        meta.for_fabric = false;
        meta.forged = false;
        meta.rewritten = false;
        if (hdr.ipv4.isValid()) {
            fabric_address.apply();
            fabric_source.apply();
        }
        if (!meta.forged && meta.for_fabric && hdr.udp.isValid() && hdr.udp.dst_port == NETFOLD_UDP_PORT) {
            membership.apply(hdr, meta, standard_metadata);
            if (meta.role != ROLE_NONE) {
                // The index is masked here, whatever the membership entries say.
                meta.set = ((bit<32>) (hdr.netfold.slot ^ meta.offset) & SLOT_MASK) << 1 | (hdr.netfold.generation & 1);
                if (meta.role == ROLE_SHARED || meta.role == ROLE_RELAY) {
                    sharing.apply(hdr, meta);
                }
                if (meta.verdict == VERDICT_FORWARD) {
                    slot.apply(hdr, meta);
                    exponent.apply(hdr, meta);
                    vector.apply(hdr, meta);
                }
            }
            result.apply(hdr, meta, standard_metadata);
        } else {
            forwarding.apply(hdr, meta, standard_metadata);
        }
        counters.apply(meta, standard_metadata);
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    Replicas() replicas;
    EgressCounters() counters;

    apply {
        meta.verdict = VERDICT_FORWARD;
        replicas.apply(hdr, meta, standard_metadata);
        counters.apply(meta, standard_metadata);
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
