"""What `hostlib bench` measures: a mechanism's collective, or its reduce-scatter and all-gather at once. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hostlib.errors import HostlibError, UnknownNameError
from hostlib.mechanisms.mechanism import Mechanism, find
from hostlib.schedules.contract import Collective

ALL_REDUCE = Collective.ALL_REDUCE.value
BOTH = "rs+ag"
MEASURED = {
    ALL_REDUCE: (Collective.ALL_REDUCE,),
    "reduce_scatter": (Collective.REDUCE_SCATTER,),
    "all_gather": (Collective.ALL_GATHER,),
    "broadcast": (Collective.BROADCAST,),
    "reduce": (Collective.REDUCE,),
    "all_to_all": (Collective.ALL_TO_ALL,),
    BOTH: (Collective.REDUCE_SCATTER, Collective.ALL_GATHER),
}

SUMMED = {ALL_REDUCE, "reduce_scatter", BOTH}  # by a switch, with a window of packets outstanding
WHOLE = {ALL_REDUCE, "broadcast", "reduce"}  # of tensors that are not cut into shards


@dataclass(frozen=True, slots=True)
class BenchCell:
    """A mechanism and what it does, by names."""

    mechanism: str
    collective: str = ALL_REDUCE

    @property
    def parts(self) -> tuple[Mechanism, ...]:
        """The mechanism for each collective that is measured at once."""
        return tuple(find(self.mechanism).of(each) for each in MEASURED[self.collective])

    @property
    def needs_fabric(self) -> bool:
        return any(part.needs_fabric for part in self.parts)

    @property
    def sends_messages(self) -> bool:
        return any(part.sends_messages for part in self.parts)

    @property
    def servers(self) -> int:
        return max(part.servers for part in self.parts)

    def __str__(self) -> str:
        return self.mechanism if self.collective == ALL_REDUCE else f"{self.collective} by {self.mechanism}"


def can_measure(mechanism: Mechanism, collective: str) -> bool:
    """Whether ranks can do it; only all-reduces have servers beside the ranks."""
    if not set(MEASURED[collective]) <= set(mechanism.collectives):
        return False
    parts = [mechanism.of(each) for each in MEASURED[collective]]
    return collective == ALL_REDUCE or all(part.runs_on_hosts and not part.servers for part in parts)


def cells_of(mechanisms: Iterable[str], collectives: Iterable[str]) -> tuple[BenchCell, ...]:
    """Each mechanism with those of the collectives that it can do.

    Raises:
        UnknownNameError: there is no such mechanism, or no such collective is measured.
        HostlibError: a mechanism can do none of them.
    """
    asked = tuple(collectives)
    if (unknown := next((name for name in asked if name not in MEASURED), None)) is not None or not asked:
        raise UnknownNameError("collective", unknown or "", MEASURED)
    cells: list[BenchCell] = []
    for name in mechanisms:
        mine = [BenchCell(name, collective) for collective in asked if can_measure(find(name), collective)]
        if not mine:
            legal = ", ".join(each for each in MEASURED if can_measure(find(name), each))
            raise HostlibError(f"{name} does no {', '.join(asked)} between ranks alone; legal are {legal}")
        cells += mine
    return tuple(cells)


def bus_factor(collective: str, ranks: int) -> float:
    """busbw over algbw, as nccl-tests has it: what a link carries of the tensor in a ring."""
    share = (ranks - 1) / ranks
    return {ALL_REDUCE: 2 * share, BOTH: 2 * share, "broadcast": 1.0, "reduce": 1.0}.get(collective, share)
