"""gloo: PyTorch's own collectives on the CPU, as a yardstick."""

from hostlib.mechanisms.mechanism_spec import MechanismSpec
from hostlib.schedules.contract import Collective

SPEC = MechanismSpec(
    "gloo",
    "the library's own collectives, as a yardstick (no schedule of ours)",
    collectives=dict.fromkeys(each for each in Collective if each is not Collective.ALL_REDUCE),
)
