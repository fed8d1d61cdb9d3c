// The next block's exponent: the set keeps the maximum over the ranks. Both halves are equal in every undamaged
// packet, so the maximum of the doubled codes is the doubled maximum.
control Exponent(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(SLOT_SETS) exponents;

    bit<32> stored;

    apply {
        exponents.read(stored, meta.set);
        if (meta.work == WORK_LOAD || (meta.work == WORK_ADD && stored > hdr.netfold.next_exponent)) {
            hdr.netfold.next_exponent = stored;
        }
        if (meta.work == WORK_STORE || meta.work == WORK_ADD) {
            exponents.write(meta.set, hdr.netfold.next_exponent);
        }
    }
}
