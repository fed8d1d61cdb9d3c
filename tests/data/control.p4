// What a program and its controller say to each other: packets in and out, digests, idle entries, clones, value sets.
#include <core.p4>
#include <v1model.p4>

const bit<9> CPU_PORT = 510;
const bit<32> MIRROR = 5;

@controller_header("packet_in")
header packet_in_t {
    bit<9> ingress_port;
    bit<7> reason;
}
@controller_header("packet_out")
header packet_out_t {
    bit<9> egress_port;
    bit<7> pad;
}
header ethernet_t {
    bit<48> dst_addr;
    bit<48> src_addr;
    bit<16> ether_type;
}
struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    ethernet_t   ethernet;
}
struct metadata_t {
    @field_list(1)
    bit<7> reason;
    bit<1> mirrored;
}
struct learned_t {
    bit<48> src_addr;
    bit<9>  ingress_port;
    bit<1>  mirrored;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    value_set<bit<16>>(4) mirrored_types;

    state start {
        transition select(standard_metadata.ingress_port) {
            CPU_PORT: from_controller;
            default: ethernet;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition ethernet;
    }
    state ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            mirrored_types: mirrored;
            default: accept;
        }
    }
    state mirrored {
        meta.mirrored = 1;
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action learn() {
        digest<learned_t>(1, { hdr.ethernet.src_addr, standard_metadata.ingress_port, meta.mirrored });
    }
    action forward(bit<9> port) { standard_metadata.egress_spec = port; }
    action flood(bit<16> group) { standard_metadata.mcast_grp = group; }
    action punt(bit<7> reason) {
        meta.reason = reason;
        standard_metadata.egress_spec = CPU_PORT;
    }
    action drop() { mark_to_drop(standard_metadata); }

    table sources {
        key = { hdr.ethernet.src_addr : exact; }
        actions = { NoAction; learn; }
        default_action = learn();
        support_timeout = true;
    }
    table destinations {
        key = { hdr.ethernet.dst_addr : exact; }
        actions = { forward; flood; punt; drop; }
        default_action = drop();
    }

    apply {
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            sources.apply();
            if (meta.mirrored == 1) {
                meta.reason = 99;
                clone_preserving_field_list(CloneType.I2E, MIRROR, 1);
            }
            destinations.apply();
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == CPU_PORT) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = standard_metadata.ingress_port;
            hdr.packet_in.reason = meta.reason;
        }
    }
}

control compute_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.packet_out);
        packet.emit(hdr.ethernet);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparser()) main;
