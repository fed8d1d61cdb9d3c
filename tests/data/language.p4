// Stacks, unions, varbits, wide numbers, hashes, ranges, and packets that are cloned, resubmitted, recirculated and cut:
// what `op` asks for is done to the packet, which goes back to its port.
#include <core.p4>
#include <v1model.p4>

header request_t {
    bit<8>   op;
    bit<8>   a;
    bit<16>  n;
    bit<128> wide;
}
header item_t {
    bit<1> last;
    bit<7> value;
}
header text_t {
    bit<8>     bytes;
    varbit<64> text;
    bit<8>     mark;
}
header small_t { bit<8> value; }
header large_t { bit<16> value; }
header_union number_t {
    small_t small;
    large_t large;
}
header big_t { bit<300> value; bit<4> pad; }
header answer_t {
    bit<128> sum;
    bit<128> difference;
    bit<128> product;
    bit<128> shifted;
    bit<128> back;
    int<128> signed_back;
    bit<128> saturated;
    bit<8>   flags;
}
header hashes_t {
    bit<32> crc32;
    bit<16> crc16;
    bit<16> csum16;
    bit<16> xor16;
    bit<64> identity;
    bit<8>  ranged;
}
header pass_t {
    bit<8>  kind;
    bit<8>  kept;
    bit<8>  lost;
    bit<16> n;
}
struct headers_t {
    request_t request;
    item_t[4] items;
    text_t    text;
    text_t    copy;
    number_t  number;
    big_t     big;
    answer_t  answer;
    hashes_t  hashes;
    pass_t    pass;
}
struct metadata_t {
    @field_list(1) bit<8> kept;
    bit<8> lost;
}

