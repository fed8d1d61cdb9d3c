// Shared slots: many jobs overbook one pool. A contribution must own its set before anything is stored there; one that
// finds the set taken goes on to its job's server unaggregated. A set is given back when its result passes, and an
// owner that is gone loses it after CREDIT collisions without a packet of its own. A packet that was sent before
// never claims: its result may be out already, and nobody else would come.
control Sharing(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(SLOT_SETS) owners;    // epochs; each belongs to one job's life, none is 0
    register<bit<32>>(SLOT_SETS) credits;   // 0: free

    bit<32> owner;
    bit<32> credit;

    action collide() {
        meta.verdict = VERDICT_UP;
        meta.event = EVENT_COLLISION;
        meta.up_operation = OPERATION_CONTRIBUTION;
    }

    apply {
        owners.read(owner, meta.set);
        credits.read(credit, meta.set);
        if (meta.role == ROLE_RELAY) {
            meta.verdict = VERDICT_COMPLETE;
            meta.event = EVENT_RELAYED;
            if (owner == hdr.netfold.epoch) {
                owner = 0;
                credit = 0;
            }
        } else if (hdr.netfold.flags & FLAG_AGAIN != 0) {
            if (owner != hdr.netfold.epoch) {
                collide();
            }
        } else if (owner == hdr.netfold.epoch) {
            credit = CREDIT;
        } else if (credit == 0) {
            owner = hdr.netfold.epoch;
            credit = CREDIT;
            meta.claimed = true;
        } else {
            credit = credit - 1;
            collide();
        }
        owners.write(meta.set, owner);
        credits.write(meta.set, credit);
    }
}
