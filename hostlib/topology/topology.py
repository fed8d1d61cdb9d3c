"""Networks of hosts, switches and cables, independent of how they are realised."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from hostlib.errors import HostlibError
from hostlib.protocol.framing import EMULATED, LEGAL_ELEMENTS, MTU, mtu_for
from hostlib.topology.switch_tree import SwitchTree

LONGEST_DELAY_NS = 3600 * 10**9
QUEUE_FRAMES = 1000
MOST_PARALLEL = 256
# Of a TCP connection between emulated hosts, bytes that its receiver has not acknowledged, at most. With many hosts it is
# less: what finds room in the queue to one of them when all others send to it at once.
WINDOW_BYTES = 131072
SWITCH_NAME = re.compile("[a-z][a-z0-9]{0,9}")  # Part of an interface's name: at most 15 characters on Linux.
RESERVED = ("control", "controller")


class TopologyError(HostlibError):
    """An impossible network, or one that cannot be realised this way."""


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable between a host or switch (`lower`) and the switch above it (`upper`).

    Attributes:
        rate_bits_s: of frames, in each direction; None for unlimited.
        delay_ns: of a frame, in each direction.
        loss: probability that a frame is lost, in each direction.
        queue: frames that may wait at each end; more are dropped.
        mark: frames in a switch's queue from which and to which it marks some (ECN); None for never.
        parallel: so many equal cables side by side, of a switch, each with this rate. A stream between two hosts uses
            one of them, by a hash (equal-cost multipath); what switches sum and multicast uses the first.

    Raises:
        TopologyError: a value is out of range.
    """

    lower: str
    upper: str
    rate_bits_s: float | None = None
    delay_ns: float = 0
    loss: float = 0.0
    queue: int = QUEUE_FRAMES
    parallel: int = 1
    mark: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        where = f"link {self.lower}-{self.upper}"
        if self.rate_bits_s is not None and not 1 <= self.rate_bits_s < float("inf"):
            raise TopologyError(f"{where}: rate must be at least 1 bit/s, not {self.rate_bits_s}")
        if not 0 <= self.delay_ns <= LONGEST_DELAY_NS:
            raise TopologyError(f"{where}: delay must be in 0..{LONGEST_DELAY_NS} ns (an hour), not {self.delay_ns}")
        if not 0.0 <= self.loss < 1.0:
            raise TopologyError(f"{where}: loss {self.loss} is not a probability in [0, 1)")
        if self.queue < 1:
            raise TopologyError(f"{where}: queue must be at least 1 frame, not {self.queue}")
        if self.mark is not None and self.rate_bits_s is None:
            raise TopologyError(f"{where}: mark needs a rate: nothing waits for a link without one")
        if not 1 <= self.parallel <= MOST_PARALLEL:
            raise TopologyError(f"{where}: parallel cables must be 1 to {MOST_PARALLEL}, not {self.parallel}")

    def as_json(self) -> dict[str, Any]:
        names = ["lower", "upper", "rate_bits_s", "delay_ns", "loss", "queue"]
        names += ["parallel"] if self.parallel > 1 else []
        names += ["mark"] if self.mark is not None else []
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Topology:
    """A tree of switches with hosts on it: workers `worker0`, ... and parameter servers `server0`, ...

    Attributes:
        switches: their names, parents before their children.
        cables: one for each host, and for each switch but the first.
        elements: in a packet of the switches' program; None for the controller's own choice.

    Raises:
        TopologyError: it is not such a tree.
    """

    workers: int
    servers: int
    switches: tuple[str, ...]
    cables: tuple[Cable, ...]
    elements: int | None = None
    _above: dict[str, Cable] = field(init=False, repr=False, compare=False)
    _below: dict[str, list[Cable]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.workers < 1 or self.servers < 0:
            raise TopologyError(f"at least 1 worker and 0 servers are needed, not {self.workers} and {self.servers}")
        if not self.switches:
            raise TopologyError("at least 1 switch is needed, the root")
        for name in self.switches:
            if not SWITCH_NAME.fullmatch(name) or name in RESERVED:
                raise TopologyError(
                    f"a switch cannot be called {name!r}: a small letter, then up to 9 small letters and digits, "
                    f"and not {' or '.join(RESERVED)}"
                )
        if self.elements is not None and self.elements not in LEGAL_ELEMENTS:
            legal = ", ".join(map(str, LEGAL_ELEMENTS))
            raise TopologyError(f"elements must be one of {legal}, not {self.elements}")
        self._check_cables()
        object.__setattr__(self, "_above", {cable.lower: cable for cable in self.cables})
        below: dict[str, list[Cable]] = {name: [] for name in self.switches}
        for cable in self.cables:
            below[cable.upper].append(cable)
        object.__setattr__(self, "_below", below)
        self._check_tree()

    def _check_cables(self) -> None:
        names, switches = {*self.hosts, *self.switches}, set(self.switches)
        repeated = first_repeated((*self.hosts, *self.switches))
        if repeated is not None:
            raise TopologyError(f"two nodes are called {repeated}")
        for cable in self.cables:
            unknown = next((name for name in (cable.lower, cable.upper) if name not in names), None)
            if unknown is not None:
                raise TopologyError(f"link {cable.lower}-{cable.upper}: there is no {unknown}; {self._nodes()}")
            if cable.parallel > 1 and cable.lower not in switches:
                raise TopologyError(f"link {cable.lower}-{cable.upper}: a host has one cable, not {cable.parallel}")
            if cable.upper not in switches:
                raise TopologyError(f"link {cable.lower}-{cable.upper}: its upper end is not a switch; {self._nodes()}")
        repeated = first_repeated(cable.lower for cable in self.cables)
        if repeated is not None:
            raise TopologyError(f"{repeated} has two links up; in a tree each node has one")

    def _check_tree(self) -> None:
        if self.root in self._above:
            raise TopologyError(f"{self.root} is the first switch, so the root, and has no link up")
        for name in (*self.hosts, *self.switches[1:]):
            if name not in self._above:
                raise TopologyError(f"{name} has no link up to a switch")
        places = {name: place for place, name in enumerate(self.switches)}
        for name in self.switches[1:]:
            parent = self._above[name].upper
            if places[parent] >= places[name]:
                raise TopologyError(f"{name} comes before its parent {parent}: name parents first")

    def _nodes(self) -> str:
        servers = f", server0..{self.servers - 1}" if self.servers else ""
        return f"there are worker0..{self.workers - 1}{servers} and the switches {', '.join(self.switches)}"

    @property
    def root(self) -> str:
        return self.switches[0]

    @property
    def mtu(self) -> int:
        """Of all cables, in bytes of an IP packet: as much as the switches' packets need."""
        return MTU if self.elements is None else mtu_for(self.elements)

    @property
    def tcp_window_bytes(self) -> int:
        """Of a TCP connection between two emulated hosts."""
        segment_bytes, _ = replace(EMULATED, mtu=self.mtu).tcp_segment()
        return min(WINDOW_BYTES, QUEUE_FRAMES * segment_bytes // max(1, len(self.hosts) - 1))

    @property
    def hosts(self) -> tuple[str, ...]:
        """Workers, then servers."""
        return host_names(self.workers, self.servers)

    @property
    def tree(self) -> SwitchTree:
        """The tree of the switches."""
        above = {name: self._above[name].upper if name in self._above else None for name in self.switches}
        return SwitchTree(above)

    def above(self, name: str) -> Cable | None:
        """The cable above a node; None for the root."""
        return self._above.get(name)

    def switch_of(self, host: str) -> str:
        """The switch that a host is on."""
        return self._above[host].upper

    def below(self, switch: str) -> list[Cable]:
        """The cables below a switch, in the order of its ports."""
        return list(self._below[switch])

    def dilated(self, factor: float) -> Topology:
        """The same network, slowed down by `factor`.

        Raises:
            TopologyError: the factor is not above 0, or a value goes out of range.
        """
        if not 0 < factor < float("inf"):
            raise TopologyError(f"dilation must be above 0, not {factor}")
        return replace(
            self,
            cables=tuple(
                replace(
                    cable,
                    rate_bits_s=None if cable.rate_bits_s is None else cable.rate_bits_s / factor,
                    delay_ns=round(cable.delay_ns * factor),
                )
                for cable in self.cables
            ),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "workers": self.workers,
            "servers": self.servers,
            "switches": list(self.switches),
            "links": [cable.as_json() for cable in self.cables],
            **({} if self.elements is None else {"elements": self.elements}),
        }


def host_names(workers: int, servers: int) -> tuple[str, ...]:
    return (*(f"worker{n}" for n in range(workers)), *(f"server{n}" for n in range(servers)))


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs for the second time."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
