// Who may send what (rule 1): a packet whose port, address, UDP port, operation, job, epoch, rank and slot are not
// exactly what the controller installed is dropped. The reason comes from the entry that matched: under a sender's full entry the
// controller installs wider ones of lower priority, each refusing with the reason that the fields it leaves out give.
control Membership(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action refuse(bit<8> reason) {
        meta.verdict = VERDICT_DROP;
        meta.event = reason;
    }

    // A rank's contribution: the sum of all becomes the result here.
    action contribute(bit<32> member, bit<32> full, bit<16> group) {
        meta.role = ROLE_CONTRIBUTE;
        meta.member = (seen_t) member;
        meta.full = (seen_t) full;
        meta.group = group;
    }
    action go_up(bit<9> port, bit<48> mac, bit<32> address, bit<16> udp_port) {
        meta.up_port = port;
        meta.up_mac = mac;
        meta.up_address = address;
        meta.up_udp_port = udp_port;
    }
    // ... goes up: to the parent as the contribution of its rank `rank`, or to the server as a sum.
    action contribute_up(bit<32> member, bit<32> full, bit<9> port, bit<48> mac, bit<32> address, bit<16> udp_port,
                         bit<8> operation, bit<16> rank) {
        meta.role = ROLE_UP;
        meta.member = (seen_t) member;
        meta.full = (seen_t) full;
        meta.up_operation = operation;
        meta.up_rank = rank;
        go_up(port, mac, address, udp_port);
    }
    // ... goes to the server as a sum, from a shared slot. Without one, the contribution itself goes there.
    action contribute_shared(bit<32> member, bit<32> full, bit<9> port, bit<48> mac, bit<32> address,
                             bit<16> udp_port, bit<16> offset) {
        meta.role = ROLE_SHARED;
        meta.member = (seen_t) member;
        meta.full = (seen_t) full;
        meta.up_operation = OPERATION_SUM;
        meta.up_rank = hdr.netfold.rank;
        meta.offset = offset;
        go_up(port, mac, address, udp_port);
    }
    // A result from above, for a slot that was sent up; for shared slots.
    action result_down(bit<32> full, bit<16> group) {
        meta.role = ROLE_DOWN;
        meta.full = (seen_t) full;
        meta.group = group;
    }
    action result_shared(bit<16> group, bit<16> offset) {
        meta.role = ROLE_RELAY;
        meta.group = group;
        meta.offset = offset;
    }
    // A chunk from above, and a rank that misses one.
    action chunk_down(bit<16> group) {
        meta.role = ROLE_CHUNK;
        meta.group = group;
    }
    action ask(bit<9> port, bit<48> mac, bit<32> address, bit<16> udp_port, bit<16> rank) {
        meta.role = ROLE_NACK;
        meta.up_operation = OPERATION_NACK;
        meta.up_rank = rank;
        go_up(port, mac, address, udp_port);
    }

    @name(".membership") table members {
        key = {
            standard_metadata.ingress_port : ternary @name("ingress_port");
            hdr.ipv4.src_addr              : ternary @name("src_addr");
            hdr.udp.src_port               : ternary @name("src_port");
            hdr.netfold.operation          : ternary @name("operation");
            hdr.netfold.job                : ternary @name("job");
            hdr.netfold.epoch              : ternary @name("epoch");
            hdr.netfold.rank               : ternary @name("rank");
            hdr.netfold.slot               : ternary @name("slot");
        }
        actions = {
            contribute; contribute_up; contribute_shared; result_down; result_shared; chunk_down; ask; refuse;
        }
        default_action = refuse(DROP_JOB);
        size = MEMBERSHIPS;
    }

    apply {
        if (standard_metadata.checksum_error == 1) {
            refuse(DROP_CHECKSUM);
        } else if (!hdr.netfold.isValid()) {
            refuse(DROP_TRUNCATED);
        } else if (hdr.netfold.magic != NETFOLD_MAGIC) {
            refuse(DROP_MALFORMED);
        } else if (hdr.netfold.version != NETFOLD_VERSION) {
            refuse(DROP_VERSION);
        } else if (hdr.netfold.operation < OPERATION_CONTRIBUTION || hdr.netfold.operation > OPERATION_NACK) {
            refuse(DROP_OPERATION);
        } else if (hdr.netfold.element_count != ELEMENTS) {
            refuse(DROP_SIZE);
        } else if (!hdr.vector.isValid() || hdr.udp.datagram_bytes < DATAGRAM_BYTES) {
            refuse(DROP_TRUNCATED);
        } else if (hdr.udp.datagram_bytes > DATAGRAM_BYTES
                   || hdr.ipv4.total_bytes != hdr.udp.datagram_bytes + IPV4_BYTES) {
            refuse(DROP_MALFORMED);
        } else {
            members.apply();
        }
    }
}
