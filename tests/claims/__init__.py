"""The numbers of README and docs, each compared with a results file; what is deterministic is computed again."""
