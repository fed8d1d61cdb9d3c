// The state of one slot's set (rules 2, 4 and 5), in two register pairs and a register, because a stateful action
// compares at most twice. `positions` says whether the set starts afresh, `bitmaps` who was there before: 0 for another
// generation, which is unambiguous, since a started set is never empty. `latest` tells a future generation from a stale
// one. The position of a shared slot's set is its gate: see sharing.p4.
struct position_t {
    bit<32> generation;      // the one that starts the set afresh; of a shared slot: collisions
    bit<32> epoch;           // of a shared slot: owner
}
struct ranks_t {
    bit<32> generation;
    bit<32> seen;
}

#define AT place.get({meta.slot[SLOT_BITS - 1:0], hdr.netfold.generation[0:0]})

control Slot(inout ingress_headers_t hdr, inout ingress_metadata_t meta) {
    Register<position_t, index_t>(SLOT_SETS, {CREDIT, 0}) positions;
    Register<ranks_t, index_t>(SLOT_SETS) bitmaps;
    Register<bit<32>, index_t>(SLOT_SETS) latest;
    Hash<index_t>(HashAlgorithm_t.IDENTITY) place;

    // A contribution or chunk. Every other generation is the other set's.
    RegisterAction<position_t, index_t, bit<1>>(positions) advancing = {
        void apply(inout position_t set, out bit<1> fresh) {
            fresh = 0;
            if (set.epoch != hdr.netfold.epoch || set.generation == hdr.netfold.generation) {
                fresh = 1;
                set.generation = hdr.netfold.generation + 2;
                set.epoch = hdr.netfold.epoch;
            }
        }
    };
    // What may not start a set: 1 when it is another epoch's.
    RegisterAction<position_t, index_t, bit<1>>(positions) looking = {
        void apply(inout position_t set, out bit<1> other) {
            other = 0;
            if (set.epoch != hdr.netfold.epoch) {
                other = 1;
            }
        }
    };
    RegisterAction<position_t, index_t, bit<4>>(positions) claiming = {
        void apply(inout position_t set, out bit<4> held) {
            held = this.predicate(set.epoch == hdr.netfold.epoch, set.generation >= CREDIT);
            if (set.epoch == hdr.netfold.epoch || set.generation >= CREDIT) {
                set.epoch = hdr.netfold.epoch;
                set.generation = 0;
            } else {
                set.generation = set.generation + 1;
            }
        }
    };
    RegisterAction<position_t, index_t, bit<1>>(positions) releasing = {
        void apply(inout position_t set) {
            if (set.epoch == hdr.netfold.epoch) {
                set.epoch = 0;
                set.generation = CREDIT;
            }
        }
    };

    action advance() { meta.fresh = advancing.execute(AT); }
    action look()    { meta.fresh = looking.execute(AT); }
    action claim()   { meta.claim = claiming.execute(AT); }
    action release() { releasing.execute(AT); }
    table position {
        key = {
            meta.flaw              : exact;
            meta.role              : exact;
            hdr.netfold.flags[0:0] : ternary @name("again");
        }
        actions = { advance; look; claim; release; NoAction; }
        const default_action = NoAction();
        const entries = {
            (0, ROLE_CONTRIBUTE, _): advance();
            (0, ROLE_UP, _): advance();
            (0, ROLE_CHUNK, _): advance();
            (0, ROLE_DOWN, _): look();
            (0, ROLE_NACK, _): look();
            (0, ROLE_SHARED, 1): look();
            (0, ROLE_SHARED, 0): claim();
            (0, ROLE_RELAY, _): release();
        }
        size = 16;
    }

    action drop() {
        meta.role = ROLE_NONE;
        meta.verdict = VERDICT_DROP;
        meta.event = meta.flaw;
    }

    RegisterAction<ranks_t, index_t, bit<32>>(bitmaps) starting = {
        void apply(inout ranks_t set) {
            set.generation = hdr.netfold.generation;
            set.seen = meta.bits;
        }
    };
    RegisterAction<ranks_t, index_t, bit<32>>(bitmaps) joining = {
        void apply(inout ranks_t set, out bit<32> before) {
            before = 0;
            if (set.generation == hdr.netfold.generation) {
                before = set.seen;
                if (set.seen != DONE) {
                    set.seen = set.seen | meta.bits;
                }
            }
        }
    };
    // The bits of a packet that is no rank's are ALL_THERE.
    RegisterAction<ranks_t, index_t, bit<32>>(bitmaps) finishing = {
        void apply(inout ranks_t set, out bit<32> before) {
            before = 0;
            if (set.generation == hdr.netfold.generation && set.seen == meta.bits) {
                before = set.seen;
                set.seen = DONE;
            }
        }
    };
    RegisterAction<ranks_t, index_t, bit<32>>(bitmaps) peeking = {
        void apply(inout ranks_t set, out bit<32> before) {
            before = 0;
            if (set.generation == hdr.netfold.generation) {
                before = set.seen;
            }
        }
    };

    // Serial number arithmetic (RFC 1982) in the signed form.
    RegisterAction<bit<32>, index_t, bit<1>>(latest) keeping = {
        void apply(inout bit<32> generation) { generation = hdr.netfold.generation; }
    };
    RegisterAction<bit<32>, index_t, bit<1>>(latest) comparing = {
        void apply(inout bit<32> generation, out bit<1> newer) {
            newer = 0;
            if ((int<32>) (hdr.netfold.generation - generation) > 0) {
                newer = 1;
            }
        }
    };
    action keep()    { keeping.execute(AT); }
    action compare() { meta.newer = comparing.execute(AT); }
    table order {
        key = {
            meta.role  : exact;
            meta.fresh : exact;
        }
        actions = { keep; compare; NoAction; }
        const default_action = NoAction();
        const entries = {
            (ROLE_CONTRIBUTE, 1): keep();
            (ROLE_UP, 1): keep();
            (ROLE_CHUNK, 1): keep();
            (ROLE_CONTRIBUTE, 0): compare();
            (ROLE_UP, 0): compare();
            (ROLE_CHUNK, 0): compare();
        }
        size = 16;
    }

    action start()  { starting.execute(AT); meta.started = 1; }
    action join()   { meta.seen = joining.execute(AT); }
    action finish() { meta.seen = finishing.execute(AT); }
    action peek()   { meta.seen = peeking.execute(AT); }
    table bitmap {
        key = {
            meta.role  : exact;
            meta.fresh : ternary;
            meta.claim : ternary;
        }
        actions = { start; join; finish; peek; NoAction; }
        const default_action = NoAction();
        const entries = {
            (ROLE_CONTRIBUTE, 1, _): start();
            (ROLE_UP, 1, _): start();
            (ROLE_CHUNK, 1, _): start();
            (ROLE_CONTRIBUTE, 0, _): join();
            (ROLE_UP, 0, _): join();
            (ROLE_CHUNK, 0, _): peek();
            (ROLE_NACK, 0, _): peek();
            (ROLE_DOWN, 0, _): finish();
            (ROLE_SHARED, 0, HELD_FREE): start();
            (ROLE_SHARED, 0, HELD_OWN): join();
            (ROLE_SHARED, 0, HELD_OWN_FREE): join();
            (ROLE_SHARED, 0, 0): join();    // sent again: looked, and it is its own
        }
        size = 16;
    }

    action add_up() { meta.bits = meta.member | ~meta.full; }

    apply {
        add_up();
        position.apply();
        if (meta.flaw != 0) {
            drop();
        }
        bitmap.apply();
        order.apply();
    }
}
