// Arithmetic, parser errors, header operations and registers: every kind of value the switch computes, in one packet.
#include <core.p4>
#include <v1model.p4>

header request_t {
    bit<8>  kind;
    bit<8>  shift;
    bit<32> a;
    bit<32> b;
    bit<48> wide;
    bit<3>  three;
    bit<13> thirteen;
    bit<32> index;
}
header answer_t {
    bit<32> sum;
    bit<32> difference;
    bit<32> product;
    bit<32> left;
    bit<32> right;
    bit<32> saturated;
    bit<64> squared;
    bit<48> rotated;
    bit<16> joined;
    bit<8>  flags;
    bit<8>  arithmetic;
    bit<32> stored;
    bit<32> narrow;
}
header mark_t { bit<16> value; }
struct headers_t {
    request_t request;
    mark_t    mark;
    answer_t  answer;
    mark_t    copy;
    mark_t    failure;
}
struct metadata_t {}

error { Forbidden }

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        transition select(packet.lookahead<bit<8>>()) {
            0xf0 &&& 0xf0: marked;
            1..9: requested;
            10: nothing;
        }
    }
    state marked {
        packet.advance(8);
        packet.extract(hdr.mark);
        verify(hdr.mark.value != 0xdead, error.Forbidden);
        transition requested;
    }
    state requested {
        packet.extract(hdr.request);
        transition accept;
    }
    state nothing { transition accept; }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    register<bit<32>>(4) totals;
    register<int<20>>(4) signs;

    action leave_early() { exit; }

    apply {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        if (standard_metadata.parser_error != error.NoError) {
            hdr.failure.setValid();
            if (standard_metadata.parser_error == error.PacketTooShort) {
                hdr.failure.value = 1;
            } else if (standard_metadata.parser_error == error.Forbidden) {
                hdr.failure.value = 2;
            } else if (standard_metadata.parser_error == error.NoMatch) {
                hdr.failure.value = 3;
            } else {
                hdr.failure.value = 4;
            }
            leave_early();
        }
        if (!hdr.request.isValid()) {
            mark_to_drop(standard_metadata);
            return;
        }
        hdr.answer.setValid();
        hdr.answer.sum = hdr.request.a + hdr.request.b;
        hdr.answer.difference = hdr.request.a - hdr.request.b;
        hdr.answer.product = hdr.request.a * hdr.request.b;
        hdr.answer.left = hdr.request.a << hdr.request.shift;
        hdr.answer.right = hdr.request.a >> hdr.request.shift;
        hdr.answer.saturated = hdr.request.a |+| hdr.request.b;
        bit<64> long = (bit<64>) hdr.request.wide;
        hdr.answer.squared = long * (long ^ 0xffffffffffffffff) + ~long;
        hdr.answer.rotated = hdr.request.wide << 7 | hdr.request.wide >> 41;
        hdr.answer.joined = hdr.request.three ++ hdr.request.thirteen;
        int<32> ahead = (int<32>) (hdr.request.a - hdr.request.b);
        hdr.answer.flags = (ahead > 0 ? 8w1 : 0) | (ahead < 0 ? 8w2 : 0) | (hdr.request.a > hdr.request.b ? 8w4 : 0)
            | ((int<3>) hdr.request.three < 0 ? 8w8 : 0) | (ahead >= -5 && ahead <= 5 ? 8w16 : 0);
        int<8> small = (int<8>) hdr.request.kind;
        hdr.answer.arithmetic = (bit<8>) ((small - 3) >> 1);
        totals.read(hdr.answer.stored, hdr.request.index);
        totals.write(hdr.request.index, hdr.answer.stored + hdr.request.a);
        int<20> sign;
        signs.write(hdr.request.index, (int<20>) (int<32>) hdr.request.b);
        signs.read(sign, hdr.request.index);
        hdr.answer.narrow = (bit<32>) (int<32>) sign;
        if (hdr.mark.isValid()) {
            hdr.copy = hdr.mark;
            hdr.mark.setInvalid();
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply { }
}
control compute_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }
control deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.mark);
        packet.emit(hdr.failure);
        packet.emit(hdr.answer);
        packet.emit(hdr.copy);
    }
}
V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparser()) main;
