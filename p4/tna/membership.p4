// Rows of the table below for operations that are none: not 1 to 5. Ranges would be shorter, but take a chip's ternary
// memory in another format, for which only its driver knows entries.
#define NO_OPERATION(vector, magic, version) \
            (_, _, vector, _, magic, version, 0x00, _, _): flawed(DROP_OPERATION); \
            (_, _, vector, _, magic, version, 0x06 &&& 0xfe, _, _): flawed(DROP_OPERATION); \
            (_, _, vector, _, magic, version, 0x08 &&& 0xf8, _, _): flawed(DROP_OPERATION); \
            (_, _, vector, _, magic, version, 0x10 &&& 0xf0, _, _): flawed(DROP_OPERATION); \
            (_, _, vector, _, magic, version, 0x20 &&& 0xe0, _, _): flawed(DROP_OPERATION); \
            (_, _, vector, _, magic, version, 0x40 &&& 0xc0, _, _): flawed(DROP_OPERATION); \
            (_, _, vector, _, magic, version, 0x80 &&& 0x80, _, _): flawed(DROP_OPERATION);

// And for datagrams that are too short: of fewer bytes than 4 * ELEMENTS + 32 + 8, which are powers of two.
#define SHORT(bytes, mask) \
            (_, _, true, 0, _, _, _, (bytes) &&& (mask), _): flawed(DROP_TRUNCATED);
#define WHOLE (4 * ELEMENTS)

// Who may send what (rule 1), as in ../v1model/membership.p4: the same table, actions and entries. What is wrong
// whoever sends it is a table, too, and both are looked up at once.
control Membership(inout ingress_headers_t hdr, inout ingress_metadata_t meta,
                   in ingress_intrinsic_metadata_t intrinsic,
                   in ingress_intrinsic_metadata_from_parser_t from_parser) {
    action flawed(bit<8> reason) { meta.flaw = reason; }
    // Where the parser ran out of packet, the header it was at may count as valid; the next one does not.
    table flaws {
        key = {
            meta.checksum_error    : ternary;
            hdr.netfold.isValid()  : ternary;
            hdr.vector.isValid()   : ternary;
            from_parser.parser_err : ternary;
            hdr.netfold.magic      : ternary;
            hdr.netfold.version    : ternary;
            hdr.netfold.operation  : ternary;
            hdr.udp.datagram_bytes : ternary;
            hdr.ipv4.total_bytes   : ternary;
        }
        actions = { flawed; NoAction; }
        const default_action = NoAction();
        const entries = {
            (1, _, _, _, _, _, _, _, _): flawed(DROP_CHECKSUM);
            (_, false, _, _, _, _, _, _, _): flawed(DROP_TRUNCATED);
            // Of this version and size ...
            NO_OPERATION(true, _, _)
            (_, _, true, 0, _, _, _, DATAGRAM_BYTES, DATAGRAM_BYTES + IPV4_BYTES): NoAction();
            SHORT(0, 0x10000 - WHOLE)
            SHORT(WHOLE, 0xffe0)
            SHORT(WHOLE + 32, 0xfff8)
            (_, _, true, 0, _, _, _, _, _): flawed(DROP_MALFORMED);
            (_, _, true, _, _, _, _, _, _): flawed(DROP_TRUNCATED);
            // ... or not.
            NO_OPERATION(false, NETFOLD_MAGIC, NETFOLD_VERSION)
            (_, _, false, 0, NETFOLD_MAGIC, NETFOLD_VERSION, _, _, _): flawed(DROP_SIZE);
            (_, _, false, 0, NETFOLD_MAGIC, _, _, _, _): flawed(DROP_VERSION);
            (_, _, false, 0, _, _, _, _, _): flawed(DROP_MALFORMED);
            (_, _, false, _, _, _, _, _, _): flawed(DROP_TRUNCATED);
        }
        size = 32;
    }

    action refuse(bit<8> reason) {
        meta.verdict = VERDICT_DROP;
        meta.event = reason;
    }

    action contribute(bit<32> member, bit<32> full, bit<16> group) {
        meta.role = ROLE_CONTRIBUTE;
        meta.member = member;
        meta.full = full;
        meta.group = group;
        meta.slot = hdr.netfold.slot;
    }
    action contribute_up(bit<32> member, bit<32> full, bit<9> port, bit<48> mac, bit<32> address, bit<16> udp_port,
                         bit<8> operation, bit<16> rank) {
        meta.role = ROLE_UP;
        meta.member = member;
        meta.full = full;
        meta.up_port = port;
        meta.up_mac = mac;
        meta.up_address = address;
        meta.up_udp_port = udp_port;
        meta.up_operation = operation;
        meta.up_rank = rank;
        meta.slot = hdr.netfold.slot;
    }
    action contribute_shared(bit<32> member, bit<32> full, bit<9> port, bit<48> mac, bit<32> address,
                             bit<16> udp_port, bit<16> offset) {
        meta.role = ROLE_SHARED;
        meta.member = member;
        meta.full = full;
        meta.up_port = port;
        meta.up_mac = mac;
        meta.up_address = address;
        meta.up_udp_port = udp_port;
        meta.up_operation = OPERATION_SUM;
        meta.up_rank = hdr.netfold.rank;
        meta.slot = hdr.netfold.slot ^ offset;
    }
    action result_down(bit<32> full, bit<16> group) {
        meta.role = ROLE_DOWN;
        meta.group = group;
        meta.slot = hdr.netfold.slot;
    }
    action result_shared(bit<16> group, bit<16> offset) {
        meta.role = ROLE_RELAY;
        meta.group = group;
        meta.slot = hdr.netfold.slot ^ offset;
    }
    action chunk_down(bit<16> group) {
        meta.role = ROLE_CHUNK;
        meta.full = ~DONE;
        meta.group = group;
        meta.slot = hdr.netfold.slot;
    }
    action ask(bit<9> port, bit<48> mac, bit<32> address, bit<16> udp_port, bit<16> rank) {
        meta.role = ROLE_NACK;
        meta.up_port = port;
        meta.up_mac = mac;
        meta.up_address = address;
        meta.up_udp_port = udp_port;
        meta.up_operation = OPERATION_NACK;
        meta.up_rank = rank;
        meta.slot = hdr.netfold.slot;
    }

    @name(".membership") table members {
        key = {
            intrinsic.ingress_port : ternary @name("ingress_port");
            hdr.ipv4.src_addr      : ternary @name("src_addr");
            hdr.udp.src_port       : ternary @name("src_port");
            hdr.netfold.operation  : ternary @name("operation");
            hdr.netfold.job        : ternary @name("job");
            hdr.netfold.epoch      : ternary @name("epoch");
            hdr.netfold.rank       : ternary @name("rank");
            hdr.netfold.slot       : ternary @name("slot");
        }
        actions = {
            contribute; contribute_up; contribute_shared; result_down; result_shared; chunk_down; ask; refuse;
        }
        default_action = refuse(DROP_JOB);
        size = MEMBERSHIPS;
    }

    apply {
        flaws.apply();
        members.apply();
    }
}

#undef NO_OPERATION
#undef SHORT
#undef WHOLE
