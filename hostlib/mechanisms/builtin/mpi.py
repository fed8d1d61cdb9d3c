"""mpi: the MPI library's own all-reduce on the CPU, as a yardstick."""

from hostlib.mechanisms.mechanism_spec import MechanismSpec

SPEC = MechanismSpec(
    "mpi",
    "the MPI library's own all-reduce, as a yardstick (no schedule of ours)",
    transport="mpi",
)
