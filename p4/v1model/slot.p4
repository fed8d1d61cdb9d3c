// The state of one slot's set: epoch, generation and bitmap (rules 2, 4 and 5). The set's next generation or another
// epoch (of a shared slot: a claim) starts the set afresh: nothing is ever cleared beforehand. The bitmap is also the
// set's state: some ranks' bits are `partial`, all of them are finished or `sent-up`, as the job's entries say, and DONE
// is `done`.
control Slot(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(SLOT_SETS) epochs;
    register<bit<32>>(SLOT_SETS) generations;
    register<seen_t>(SLOT_SETS) bitmaps;

    bit<32> epoch;
    bit<32> generation;
    seen_t seen;

    action drop(bit<8> reason) {
        meta.verdict = VERDICT_DROP;
        meta.event = reason;
    }

    // The set goes on with these ranks.
    action join(work_t work, seen_t ranks) {
        meta.work = work;
        seen = ranks;
    }

    apply {
        epochs.read(epoch, meta.set);
        generations.read(generation, meta.set);
        bitmaps.read(seen, meta.set);

        // Serial number arithmetic (RFC 1982), in the signed form: the unsigned one compiles into something else on
        // Tofino, and the two programs should read alike. Every other generation is the other set's.
        int<32> ahead = (int<32>) (hdr.netfold.generation - generation);
        bool equal = epoch == hdr.netfold.epoch && ahead == 0;
        bool fresh = epoch != hdr.netfold.epoch || ahead == 2;
        if (meta.role == ROLE_SHARED) {
            // The owner's set is its own in every generation, but only a claim starts it.
            equal = !meta.claimed && ahead == 0;
            fresh = meta.claimed;
        }

        if (meta.role == ROLE_DOWN) {
            if (equal && seen == meta.full) {
                join(WORK_STORE, seen | DONE);
                meta.verdict = VERDICT_COMPLETE;
                meta.event = EVENT_DOWN;
            } else {
                drop(DROP_UNASKED);
            }
        } else if (meta.role == ROLE_NACK) {
            if (equal && seen & DONE != 0) {
                meta.work = WORK_LOAD;
                meta.verdict = VERDICT_ANSWER;
                meta.event = EVENT_ANSWERED;
            } else {
                meta.verdict = VERDICT_UP;
                meta.event = EVENT_NACK_UP;
            }
        } else if (!fresh && !equal) {
            if (meta.role == ROLE_SHARED) {
                meta.verdict = VERDICT_UP;
                meta.event = EVENT_COLLISION;
                meta.up_operation = OPERATION_CONTRIBUTION;
            } else if (ahead > 0) {
                drop(DROP_FUTURE);
            } else {
                drop(DROP_STALE);
            }
        } else if (meta.role == ROLE_CHUNK) {
            if (fresh) {
                join(WORK_STORE, DONE);
                meta.verdict = VERDICT_COMPLETE;
                meta.event = EVENT_CHUNK;
            } else {
                drop(DROP_DUPLICATE);
            }
        } else if (fresh || seen & meta.member == 0) {
            if (fresh) {
                join(WORK_STORE, meta.member);
            } else {
                join(WORK_ADD, seen | meta.member);
            }
            if (seen != meta.full) {
                meta.verdict = VERDICT_ABSORBED;
                meta.event = EVENT_ABSORBED;
            } else if (meta.role == ROLE_CONTRIBUTE) {
                meta.verdict = VERDICT_COMPLETE;
                meta.event = EVENT_COMPLETED;
            } else {
                meta.verdict = VERDICT_UP;
                meta.event = EVENT_SENT_UP;
            }
        } else if (seen == meta.full && meta.role != ROLE_CONTRIBUTE) {
            meta.work = WORK_LOAD;
            meta.verdict = VERDICT_UP;
            meta.event = EVENT_UP_AGAIN;
        } else if (seen & meta.full == meta.full) {
            meta.work = WORK_LOAD;
            meta.verdict = VERDICT_ANSWER;
            meta.event = EVENT_ANSWERED;
        } else if (meta.role == ROLE_SHARED && hdr.netfold.flags & FLAG_AGAIN != 0) {
            // The others may have their result, and this set be a late packet's claim: only the server knows.
            meta.verdict = VERDICT_UP;
            meta.event = EVENT_COLLISION;
            meta.up_operation = OPERATION_CONTRIBUTION;
        } else {
            drop(DROP_DUPLICATE);
        }

        if (meta.work == WORK_STORE || meta.work == WORK_ADD) {
            epochs.write(meta.set, hdr.netfold.epoch);
            generations.write(meta.set, hdr.netfold.generation);
            bitmaps.write(meta.set, seen);
        }
    }
}
