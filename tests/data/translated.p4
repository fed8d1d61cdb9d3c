// Ports that controllers see as numbers of 32 bits.
#include <core.p4>
#include <v1model.p4>

@p4runtime_translation("", 32)
type bit<9> port_id_t;

@controller_header("packet_in")
header packet_in_t {
    port_id_t ingress_port;
    bit<7>    pad;
}
@controller_header("packet_out")
header packet_out_t {
    port_id_t egress_port;
    bit<7>    pad;
}
header data_t {
    bit<8> kind;
}
struct headers_t {
    packet_in_t  packet_in;
    packet_out_t packet_out;
    data_t       data;
}
struct metadata_t {
    port_id_t ingress_port;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        meta.ingress_port = (port_id_t) standard_metadata.ingress_port;
        transition select(standard_metadata.ingress_port) {
            510: from_controller;
            default: data;
        }
    }
    state from_controller {
        packet.extract(hdr.packet_out);
        transition data;
    }
    state data {
        packet.extract(hdr.data);
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action forward(port_id_t port) { standard_metadata.egress_spec = (bit<9>) port; }
    table ports {
        key = { meta.ingress_port : exact; }
        actions = { forward; NoAction; }
        default_action = forward((port_id_t) 9w510);
    }
    apply {
        if (hdr.packet_out.isValid()) {
            standard_metadata.egress_spec = (bit<9>) hdr.packet_out.egress_port;
            hdr.packet_out.setInvalid();
        } else {
            ports.apply();
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (standard_metadata.egress_port == 510) {
            hdr.packet_in.setValid();
            hdr.packet_in.ingress_port = meta.ingress_port;
            hdr.packet_in.pad = 0;
        }
    }
}

control compute_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.packet_in);
        packet.emit(hdr.data);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparser()) main;
