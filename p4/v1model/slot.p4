// The state of one slot's set: epoch, generation and bitmap (rule 2), with the sums of the check words (rule 7) and
// the maximum of the next exponents. A newer generation or another epoch starts the set afresh: nothing is ever
// cleared beforehand.
control Slot(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(SLOT_SETS) epochs;
    register<bit<32>>(SLOT_SETS) generations;
    register<bit<32>>(SLOT_SETS) bitmaps;
    register<bit<32>>(SLOT_SETS) checks;
    register<bit<32>>(SLOT_SETS) exponents;

    bit<32> epoch;
    bit<32> generation;
    bit<32> seen;
    bit<32> check;
    bit<32> exponent;

    apply {
        // The index is masked here, whatever the membership entries say.
        meta.set = ((bit<32>) hdr.netfold.slot & SLOT_MASK) << 1 | (hdr.netfold.generation & 1);
        epochs.read(epoch, meta.set);
        generations.read(generation, meta.set);
        bitmaps.read(seen, meta.set);
        checks.read(check, meta.set);
        exponents.read(exponent, meta.set);

        // Serial number arithmetic (RFC 1982), in the signed form: the unsigned one compiles into something else on
        // Tofino, and the two programs should read alike.
        int<32> ahead = (int<32>) (hdr.netfold.generation - generation);
        meta.reason = 0;
        if (epoch != hdr.netfold.epoch || ahead > 0) {
            meta.verdict = VERDICT_FRESH;
            seen = meta.member;
            epochs.write(meta.set, hdr.netfold.epoch);
            generations.write(meta.set, hdr.netfold.generation);
        } else if (ahead < 0) {
            meta.verdict = VERDICT_DROP;
            meta.reason = DROP_STALE;
        } else if (seen & meta.member == 0) {
            meta.verdict = VERDICT_ADD;
            seen = seen | meta.member;
            hdr.netfold.check = hdr.netfold.check + check;
            if (exponent > hdr.netfold.next_exponent) {
                hdr.netfold.next_exponent = exponent;
            }
        } else if (seen == meta.full) {
            meta.verdict = VERDICT_ANSWER;
            hdr.netfold.check = check;
            hdr.netfold.next_exponent = exponent;
        } else {
            meta.verdict = VERDICT_DROP;
            meta.reason = DROP_DUPLICATE;
        }

        if (meta.verdict == VERDICT_FRESH || meta.verdict == VERDICT_ADD) {
            bitmaps.write(meta.set, seen);
            checks.write(meta.set, hdr.netfold.check);
            exponents.write(meta.set, hdr.netfold.next_exponent);
        }
        meta.last = seen == meta.full;
    }
}
