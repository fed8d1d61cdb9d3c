// Everything that is not for the fabric itself, as in ../v1model/forwarding.p4: ARP, L2 switching, L3 routing, IP
// multicast; the same tables and entries.
control Forwarding(inout ingress_headers_t hdr, inout ingress_metadata_t meta,
                   in ingress_intrinsic_metadata_t intrinsic,
                   in ingress_intrinsic_metadata_from_parser_t from_parser,
                   inout ingress_intrinsic_metadata_for_deparser_t deparser_metadata,
                   inout ingress_intrinsic_metadata_for_tm_t manager) {
    action drop(bit<8> reason) {
        meta.verdict = VERDICT_DROP;
        meta.event = reason;
        deparser_metadata.drop_ctl = 1;
    }

    action answer_arp(bit<48> mac) {
        bit<32> asked = hdr.arp.target_address;
        hdr.ethernet.dst_mac = hdr.arp.sender_mac;
        hdr.ethernet.src_mac = mac;
        hdr.arp.operation = ARP_REPLY;
        hdr.arp.target_mac = hdr.arp.sender_mac;
        hdr.arp.target_address = hdr.arp.sender_address;
        hdr.arp.sender_mac = mac;
        hdr.arp.sender_address = asked;
        manager.ucast_egress_port = intrinsic.ingress_port;
    }
    @name(".arp") table arp {
        key = { hdr.arp.target_address : exact @name("target_address"); }
        actions = { answer_arp; NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    action l2_forward(bit<9> port) { manager.ucast_egress_port = port; }
    action l2_flood(bit<16> group) {
        manager.mcast_grp_a = group;
        hdr.bridge.kind = KIND_FLOODED;
    }
    @name(".l2") table l2 {
        key = { hdr.ethernet.dst_mac : exact @name("dst_mac"); }
        actions = { l2_forward; l2_flood; drop; }
        default_action = drop(DROP_NO_ROUTE);
        size = 1024;
    }

    @name(".router_mac") table router_mac {
        key = { hdr.ethernet.dst_mac : exact @name("dst_mac"); }
        actions = { NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    action ipv4_forward(bit<9> port, bit<48> src_mac, bit<48> dst_mac) {
        hdr.ethernet.src_mac = src_mac;
        hdr.ethernet.dst_mac = dst_mac;
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        manager.ucast_egress_port = port;
    }
    action ipv4_replicate(bit<16> group) {
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        manager.mcast_grp_a = group;
        hdr.bridge.kind = KIND_FLOODED;
    }
    @name(".ipv4") table ipv4 {
        key = { hdr.ipv4.dst_addr : lpm @name("dst_addr"); }
        actions = { ipv4_forward; ipv4_replicate; drop; }
        default_action = drop(DROP_NO_ROUTE);
        size = 1024;
    }

    // What TTL - 1 is to the checksum (RFC 1624): a sum in one's complement, of which 0xffff is written 0.
    action age()   { hdr.ipv4.checksum = hdr.ipv4.checksum + 0x0100; }
    action carry() { hdr.ipv4.checksum = hdr.ipv4.checksum + 0x0101; }

    action route() {
        meta.routed = 1;
    }

    apply {
        // IP multicast needs no router's MAC.
        if (hdr.ipv4.isValid()) {
            if (router_mac.apply().hit) {
                route();
            } else if (hdr.ipv4.dst_addr[31:28] == 0xe) {
                route();
            }
        }
        // A UDP datagram to port 4793 of a host may hold anything.
        if (hdr.ipv4.isValid() && meta.detour != 0) {
            drop(DROP_FORGED);
        } else if (from_parser.parser_err != 0 && meta.behind_udp == 0) {
            drop(DROP_PARSER);
        } else if (hdr.ethernet.ether_type == ETHERTYPE_VLAN || hdr.ethernet.ether_type == ETHERTYPE_SERVICE_VLAN) {
            // A host takes a frame with a priority tag as if it had none.
            drop(DROP_TAGGED);
        } else if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST) {
            if (!arp.apply().hit) {
                l2.apply();
            }
        } else if (meta.routed == 1) {
            if (hdr.ipv4.ihl != 5) {
                drop(DROP_OPTIONS);
            } else if (meta.checksum_error == 1) {
                drop(DROP_CHECKSUM);
            } else if (hdr.ipv4.ttl[7:1] == 0) {
                drop(DROP_TTL);
            } else {
                ipv4.apply();
                if (hdr.ipv4.checksum[15:8] == 0xff || hdr.ipv4.checksum == 0xfeff) {
                    carry();
                } else {
                    age();
                }
            }
        } else {
            l2.apply();
        }
    }
}
