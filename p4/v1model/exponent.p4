// The next block's exponent: the set keeps the maximum over the ranks. Words are ordered as the codes they stand for,
// so the largest word is that of the largest code.
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
