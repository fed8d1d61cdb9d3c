// Shared slots: many jobs overbook one pool. A contribution must claim its slot before anything is stored there; one
// that finds the slot taken goes on to its job's server unaggregated. A slot is given back when its result passes, and
// an owner that is gone loses it after CREDIT collisions without a packet of its own. A packet that was sent before
// never claims: its result may be out already, and nobody else would come.
control Sharing(inout headers_t hdr, inout metadata_t meta) {
    register<bit<32>>(SLOT_SETS) owners;    // epochs; each belongs to one job's life
    register<bit<8>>(SLOT_SETS) credits;    // 0: free

    bit<32> owner;
    bit<8> credit;

    apply {
        owners.read(owner, meta.set);
        credits.read(credit, meta.set);
        if (meta.role == ROLE_RELAY) {
            meta.verdict = VERDICT_COMPLETE;
            meta.event = EVENT_RELAYED;
            if (owner == hdr.netfold.epoch) {
                credit = 0;
            }
        } else if (owner == hdr.netfold.epoch) {
            credit = CREDIT;
        } else if (credit == 0 && hdr.netfold.flags & FLAG_AGAIN == 0) {
            owner = hdr.netfold.epoch;
            credit = CREDIT;
        } else {
            meta.verdict = VERDICT_UP;
            meta.event = EVENT_COLLISION;
            meta.up_operation = OPERATION_CONTRIBUTION;
            if (credit != 0) {
                credit = credit - 1;
            }
        }
        owners.write(meta.set, owner);
        credits.write(meta.set, credit);
    }
}
