// Parser: Ethernet, ARP, IPv4 without options or fragments, UDP, and for the fabric's UDP port the aggregation
// header. The vector is taken only behind a header of this version and size; the rest is judged in membership.p4.
parser parse(packet_in packet, out headers_t hdr, inout metadata_t meta,
             inout standard_metadata_t standard_metadata) {
    state start {
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
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.protocol) {
            (4, 5, 0 &&& MORE_FRAGMENTS, 0, IP_PROTOCOL_UDP): parse_udp;
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
        packet.extract(hdr.netfold);
        transition select(hdr.netfold.magic, hdr.netfold.version, hdr.netfold.element_count) {
            (NETFOLD_MAGIC, NETFOLD_VERSION, ELEMENTS): parse_vector;
            default: accept;
        }
    }
    state parse_vector {
        packet.extract(hdr.vector);
        transition accept;
    }
}
