// Shared slots: the gate is slot.p4's `claiming`, `looking` and `releasing`, a set's position is (collisions, owner).
// Collisions count up to CREDIT, from when on the set is free: so what a job without shared slots left behind is an
// owner that is gone, and every set starts free.
//
// The stateful unit says which of the two comparisons (own, free) held as one of four bits.
const bit<4> HELD_NEITHER  = 1;
const bit<4> HELD_OWN      = 2;
const bit<4> HELD_FREE     = 4;
const bit<4> HELD_OWN_FREE = 8;
