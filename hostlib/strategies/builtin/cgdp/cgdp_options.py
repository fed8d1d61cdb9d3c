"""Options after cgdp's name. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.errors import RunError
from hostlib.strategies.builtin.cgdp.cost_model import ACCUMULATION_GB_S, BROADCAST_GB_S, SYNCHRONISATION_US, Search


@dataclass(frozen=True, slots=True)
class Options:
    """Options after the name. The rates only apply to simulation and replay; a real run takes the time it takes.

    Attributes:
        chunk: layers per chunk; 0: found in the first steps, with the paper's step, range and interval.
        sync: time that handing over a chunk delays back-propagation, in microseconds.
        accumulation: rate at which the host receives and adds, in GB/s.
        broadcast: rate at which sums go back to each worker, in GB/s.

    Raises:
        RunError: a value is out of range.
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
            raise RunError(f"cgdp:chunk must be at least 0 (0: found in the first steps), not {self.chunk}")
        if not (0 <= self.sync < float("inf") and self.accumulation > 0 and self.broadcast > 0):
            raise RunError("cgdp:accumulation and cgdp:broadcast must be above 0, and cgdp:sync at least 0")
        Search(self.step, self.range, self.interval)
