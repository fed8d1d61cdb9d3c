"""Start, watch and stop the ranks of a run."""
