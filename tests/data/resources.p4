// What a table can be made of: wide, range and optional keys, action profiles, meters, counters, registers. What each
// packet met is written into it.
#include <core.p4>
#include <v1model.p4>

header probe_t {
    bit<128> wide;
    bit<16>  number;
    bit<8>   choice;
    bit<8>   pad;
}
header trace_t {
    bit<128> wide;
    bit<8>   ranged;
    bit<8>   picked;
    bit<8>   member;
    bit<8>   direct_colour;
    bit<8>   colour;
    bit<32>  count;
}
struct headers_t {
    probe_t probe;
    trace_t trace;
}
struct metadata_t {
    bit<8> direct_colour;
    bit<8> colour;
}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.probe);
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_meter<bit<8>>(MeterType.bytes) entry_meter;
    direct_counter(CounterType.packets_and_bytes) entry_counter;
    meter(4, MeterType.packets) cell_meters;
    counter(4, CounterType.packets_and_bytes) cell_counters;
    register<bit<32>>(4) counts;
    action_profile(4) members;
    @max_group_size(8)
    action_selector(HashAlgorithm.crc16, 16, 16) ways;

    action set_wide(bit<128> wide) { hdr.trace.wide = wide; }
    action set_ranged(bit<8> name) { hdr.trace.ranged = name; }
    action pick(bit<8> name) { hdr.trace.picked = name; }
    action pick_wide(bit<8> name, bit<72> wide) {
        hdr.trace.picked = name;
        hdr.trace.wide = (bit<128>) wide;
    }
    action set_member(bit<8> name) { hdr.trace.member = name; }
    action measure(bit<8> name) {
        entry_meter.read(meta.direct_colour);
        entry_counter.count();
        hdr.trace.member = name;
    }

    table wides {
        key = { hdr.probe.wide : exact; }
        actions = { set_wide; NoAction; }
        default_action = NoAction();
    }
    table prefixes {
        key = { hdr.probe.wide : lpm; }
        actions = { set_wide; NoAction; }
        default_action = NoAction();
    }
    table ranges {
        key = { hdr.probe.number : range; hdr.probe.choice : optional; }
        actions = { set_ranged; NoAction; }
        default_action = NoAction();
    }
    table balanced {
        key = { hdr.probe.choice : exact; hdr.probe.number : selector; }
        actions = { pick; pick_wide; NoAction; }
        implementation = ways;
    }
    table indirect {
        key = { hdr.probe.choice : exact; }
        actions = { set_member; NoAction; }
        implementation = members;
    }
    table metered {
        key = { hdr.probe.choice : exact; }
        actions = { measure; NoAction; }
        default_action = NoAction();
        meters = entry_meter;
        counters = entry_counter;
    }

    apply {
        bit<32> index = (bit<32>) hdr.probe.choice;
        hdr.trace.setValid();
        hdr.trace = { 0, 0, 0, 0, 0, 0, 0 };
        prefixes.apply();
        wides.apply();
        ranges.apply();
        balanced.apply();
        indirect.apply();
        metered.apply();
        cell_meters.execute_meter(index, meta.colour);
        cell_counters.count(index);
        counts.read(hdr.trace.count, index);
        hdr.trace.count = hdr.trace.count + 1;
        counts.write(index, hdr.trace.count);
        hdr.trace.direct_colour = meta.direct_colour;
        hdr.trace.colour = meta.colour;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) { apply {} }

control compute_checksums(inout headers_t hdr, inout metadata_t meta) { apply {} }

control deparser(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.trace); }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparser()) main;
