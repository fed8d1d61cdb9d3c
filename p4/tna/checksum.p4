// IPv4 header checksums. The UDP checksum of what leaves the fabric is 0 ("not computed", RFC 768): the check word
// covers the payload end to end. The check of what comes in is the parser's, what is routed changes its checksum with
// its TTL (forwarding.p4), and here is what the fabric says.
#define IPV4_CHECKSUM_FIELDS { \
    hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.diffserv, hdr.ipv4.total_bytes, hdr.ipv4.identification, \
    hdr.ipv4.flags, hdr.ipv4.fragment_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, \
    hdr.ipv4.src_addr, hdr.ipv4.dst_addr }

control ingress_deparser(packet_out packet, inout ingress_headers_t hdr, in ingress_metadata_t meta,
                         in ingress_intrinsic_metadata_for_deparser_t deparser_metadata) {
    apply {
        packet.emit(hdr);
    }
}

control egress_deparser(packet_out packet, inout egress_headers_t hdr, in egress_metadata_t meta,
                        in egress_intrinsic_metadata_for_deparser_t deparser_metadata) {
    Checksum() ipv4_checksum;

    apply {
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = ipv4_checksum.update(IPV4_CHECKSUM_FIELDS);
        }
        packet.emit(hdr);
    }
}
#undef IPV4_CHECKSUM_FIELDS
