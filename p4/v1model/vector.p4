// The elements and their check word (rule 7): one register array each, all under the same index, so that one packet
// touches one row.
#define VALUES(i) register<bit<32>>(SLOT_SETS) values_##i;
#define STORE(i)  values_##i.write(meta.set, hdr.vector.e##i);
#define LOAD(i)   values_##i.read(hdr.vector.e##i, meta.set);
#define ADD(i)    values_##i.read(value, meta.set); \
                  hdr.vector.e##i = hdr.vector.e##i + value; \
                  values_##i.write(meta.set, hdr.vector.e##i);

control Vector(inout headers_t hdr, inout metadata_t meta) {
    FOR_EACH_ELEMENT(VALUES)
    register<bit<32>>(SLOT_SETS) checks;

    action store() {
        FOR_EACH_ELEMENT(STORE)
        checks.write(meta.set, hdr.netfold.check);
    }
    action load() {
        FOR_EACH_ELEMENT(LOAD)
        checks.read(hdr.netfold.check, meta.set);
    }
    action add() {
        bit<32> value;
        FOR_EACH_ELEMENT(ADD)
        checks.read(value, meta.set);
        hdr.netfold.check = hdr.netfold.check + value;
        checks.write(meta.set, hdr.netfold.check);
    }

    apply {
        if (meta.work == WORK_STORE) {
            store();
        } else if (meta.work == WORK_ADD) {
            add();
        } else if (meta.work == WORK_LOAD) {
            load();
        }
    }
}

#undef VALUES
#undef STORE
#undef LOAD
#undef ADD
