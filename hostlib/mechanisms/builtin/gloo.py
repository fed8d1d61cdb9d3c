"""gloo: PyTorch's own all-reduce on the CPU, as a yardstick."""

from hostlib.mechanisms.mechanism_spec import MechanismSpec

SPEC = MechanismSpec(
    "gloo",
    "the library's own all-reduce, as a yardstick (no schedule of ours)",
)
