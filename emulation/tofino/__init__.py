"""The model of Tofino 1 as a switch: our compiled TNA program in it, its tables, multicast groups and ports."""
