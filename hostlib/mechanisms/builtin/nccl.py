"""nccl: NCCL's own all-reduce of CUDA tensors, as a yardstick."""

from hostlib.mechanisms.mechanism_spec import MechanismSpec

SPEC = MechanismSpec(
    "nccl",
    "NCCL's own all-reduce of CUDA tensors, as a yardstick (no schedule of ours)",
    device="cuda",
)
