"""mpi: the MPI library's own all-reduce on the CPU, as a yardstick."""

NAME = "mpi"
SUMMARY = "the MPI library's own all-reduce, as a yardstick (no schedule of ours)"
TRANSPORT = "mpi"
