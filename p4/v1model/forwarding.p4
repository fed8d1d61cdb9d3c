// Everything that is not for the fabric itself: ARP for its address, L2 switching, L3 routing, IP multicast.
control Forwarding(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action drop(bit<8> reason) {
        meta.verdict = VERDICT_DROP;
        meta.event = reason;
        mark_to_drop(standard_metadata);
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
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }
    @name(".arp") table arp {
        key = { hdr.arp.target_address : exact @name("target_address"); }
        actions = { answer_arp; NoAction; }
        const default_action = NoAction();
        size = 64;
    }

    action l2_forward(bit<9> port) { standard_metadata.egress_spec = port; }
    action l2_flood(bit<16> group) { standard_metadata.mcast_grp = group; }
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
        meta.rewritten = true;
        standard_metadata.egress_spec = port;
    }
    action ipv4_replicate(bit<16> group) {
        hdr.ipv4.ttl = hdr.ipv4.ttl - 1;
        meta.rewritten = true;
        standard_metadata.mcast_grp = group;
    }
    @name(".ipv4") table ipv4 {
        key = { hdr.ipv4.dst_addr : lpm @name("dst_addr"); }
        actions = { ipv4_forward; ipv4_replicate; drop; }
        default_action = drop(DROP_NO_ROUTE);
        size = 1024;
    }

    apply {
        // A UDP datagram to port 4793 of a host may hold anything.
        if (meta.forged) {
            drop(DROP_FORGED);
        } else if (standard_metadata.parser_error != error.NoError && !hdr.udp.isValid()) {
            drop(DROP_PARSER);
        } else if (hdr.ethernet.ether_type == ETHERTYPE_VLAN || hdr.ethernet.ether_type == ETHERTYPE_SERVICE_VLAN) {
            // A host takes a frame with a priority tag as if it had none.
            drop(DROP_TAGGED);
        } else if (hdr.arp.isValid() && hdr.arp.operation == ARP_REQUEST && arp.apply().hit) {
            meta.verdict = VERDICT_FORWARD;
        } else if (hdr.ipv4.isValid() && (router_mac.apply().hit || hdr.ipv4.dst_addr[31:28] == 0xe)) {
            if (hdr.ipv4.ihl != 5) {
                drop(DROP_OPTIONS);
            } else if (standard_metadata.checksum_error == 1) {
                drop(DROP_CHECKSUM);
            } else if (hdr.ipv4.ttl <= 1) {
                drop(DROP_TTL);
            } else {
                ipv4.apply();
            }
        } else {
            l2.apply();
        }
    }
}
