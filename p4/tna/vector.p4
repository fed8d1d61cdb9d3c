// The elements (rule 7): one stateful unit each, or one for two, all under the same address. What a packet does to
// them each table sees for itself, so that no stage is spent on telling them.
//
// With 64 elements in a Tofino 1 a unit holds e and e + 32, and a packet can read one of them: the low half as it comes
// by, the high half when a result comes by again (harvest).

// (role, started, seen, member) -> what to do, for a register that is stored, added to and loaded. The roles 0 to 3 are
// contributions.
#define REPEATED(r) (0 &&& 0xfc, 0, (32w1 << r) &&& (32w1 << r), (32w1 << r) &&& (32w1 << r)): NoAction();
#define WORK(store, add, load) \
    (_, 1, _, _): store; \
    (_, 0, 0, _): NoAction(); \
    (ROLE_DOWN, 0, _, _): store; \
    (ROLE_NACK, 0, DONE, _): load; \
    (0 &&& 0xfc, 0, DONE, _): load; \
    (0 &&& 0xfc, 0, ALL_THERE, _): load; \
    REPEATED(0) REPEATED(1) REPEATED(2) REPEATED(3) REPEATED(4) REPEATED(5) REPEATED(6) REPEATED(7) REPEATED(8) \
    REPEATED(9) REPEATED(10) REPEATED(11) REPEATED(12) REPEATED(13) REPEATED(14) REPEATED(15) REPEATED(16) \
    REPEATED(17) REPEATED(18) REPEATED(19) REPEATED(20) REPEATED(21) REPEATED(22) REPEATED(23) REPEATED(24) \
    REPEATED(25) REPEATED(26) REPEATED(27) REPEATED(28) REPEATED(29) REPEATED(30) \
    (0 &&& 0xfc, 0, _, _): add;
#define WORK_KEY \
    meta.role : ternary; meta.started : ternary; meta.seen : ternary; meta.member : ternary;

// One 32-bit field of the header, summed.
#define SUMMED(name, field) \
    Register<bit<32>, index_t>(SLOT_SETS) stored_##name; \
    RegisterAction<bit<32>, index_t, bit<32>>(stored_##name) storing_##name = { \
        void apply(inout bit<32> value) { value = field; } \
    }; \
    RegisterAction<bit<32>, index_t, bit<32>>(stored_##name) adding_##name = { \
        void apply(inout bit<32> value, out bit<32> sum) { value = value + field; sum = value; } \
    }; \
    RegisterAction<bit<32>, index_t, bit<32>>(stored_##name) loading_##name = { \
        void apply(inout bit<32> value, out bit<32> same) { same = value; } \
    }; \
    action store_##name() { storing_##name.execute(AT); } \
    action add_##name()   { field = adding_##name.execute(AT); } \
    action load_##name()  { field = loading_##name.execute(AT); } \
    table work_##name { \
        key = { WORK_KEY } \
        actions = { store_##name; add_##name; load_##name; NoAction; } \
        const default_action = NoAction(); \
        const entries = { WORK(store_##name(), add_##name(), load_##name()) } \
        size = 64; \
    }

// Two of them in one unit.
#define SUMMED_PAIR(name, one, two) \
    Register<pair_t, index_t>(SLOT_SETS) stored_##name; \
    RegisterAction<pair_t, index_t, bit<32>>(stored_##name) storing_##name = { \
        void apply(inout pair_t value) { value.low = one; value.high = two; } \
    }; \
    RegisterAction<pair_t, index_t, bit<32>>(stored_##name) adding_##name = { \
        void apply(inout pair_t value, out bit<32> sum) { \
            value.low = value.low + one; value.high = value.high + two; sum = value.low; } \
    }; \
    RegisterAction<pair_t, index_t, bit<32>>(stored_##name) loading_##name = { \
        void apply(inout pair_t value, out bit<32> same) { same = value.low; } \
    }; \
    RegisterAction<pair_t, index_t, bit<32>>(stored_##name) harvesting_##name = { \
        void apply(inout pair_t value, out bit<32> same) { same = value.high; } \
    }; \
    action store_##name()   { storing_##name.execute(AT); } \
    action add_##name()     { one = adding_##name.execute(AT); } \
    action load_##name()    { one = loading_##name.execute(AT); } \
    action harvest_##name() { two = harvesting_##name.execute(AT); } \
    table work_##name { \
        key = { WORK_KEY } \
        actions = { store_##name; add_##name; load_##name; harvest_##name; NoAction; } \
        const default_action = NoAction(); \
        const entries = { \
            (ROLE_HARVEST, _, _, _): harvest_##name(); \
            WORK(store_##name(), add_##name(), load_##name()) \
        } \
        size = 64; \
    }

struct pair_t {
    bit<32> low;
    bit<32> high;
}

#if ONE_PASS
#define ELEMENT(i) SUMMED(e##i, hdr.vector.e##i)
#define EACH(M) FOR_EACH_ELEMENT(M)
#else
#define ELEMENT(i, j) SUMMED_PAIR(e##i, hdr.vector.e##i, hdr.vector.e##j)
#define EACH(M) FOR_32_PAIRS(M)
#endif
#define APPLY(i, ...) work_e##i.apply();

control Vector(inout ingress_headers_t hdr, inout ingress_metadata_t meta) {
    Hash<index_t>(HashAlgorithm_t.IDENTITY) place;

    EACH(ELEMENT)
    SUMMED(check, hdr.netfold.check)

    apply {
        EACH(APPLY)
        work_check.apply();
    }
}
