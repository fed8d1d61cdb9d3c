// Ingress: Ethernet, ARP, IPv4 without options or fragments, UDP, and for the fabric's UDP port the aggregation header.
// The parser also passes judgement on all that needs no state: `sound`, or the DROP_ reason; neither for what ended too
// early. Egress: as far as the aggregation header; the vector is payload there.
parser ingress_parser(packet_in packet, out ingress_headers_t hdr, out ingress_metadata_t meta,
                      out ingress_intrinsic_metadata_t intrinsic) {
    Checksum() ipv4_checksum;

    state start {
        packet.extract(intrinsic);
        packet.advance(PORT_METADATA_SIZE);
        transition select(intrinsic.ingress_port) {
            RECIRCULATION_PORT: parse_harvest;
            default: parse_ethernet;
        }
    }
    state parse_harvest {
        packet.extract(hdr.harvest);
        meta.role = ROLE_HARVEST;
        meta.slot = hdr.harvest.slot;
        transition parse_ethernet;
    }
    state parse_ethernet {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_ARP: parse_arp;
            default: accept;
        }
    }
    state parse_arp {
        packet.extract(hdr.arp);
        transition accept;
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        ipv4_checksum.add(hdr.ipv4);
        meta.checksum_error = (bit<1>) ipv4_checksum.verify();
        transition select(hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (5, 0, IP_PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        packet.extract(hdr.udp);
        transition select(hdr.udp.dst_port) {
            NETFOLD_UDP_PORT: parse_netfold;
            default: accept;
        }
    }
    state parse_netfold {
        meta.ours = 1;
        packet.extract(hdr.netfold);
        // A state compares 32 bits.
        transition select(hdr.netfold.magic, hdr.netfold.version, hdr.netfold.operation) {
            (NETFOLD_MAGIC, NETFOLD_VERSION, OPERATION_CONTRIBUTION): judge_size;
            (NETFOLD_MAGIC, NETFOLD_VERSION, OPERATION_RESULT): judge_size;
            (NETFOLD_MAGIC, NETFOLD_VERSION, OPERATION_SUM): judge_size;
            (NETFOLD_MAGIC, NETFOLD_VERSION, OPERATION_CHUNK): judge_size;
            (NETFOLD_MAGIC, NETFOLD_VERSION, OPERATION_NACK): judge_size;
            (NETFOLD_MAGIC, NETFOLD_VERSION, _): wrong_operation;
            (NETFOLD_MAGIC, _, _): wrong_version;
            default: malformed;
        }
    }
    state judge_size {
        transition select(hdr.netfold.element_count) {
            ELEMENTS: parse_vector;
            default: wrong_size;
        }
    }
    state wrong_size {
        meta.event = DROP_SIZE;
        transition accept;
    }
    state wrong_operation {
        meta.event = DROP_OPERATION;
        transition accept;
    }
    state wrong_version {
        meta.event = DROP_VERSION;
        transition accept;
    }
    state malformed {
        meta.event = DROP_MALFORMED;
        transition accept;
    }
    state parse_vector {
        packet.extract(hdr.vector);
        transition select(hdr.udp.datagram_bytes) {
            DATAGRAM_BYTES: judge_length;
            0 .. DATAGRAM_BYTES - 1: accept;    // truncated
            default: malformed;
        }
    }
    state judge_length {
        transition select(hdr.ipv4.total_bytes) {
            DATAGRAM_BYTES + IPV4_BYTES: right;
            default: malformed;
        }
    }
    state right {
        meta.sound = 1;
        transition accept;
    }
}

parser egress_parser(packet_in packet, out egress_headers_t hdr, out egress_metadata_t meta,
                     out egress_intrinsic_metadata_t intrinsic) {
    state start {
        packet.extract(intrinsic);
        packet.extract(hdr.bridge);
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ether_type) {
            ETHERTYPE_IPV4: parse_ipv4;
            default: accept;
        }
    }
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.ihl, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (5, 0, IP_PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }
    state parse_udp {
        packet.extract(hdr.udp);
        // The switch speaks from the fabric's port.
        transition select(hdr.udp.src_port) {
            NETFOLD_UDP_PORT: parse_netfold;
            default: accept;
        }
    }
    state parse_netfold {
        packet.extract(hdr.netfold);
        transition accept;
    }
}
