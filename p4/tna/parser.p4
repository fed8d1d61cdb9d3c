// Ingress: as ../v1model/parser.p4, and what comes by again for its high halves. The vector is taken only behind a
// header of this version and size; the rest is judged in membership.p4. Egress: what the fabric says, as far as the
// aggregation header; the vector is payload there, and so is every other frame.
parser ingress_parser(packet_in packet, out ingress_headers_t hdr, out ingress_metadata_t meta,
                      out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
#if __TARGET_TOFINO__ == 1
        // Nobody else can send from there.
        transition select(intrinsic.ingress_port) {
            RECIRCULATION_PORT: parse_harvest;
            default: parse_ethernet;
        }
    }
    // Addressed to its receiver already, whose UDP port is any.
    state parse_harvest {
        packet.extract(hdr.harvest);
        meta.role = ROLE_HARVEST;
        meta.slot = hdr.harvest.slot;
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.netfold);
        transition parse_vector;
#else
        transition parse_ethernet;
#endif
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: look_at_options;
            ETHERTYPE_ARP: parse_arp;
            default: accept;
        }
    }
    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }
    // A checksum over options is not for this parser.
    state look_at_options {
        transition select(packet.lookahead<bit<8>>()) {
            0x45: parse_ipv4;
            5 &&& 0xf: parse_strange_ipv4;
            default: parse_ipv4_options;
        }
    }
    state parse_ipv4_options {
        packet.extract(hdr.ipv4);
        transition accept;
    }
    state parse_strange_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.checksum_error = (bit<1>) ipv4_checksum.verify();
        transition accept;
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.checksum_error = (bit<1>) ipv4_checksum.verify();
        transition select(hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (0 &&& MORE_FRAGMENTS, 0, IP_PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }
    // A datagram that says itself that it is too short for an aggregation header is not for the deparser to complete.
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port, hdr.udp.datagram_bytes) {
            (NETFOLD_UDP_PORT, 0 &&& 0xffe0): accept;
            (NETFOLD_UDP_PORT, 32 &&& 0xfff8): accept;
            (NETFOLD_UDP_PORT, _): look_at_version;
            default: accept;
        }
    }
    // What ends in its UDP header does not get here, though the header may count as valid.
    state look_at_version {
        meta.behind_udp = 1;
        transition select(packet.lookahead<bit<24>>()) {
            NETFOLD_MAGIC ++ NETFOLD_VERSION: parse_netfold;
            default: parse_stranger;
        }
    }
    state parse_stranger {
        packet.extract(hdr.netfold);
        transition accept;
    }
    state parse_netfold {
        packet.extract(hdr.netfold);
        transition select(hdr.netfold.element_count) {
            ELEMENTS: parse_vector;
            default: accept;
        }
    }
    state parse_vector {
        packet.extract(hdr.vector);
        transition accept;
    }
}

parser egress_parser(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta,
                     out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        transition select(hdr.bridge.kind) {
            KIND_SPOKEN: parse_spoken;
            default: accept;
        }
    }
    state parse_spoken {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.netfold);
        transition accept;
    }
}
