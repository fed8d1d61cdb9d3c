"""Where help from the fabric begins or ceases to pay: at which speed of computing, at which bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from simulation.answers.setup import Setup
from simulation.errors import SimulationError
from simulation.simulator.in_threads import in_threads

WIDEST = 64.0  # factors of today's value between which it is looked for
STEPS = 7  # halvings of that range, which leave 7 % of it


@dataclass(frozen=True, slots=True)
class Corrected:
    """What stands for a cell.

    Attributes:
        exposed: the cell's exposed communication over that of its stand-in, which has no jitter and may be smaller.
    """

    setup: Setup
    exposed: float
    # Of the stand-in: its computing and its exposed communication, by both factors. Cells of one stand-in share it.
    _known: dict[tuple[float, float], tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def to(cls, iteration_s: float, setup: Setup, played_s: float) -> Corrected:
        """A stand-in that takes `played_s`, for a cell that takes `iteration_s`."""
        return cls(setup, 1.0, {(1.0, 1.0): _parts(setup, played_s)}).standing_for(iteration_s)

    def standing_for(self, iteration_s: float) -> Corrected:
        """The same stand-in, for another cell: what was played of it is not played again."""
        least, exposed = self._parts(1.0, 1.0)
        return replace(self, exposed=max(0.0, iteration_s - least) / exposed if exposed else 1.0)

    def played_s(self, compute: float, bandwidth: float) -> float:
        """The cell's time with other speeds, by their factors."""
        if not self.setup.is_proportional:
            least, exposed = self._parts(compute, bandwidth)
            return least + self.exposed * exposed
        least, exposed = self._parts(float(f"{compute / bandwidth:.12g}"), 1.0)
        return (least + self.exposed * exposed) / bandwidth

    def _parts(self, compute: float, bandwidth: float) -> tuple[float, float]:
        at = compute, bandwidth
        if at not in self._known:
            other = self.setup.computing(1 / compute).rates(bandwidth, bandwidth)
            self._known[at] = _parts(other, other.played_s())
        return self._known[at]


def _parts(setup: Setup, played_s: float) -> tuple[float, float]:
    """Computing and exposed communication of what takes so long."""
    return setup.compute_s, max(0.0, played_s - setup.compute_s)


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Factors of today's computing speed and bandwidth where the fabric is as fast as the hosts; None: nowhere.

    Attributes:
        pays: whether it is faster today.
    """

    pays: bool
    compute: float | None
    bandwidth: float | None


def break_even(fabric: Sequence[Corrected], hosts: Sequence[Corrected], margin: float) -> BreakEven:
    """Find the factors by bisection; at each, the best of both kinds are compared.

    The faster the workers compute and the slower the links are, the more there is to gain.

    Args:
        fabric, hosts: the best mechanisms of both kinds.
        margin: how many times as fast the fabric must be to pay.
    """

    def pays(compute: float, bandwidth: float) -> bool:
        hosts_s = min(each.played_s(compute, bandwidth) for each in hosts)
        return any(hosts_s >= margin * each.played_s(compute, bandwidth) for each in fabric)

    today = pays(1.0, 1.0)
    slower, faster = (1 / WIDEST, WIDEST) if today else (WIDEST, 1 / WIDEST)

    def compute() -> float | None:
        computes = fabric[0].setup.compute_s > 0
        return _crossing(lambda factor: pays(factor, 1.0), today, slower) if computes else None

    def bandwidth() -> float | None:
        return _crossing(lambda factor: pays(1.0, factor), today, faster)

    return BreakEven(today, *in_threads(lambda find: find(), (compute, bandwidth)))


def _crossing(pays: Callable[[float], bool], today: bool, far: float) -> float | None:
    """Between today's value and the end of the range; None if it pays, or does not, over all of it."""
    try:
        if pays(far) is today:
            return None
        near, beyond = 0.0, math.log(far)
        for _ in range(STEPS):
            middle = (near + beyond) / 2
            near, beyond = (middle, beyond) if pays(math.exp(middle)) is today else (near, middle)
    except SimulationError:  # no such network can be played
        return None
    return math.exp((near + beyond) / 2)
