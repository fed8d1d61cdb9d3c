// Who may contribute (rule 1): a packet whose port, address, job, epoch, rank and slot are not exactly what the
// controller installed is dropped. The reason comes from the entry that matched: under a rank's full entry the
// controller installs wider ones of lower priority, each refusing with the reason that the fields it leaves out give.
control Membership(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard_metadata) {
    action refuse(bit<8> reason) {
        meta.verdict = VERDICT_DROP;
        meta.reason = reason;
    }
    action admit(bit<32> member, bit<32> full, bit<16> group) {
        meta.verdict = VERDICT_ADMITTED;
        meta.member = member;
        meta.full = full;
        meta.group = group;
    }
    @name(".membership") table members {
        key = {
            standard_metadata.ingress_port : ternary @name("ingress_port");
            hdr.ipv4.src_addr              : ternary @name("src_addr");
            hdr.netfold.job                : ternary @name("job");
            hdr.netfold.epoch              : ternary @name("epoch");
            hdr.netfold.rank               : ternary @name("rank");
            hdr.netfold.slot               : ternary @name("slot");
        }
        actions = { admit; refuse; }
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
        } else if (hdr.netfold.operation != OPERATION_CONTRIBUTION) {
            refuse(DROP_OPERATION);
        } else if (hdr.netfold.element_count != ELEMENTS) {
            refuse(DROP_SIZE);
        } else if (!hdr.vector.isValid() || hdr.udp.datagram_bytes < AGGREGATION_DATAGRAM_BYTES) {
            refuse(DROP_TRUNCATED);
        } else if (hdr.udp.datagram_bytes > AGGREGATION_DATAGRAM_BYTES) {
            refuse(DROP_MALFORMED);
        } else {
            members.apply();
        }
    }
}
