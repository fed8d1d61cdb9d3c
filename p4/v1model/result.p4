// Where a packet leaves to (rules 3, 4 and 5): results and chunks to the job's multicast group, sums up to the parent
// or the server, answers back to who asked.
control Result(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    // The fabric speaks from the address it was spoken to.
    action speak_as_fabric() {
        hdr.ethernet.src_mac = hdr.ethernet.dst_mac;
        hdr.ipv4.src_addr = hdr.ipv4.dst_addr;
        hdr.udp.src_port = hdr.udp.dst_port;
        hdr.udp.checksum = 0;
        hdr.ipv4.ttl = 64;
        meta.rewritten = true;
    }

    action to_group() {
        speak_as_fabric();
        hdr.netfold.flags = 0;
        standard_metadata.mcast_grp = meta.group;
    }

    action up() {
        speak_as_fabric();
        hdr.ethernet.dst_mac = meta.up_mac;
        hdr.ipv4.dst_addr = meta.up_address;
        hdr.udp.dst_port = meta.up_udp_port;
        hdr.netfold.operation = meta.up_operation;
        hdr.netfold.rank = meta.up_rank;
        standard_metadata.egress_spec = meta.up_port;
    }

    action back() {
        bit<48> mac = hdr.ethernet.src_mac;
        bit<32> address = hdr.ipv4.src_addr;
        bit<16> udp_port = hdr.udp.src_port;
        speak_as_fabric();
        hdr.ethernet.dst_mac = mac;
        hdr.ipv4.dst_addr = address;
        hdr.udp.dst_port = udp_port;
        hdr.netfold.flags = 0;
        standard_metadata.egress_spec = standard_metadata.ingress_port;
    }

    apply {
        if (meta.verdict == VERDICT_COMPLETE) {
            if (meta.role == ROLE_CONTRIBUTE) {
                hdr.netfold.operation = OPERATION_RESULT;
            }
            to_group();
        } else if (meta.verdict == VERDICT_UP) {
            up();
        } else if (meta.verdict == VERDICT_ANSWER) {
            if (meta.role == ROLE_NACK) {
                hdr.netfold.operation = OPERATION_CHUNK;
            } else {
                hdr.netfold.operation = OPERATION_RESULT;
            }
            back();
        } else {
            mark_to_drop(standard_metadata);
        }
    }
}
