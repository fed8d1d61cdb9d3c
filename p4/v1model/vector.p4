// The elements: one register array per element, all under the same index, so that one packet touches one row.
#define VALUES(i) register<bit<32>>(SLOT_SETS) values_##i;
#define STORE(i)  values_##i.write(meta.set, hdr.vector.e##i);
#define LOAD(i)   values_##i.read(hdr.vector.e##i, meta.set);
#define ADD(i)    values_##i.read(value, meta.set); \
                  hdr.vector.e##i = hdr.vector.e##i + value; \
                  values_##i.write(meta.set, hdr.vector.e##i);

control Vector(inout headers_t hdr, inout metadata_t meta) {
    FOR_EACH_ELEMENT(VALUES)

    action store() {
        FOR_EACH_ELEMENT(STORE)
    }
    action load() {
        FOR_EACH_ELEMENT(LOAD)
    }
    action add() {
        bit<32> value;
        FOR_EACH_ELEMENT(ADD)
    }

    apply {
        if (meta.verdict == VERDICT_FRESH) {
            store();
        } else if (meta.verdict == VERDICT_ADD) {
            add();
        } else if (meta.verdict == VERDICT_ANSWER) {
            load();
        }
    }
}

#undef VALUES
#undef STORE
#undef LOAD
#undef ADD
