"""MPI programs over netfold, unmodified: a PMPI library, and the process beside each rank that does its collectives."""
