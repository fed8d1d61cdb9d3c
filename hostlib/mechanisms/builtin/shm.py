"""shm: the host's CPUs add what its workers write to shared memory.

Source: "Involving CPUs into Multi-GPU Deep Learning", section 3.1.
"""

from hostlib.mechanisms.mechanism_spec import MechanismSpec

SPEC = MechanismSpec(
    "shm",
    "the CPUs of the one host that all workers are on, in shared memory (no schedule: no message carries a value)",
    one_host=True,
)
