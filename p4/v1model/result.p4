// What becomes of a contribution that was looked up in its slot (rules 3 and 4): the last one turns into the result
// and leaves for the job's multicast group; a duplicate for a finished slot goes back with the result.
control Result(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // The fabric speaks from the address it was spoken to.
    action speak_as_fabric() {
        hdr.netfold.operation = OPERATION_RESULT;
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = 64;
    }

    apply {
        if (meta.verdict == VERDICT_ANSWER) {
            bit<48> mac = hdr.ethernet.src_mac;
            bit<32> address = hdr.ipv4.src_addr;
            bit<16> udp_port = hdr.udp.src_port;
            hdr.ethernet.src_mac = hdr.ethernet.dst_mac;
            hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
            hdr.udp.src_port = hdr.udp.dst_port;
            hdr.ethernet.dst_mac = mac;
            hdr.ipv4.dst_addr = address;
            hdr.udp.dst_port = udp_port;
            speak_as_fabric();
            standard_metadata.egress_spec = standard_metadata.ingress_port;
        } else if (meta.verdict == VERDICT_FRESH || meta.verdict == VERDICT_ADD) {
            if (meta.last) {
                meta.verdict = VERDICT_COMPLETE;
                hdr.ethernet.src_mac = hdr.ethernet.dst_mac;
                hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
                hdr.udp.src_port = hdr.udp.dst_port;
                speak_as_fabric();
                standard_metadata.mcast_grp = meta.group;
            } else {
                meta.verdict = VERDICT_ABSORBED;
            }
        }
    }
}
