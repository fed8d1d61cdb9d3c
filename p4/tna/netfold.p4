// netfold's data plane for Tofino 1 (TNA) and 2 (T2NA): what ../v1model/netfold.p4 is for v1model. In the twelve stages
// of a Tofino 1: 32 elements in one pass, or 64 with one recirculation of what carries stored values. In the twenty of a
// Tofino 2: 64 in one pass. Stage by stage: 0 membership, 1 positions, 2 bitmaps, from 3 on elements; the verdict is
// reached beside them.
#include <core.p4>
#if __TARGET_TOFINO__ == 1
#include <tna.p4>
#define ONE_PASS (ELEMENTS == 32)
const PortId_t RECIRCULATION_PORT = 68;     // of pipe 0; every port of a job is in that pipe
#else
#include <t2na.p4>
#define ONE_PASS 1
#endif

#include "../common/headers.p4"
#include "metadata.p4"
#include "parser.p4"
#include "membership.p4"
#include "sharing.p4"
#include "slot.p4"
#include "vector.p4"
#include "exponent.p4"
#include "result.p4"
#include "forwarding.p4"
#include "replicas.p4"
#include "counters.p4"
#include "checksum.p4"

// What no action has written is 0. Without this the compiler lets such metadata share containers with other values,
// and on the ways of a packet that do not write it, it reads those.
@pa_auto_init_metadata
control ingress(inout ingress_headers_t hdr, inout ingress_metadata_t meta,
                in ingress_intrinsic_metadata_t intrinsic,
                in ingress_intrinsic_metadata_from_parser_t from_parser,
                inout ingress_intrinsic_metadata_for_deparser_t deparser_metadata,
                inout ingress_intrinsic_metadata_for_tm_t manager) {
    Membership() membership;
    Slot() slot;
    Vector() vector;
    Exponent() exponent;
    Result() result;
    Forwarding() forwarding;
    IngressCounters() counters;

    action to_fabric() { meta.to_fabric = 1; }
    action to_hosts() { meta.to_fabric = 0; }
    @name(".fabric_address") table fabric_address {
        key = { hdr.ipv4.dst_addr : exact; }
        actions = { to_fabric; to_hosts; }
        const default_action = to_hosts();
        size = 64;
    }

    // A switch of the fabric is heard where its cable is; this one's own address never comes in.
    action only_from(bit<9> port) { meta.detour = intrinsic.ingress_port ^ port; }
    action from_nowhere() { meta.detour = 0x1ff; }
    @name(".fabric_source") table fabric_source {
        key = { hdr.ipv4.src_addr : exact @name("src_addr"); }
        actions = { only_from; from_nowhere; NoAction; }
        const default_action = NoAction();
        size = FABRIC_SOURCES;
    }

    // Flat, because tables after a join wait for the last one of each branch.
    apply {
        hdr.bridge.setValid();
        hdr.bridge.kind = KIND_PASSING;
        hdr.bridge.ingress_port = intrinsic.ingress_port;
        // Looked up side by side: the addresses decide whether membership's answer counts.
        fabric_address.apply();
        fabric_source.apply();
        if (meta.role == ROLE_NONE) {
            membership.apply(hdr, meta, intrinsic, from_parser);
        }
        if (meta.role == ROLE_HARVEST
            || (meta.to_fabric == 1 && meta.detour == 0 && hdr.udp.isValid() && hdr.udp.dst_port == NETFOLD_UDP_PORT)) {
            slot.apply(hdr, meta);
            result.apply(hdr, meta, intrinsic, deparser_metadata, manager);
            vector.apply(hdr, meta);
            exponent.apply(hdr, meta);
        } else {
            meta.verdict = VERDICT_FORWARD;
            forwarding.apply(hdr, meta, intrinsic, from_parser, deparser_metadata, manager);
        }
        counters.apply(meta, intrinsic);
    }
}

control egress(inout egress_headers_t hdr, inout egress_metadata_t meta,
               in egress_intrinsic_metadata_t intrinsic,
               in egress_intrinsic_metadata_from_parser_t from_parser,
               inout egress_intrinsic_metadata_for_deparser_t deparser_metadata,
               inout egress_intrinsic_metadata_for_output_port_t output_port) {
    Replicas() replicas;
    EgressCounters() counters;

    apply {
        replicas.apply(hdr, meta, intrinsic, deparser_metadata);
        counters.apply(hdr, meta, intrinsic);
    }
}

Pipeline(ingress_parser(), ingress(), ingress_deparser(), egress_parser(), egress(), egress_deparser()) pipe;
Switch(pipe) main;
