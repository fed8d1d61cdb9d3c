"""Networks to run experiments in: the ways to make a topology (hostlib/topology) real."""
