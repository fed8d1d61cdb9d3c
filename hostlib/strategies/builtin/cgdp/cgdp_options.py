"""What may follow cgdp's name. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import RunError
from hostlib.strategies.builtin.cgdp.cost_model import ACCUMULATION_GB_S, BROADCAST_GB_S, SYNCHRONISATION_US, Search


@dataclass(frozen=True, slots=True)
class Options:
    """What may follow its name.

    Attributes:
        chunk: layers in a chunk; 0: the first steps find it, with the paper's step, range and interval.
        sync: microseconds for which handing a chunk over holds back-propagation up,
        accumulation: GB/s that the host takes in and adds,
        broadcast: GB/s that go back to each worker: of what is simulated or replayed; where it runs, it takes what it
            takes.

    Raises:
        RunError: a number that makes no sense.
    """

    chunk: int = 0
    step: int = 10
    range: int = 5
    interval: int = 10
    sync: float = SYNCHRONISATION_US
    accumulation: float = ACCUMULATION_GB_S
    broadcast: float = BROADCAST_GB_S

    def __post_init__(self) -> None:
        if self.chunk < 0:
            raise RunError(f"cgdp:chunk must be 0, for the first steps to find it, or above, not {self.chunk}")
        if not (0 <= self.sync < float("inf") and self.accumulation > 0 and self.broadcast > 0):
            raise RunError("cgdp:accumulation and cgdp:broadcast must be above 0, and cgdp:sync not below")
        Search(self.step, self.range, self.interval)