const bit<8> STACK = 1;
const bit<8> TEXT = 2;
const bit<8> NUMBER = 3;
const bit<8> WIDE = 4;
const bit<8> HASH = 5;
const bit<8> CLONE = 6;
const bit<8> RESUBMIT = 7;
const bit<8> RECIRCULATE = 8;
const bit<8> CUT = 9;
const bit<8> BIG = 10;
const bit<8> EGRESS_CLONE = 11;

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.request);
        transition select(hdr.request.op) {
            STACK: parse_item;
            TEXT: parse_text;
            NUMBER: parse_number;
            BIG: parse_big;
            default: accept;
        }
    }
    state parse_item {
        packet.extract(hdr.items.next);
        transition select(hdr.items.last.last) {
            0: parse_item;
            default: accept;
        }
    }
    state parse_text {
        packet.extract(hdr.text, (bit<32>) (packet.lookahead<bit<8>>() << 3));
        transition accept;
    }
    state parse_number {
        transition select(hdr.request.a) {
            0: parse_small;
            default: parse_large;
        }
    }
    state parse_small {
        packet.extract(hdr.number.small);
        transition accept;
    }
    state parse_large {
        packet.extract(hdr.number.large);
        transition accept;
    }
    state parse_big {
        packet.extract(hdr.big);
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action say(bit<8> word) { hdr.hashes.ranged = word; }
    table ranged {
        key = { hdr.request.n : range; }
        actions = { say; }
        default_action = say(0);
        const entries = {
            0 .. 9: say(1);
            5 .. 99: say(2);
            100: say(3);
            1000 .. 0xffff: say(4);
        }
    }

    apply {
        standard_metadata.egress_spec = standard_metadata.ingress_port;
        if (hdr.request.op == STACK) {
            if (hdr.request.a == 1) {
                hdr.items.push_front(1);
                hdr.items[0].setValid();
                hdr.items[0].value = 0x55;
            } else if (hdr.request.a == 2) {
                hdr.items.pop_front(2);
            } else if (hdr.request.a == 3) {
                // A place that only the packet knows.
                bit<2> at = hdr.request.n[1:0];
                hdr.items[at].value = hdr.items[at].value + 1;
            }
        } else if (hdr.request.op == TEXT) {
            hdr.copy = hdr.text;
            hdr.text.mark = 0xff;
        } else if (hdr.request.op == NUMBER) {
            if (hdr.number.small.isValid()) {
                bit<8> value = hdr.number.small.value;
                hdr.number.large.setValid();
                hdr.number.large.value = 8w0xab ++ value;
            } else {
                hdr.number.small.setValid();
                hdr.number.small.value = 0x77;
            }
        } else if (hdr.request.op == WIDE) {
            bit<128> w = hdr.request.wide;
            bit<128> n = (bit<128>) hdr.request.n;
            hdr.answer.setValid();
            hdr.answer.sum = w + n;
            hdr.answer.difference = n - w;
            hdr.answer.product = w * n;
            hdr.answer.shifted = w << hdr.request.a;
            hdr.answer.back = w >> hdr.request.a;
            hdr.answer.signed_back = (int<128>) w >> hdr.request.a;
            hdr.answer.saturated = w |+| n;
            hdr.answer.flags = (w > n ? 8w1 : 0) | ((int<128>) w < (int<128>) n ? 8w2 : 0) | (w == n ? 8w4 : 0);
        } else if (hdr.request.op == HASH) {
            hdr.hashes.setValid();
            hash(hdr.hashes.crc32, HashAlgorithm.crc32, 32w0, { hdr.request.a, hdr.request.wide }, 64w0x100000000);
            hash(hdr.hashes.crc16, HashAlgorithm.crc16, 16w0, { hdr.request.a, hdr.request.wide }, 32w0x10000);
            hash(hdr.hashes.csum16, HashAlgorithm.csum16, 16w0, { hdr.request.a, hdr.request.wide }, 32w0x10000);
            hash(hdr.hashes.xor16, HashAlgorithm.xor16, 16w0, { hdr.request.a, hdr.request.wide }, 32w0x10000);
            hash(hdr.hashes.identity, HashAlgorithm.identity, 64w3, { hdr.request.n }, 64w1000);
            ranged.apply();
        } else if (hdr.request.op == CLONE) {
            meta.kept = hdr.request.a;
            meta.lost = 9;
            clone_preserving_field_list(CloneType.I2E, 5, 1);
            hdr.request.n = 0xffff;     // the clone is of the packet as it came
        } else if (hdr.request.op == RESUBMIT) {
            if (standard_metadata.instance_type == 0) {
                meta.kept = hdr.request.a;
                meta.lost = 9;
                hdr.request.n = 0xffff;
                resubmit_preserving_field_list(1);
            } else {
                standard_metadata.egress_spec = 3;
            }
        } else if (hdr.request.op == RECIRCULATE) {
            if (standard_metadata.instance_type != 0) {
                standard_metadata.egress_spec = 4;
            }
        } else if (hdr.request.op == CUT) {
            truncate((bit<32>) hdr.request.a);
        } else if (hdr.request.op == BIG) {
            hdr.big.value = hdr.big.value * 3 + 1 << 7;
        }
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        if (hdr.request.op == CLONE || hdr.request.op == RESUBMIT || hdr.request.op == RECIRCULATE
            || hdr.request.op == EGRESS_CLONE) {
            hdr.pass.setValid();
            hdr.pass.kind = (bit<8>) standard_metadata.instance_type;
            hdr.pass.kept = meta.kept;
            hdr.pass.lost = meta.lost;
            hdr.pass.n = hdr.request.n;
        }
        if (hdr.request.op == RECIRCULATE && standard_metadata.egress_port != 4) {
            meta.kept = hdr.request.a;
            meta.lost = 9;
            hdr.pass.setInvalid();
            hdr.request.n = hdr.request.n + 1;
            recirculate_preserving_field_list(1);
        }
        if (hdr.request.op == EGRESS_CLONE && standard_metadata.instance_type == 0) {
            meta.kept = hdr.request.a;
            meta.lost = 9;
            clone_preserving_field_list(CloneType.E2E, 5, 1);
        }
    }
}
control compute_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }
control deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.pass);
        packet.emit(hdr.request);
        packet.emit(hdr.items);
        packet.emit(hdr.text);
        packet.emit(hdr.copy);
        packet.emit(hdr.number);
        packet.emit(hdr.big);
        packet.emit(hdr.answer);
        packet.emit(hdr.hashes);
    }
}
V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparser()) main;
