// The next block's exponent: the set keeps the maximum over the ranks.
control Exponent(inout ingress_headers_t hdr, inout ingress_metadata_t meta) {
    Hash<index_t>(HashAlgorithm_t.IDENTITY) place;
    Register<bit<32>, index_t>(SLOT_SETS) stored;

    RegisterAction<bit<32>, index_t, bit<32>>(stored) storing = {
        void apply(inout bit<32> value) { value = hdr.netfold.next_exponent; }
    };
    RegisterAction<bit<32>, index_t, bit<32>>(stored) raising = {
        void apply(inout bit<32> value, out bit<32> highest) {
            value = max(value, hdr.netfold.next_exponent);
            highest = value;
        }
    };
    RegisterAction<bit<32>, index_t, bit<32>>(stored) loading = {
        void apply(inout bit<32> value, out bit<32> same) { same = value; }
    };
    action store() { storing.execute(AT); }
    action raise() { hdr.netfold.next_exponent = raising.execute(AT); }
    action load()  { hdr.netfold.next_exponent = loading.execute(AT); }
    table work {
        key = { WORK_KEY }
        actions = { store; raise; load; NoAction; }
        const default_action = NoAction();
        const entries = { WORK(store(), raise(), load()) }
        size = 64;
    }

    apply {
        work.apply();
    }
}
