"""Jobs: their ranks, slots, and per-switch shares."""
