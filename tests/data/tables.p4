// Every kind of table, replication and checksum that the switch runs: what each packet met is written into it.
#include <core.p4>
#include <v1model.p4>

header ipv4_t {
    bit<4>  version;
    bit<4>  ihl;
    bit<8>  dscp;
    bit<16> total_bytes;
    bit<16> identification;
    bit<3>  flags;
    bit<13> fragment_offset;
    bit<8>  ttl;
    bit<8>  protocol;
    bit<16> checksum;
    bit<32> src_addr;
    bit<32> dst_addr;
}
header trace_t {
    bit<8>  exact_hit;
    bit<8>  route;
    bit<8>  verdict;
    bit<8>  choice;
    bit<8>  branch;
    bit<8>  bad_checksum;
    bit<16> instance;
    bit<16> port;
    bit<32> kind;
}
struct headers_t {
    ipv4_t  ipv4;
    trace_t trace;
}
struct metadata_t {}

parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    state start {
        packet.extract(hdr.ipv4);
        transition accept;
    }
}

control verify_checksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.total_bytes,
            hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol,
            hdr.ipv4.src_addr, hdr.ipv4.dst_addr }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control ingress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    direct_counter(CounterType.packets_and_bytes) routed;

    action known() {}
    action route(bit<9> port, bit<8> name) {
        routed.count();
        hdr.trace.route = name;
        standard_metadata.egress_spec = port;
    }
    action replicate(bit<16> group) {
        routed.count();
        standard_metadata.mcast_grp = group;
    }
    action lost() {
        routed.count();
        mark_to_drop(standard_metadata);
        exit;
    }
    action verdict(bit<8> name) { hdr.trace.verdict = name; }
    action choice(bit<8> name) { hdr.trace.choice = name; }
    action first() {}
    action second() {}

    table hosts {
        key = { hdr.ipv4.src_addr : exact; hdr.ipv4.protocol : exact; }
        actions = { known; @defaultonly NoAction; }
        default_action = NoAction();
        size = 2;
    }
    table routes {
        key = { hdr.ipv4.dst_addr : lpm; }
        actions = { route; replicate; lost; }
        default_action = lost();
        counters = routed;
    }
    table verdicts {
        key = {
            hdr.ipv4.src_addr : ternary;
            hdr.ipv4.protocol : ternary;
            standard_metadata.ingress_port : exact;
        }
        actions = { verdict; }
        default_action = verdict(99);
    }
    table choices {
        key = { hdr.ipv4.ttl : ternary; hdr.ipv4.protocol : optional; }
        actions = { choice; }
        default_action = choice(0);
        const entries = {
            (1, 17): choice(1);
            (0x80 &&& 0xf0, _): choice(2);
            (_, 6): choice(3);
            (0x80 &&& 0x80, _): choice(4);
        }
    }
    table branches {
        key = { hdr.ipv4.dscp : exact; }
        actions = { first; second; }
        const default_action = second();
        const entries = {
            1: first();
        }
    }

    apply {
        hdr.trace.setValid();
        hdr.trace.exact_hit = 0;
        hdr.trace.branch = 0;
        hdr.trace.bad_checksum = (bit<8>) standard_metadata.checksum_error;
        if (hosts.apply().hit) {
            hdr.trace.exact_hit = 1;
        }
        verdicts.apply();
        choices.apply();
        switch (branches.apply().action_run) {
            first: { hdr.trace.branch = 1; }
            second: { hdr.trace.branch = 2; }
        }
        hdr.ipv4.ttl = hdr.ipv4.ttl |-| 1;
        routes.apply();
    }
}

control egress(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    apply {
        hdr.trace.instance = standard_metadata.egress_rid;
        hdr.trace.port = (bit<16>) standard_metadata.egress_port;
        hdr.trace.kind = standard_metadata.instance_type;
        if (standard_metadata.egress_rid == 13) {
            mark_to_drop(standard_metadata);
        }
    }
}

control compute_checksums(inout headers_t hdr, inout metadata_t meta) {
    apply {
        update_checksum(hdr.ipv4.isValid(), { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.total_bytes,
            hdr.ipv4.identification, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol,
            hdr.ipv4.src_addr, hdr.ipv4.dst_addr }, hdr.ipv4.checksum, HashAlgorithm.csum16);
    }
}

control deparser(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.trace);
        packet.emit(hdr.ipv4);
    }
}

V1Switch(parse(), verify_checksums(), ingress(), egress(), compute_checksums(), deparser()) main;
