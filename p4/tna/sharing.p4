// Shared slots: the gate that slot.p4's `claiming` and `looking` are, in words of their outcome. The stateful unit says
// which of the two comparisons (own, free) held as one of four bits.
const bit<4> HELD_NEITHER  = 1;
const bit<4> HELD_OWN      = 2;
const bit<4> HELD_FREE     = 4;
const bit<4> HELD_OWN_FREE = 8;
