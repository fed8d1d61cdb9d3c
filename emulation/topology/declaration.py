"""What a network is made of, said once: hosts, switches, and the links between them. How it is made is said elsewhere."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from controller.share import HOSTS_PER_SWITCH
from emulation.errors import EmulationError, PortError
from emulation.switch.port import parse_delay, parse_rate
from simulation.experiment import ROOT_KEYS
from simulation.network import LEAVES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST_HOSTS = 512
LARGEST_SWITCHES = 128
LONGEST_DELAY_NS = 3600 * 10**9
QUEUE_FRAMES = 1000
SWITCH_NAME = re.compile("[a-z][a-z0-9]{0,9}")  # It becomes part of an interface's, of which Linux takes 15 letters.
RESERVED = ("control", "controller")

COMMON = ("kind", "delay", "loss", "queue")
KEYS = {
    "star": COMMON,
    "leaf-spine": (*COMMON, "leaves", "oversubscription"),
    "custom": (*COMMON, "switches", "links"),
}
LINK_KEYS = ("lower", "upper", "rate", "delay", "loss", "queue")


class TopologyError(EmulationError):
    """A network that cannot be, or that cannot be made this way."""


@dataclass(frozen=True, slots=True)
class Link:
    """A cable between a host or switch (`lower`) and the switch above it (`upper`).

    Attributes:
        rate_bits_s: of frames, in each direction; None for as fast as it goes.
        delay_ns: of a frame, in each direction.
        loss: probability that a frame is lost, in each direction.
        queue: frames that may wait to leave at each end; more are dropped.

    Raises:
        TopologyError: a number that no link can have.
    """

    lower: str
    upper: str
    rate_bits_s: float | None = None
    delay_ns: int = 0
    loss: float = 0.0
    queue: int = QUEUE_FRAMES

    def __post_init__(self) -> None:
        where = f"link {self.lower}-{self.upper}"
        if self.rate_bits_s is not None and not 1 <= self.rate_bits_s < float("inf"):
            raise TopologyError(f"{where}: a rate of {self.rate_bits_s} bit/s is not at least 1")
        if not 0 <= self.delay_ns <= LONGEST_DELAY_NS:
            raise TopologyError(f"{where}: a delay of {self.delay_ns} ns is not in 0..{LONGEST_DELAY_NS}, an hour")
        if not 0.0 <= self.loss < 1.0:
            raise TopologyError(f"{where}: loss {self.loss} is not a probability in [0, 1)")
        if self.queue < 1:
            raise TopologyError(f"{where}: a queue of {self.queue} frames is not at least 1")


@dataclass(frozen=True, slots=True)
class Topology:
    """A tree of switches with hosts on it: `worker0`, `worker1`, ... and `server0`, ..., which sum for others.

    Attributes:
        switches: their names, parents before their children.
        links: one for each host, and for each switch but the first.

    Raises:
        TopologyError: it is not such a tree, or larger than addresses or the P4 program allow.
    """

    workers: int
    servers: int
    switches: tuple[str, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_tree()
        for switch in self.switches:
            members = [link.lower for link in self.below(switch) if not link.lower.startswith("server")]
            if len(members) > HOSTS_PER_SWITCH:
                raise TopologyError(
                    f"{switch} has {len(members)} workers and switches below it; "
                    f"a switch sums at most {HOSTS_PER_SWITCH}: spread them over more leaves"
                )

    def _check_numbers(self) -> None:
        if self.workers < 1 or self.servers < 0 or self.workers + self.servers > LARGEST_HOSTS:
            raise TopologyError(
                f"{self.workers} workers and {self.servers} servers: at least 1 worker, no fewer than 0 servers, "
                f"and at most {LARGEST_HOSTS} together"
            )
        if not 1 <= len(self.switches) <= LARGEST_SWITCHES:
            raise TopologyError(f"{len(self.switches)} switches are not in 1..{LARGEST_SWITCHES}")
        wrong = next((name for name in self.switches if not SWITCH_NAME.fullmatch(name) or name in RESERVED), None)
        if wrong is not None:
            raise TopologyError(
                f"a switch cannot be called {wrong!r}: a small letter, then up to 9 small letters and digits, "
                f"and not {' or '.join(RESERVED)}"
            )

    def _check_tree(self) -> None:
        names = (*self.hosts, *self.switches)
        twice = _repeated(names)
        if twice is not None:
            raise TopologyError(f"two nodes are called {twice}")
        for link in self.links:
            unknown = next((name for name in (link.lower, link.upper) if name not in names), None)
            if unknown is not None:
                raise TopologyError(f"link {link.lower}-{link.upper}: there is no {unknown}; {_known(self)}")
            if link.upper not in self.switches:
                raise TopologyError(f"link {link.lower}-{link.upper}: its upper end is no switch; {_known(self)}")
        twice = _repeated(link.lower for link in self.links)
        if twice is not None:
            raise TopologyError(f"{twice} has two links up; this is to be a tree, where each node has one")
        places = {name: place for place, name in enumerate(self.switches)}
        parents = {link.lower: link.upper for link in self.links}
        if self.root in parents:
            raise TopologyError(f"{self.root} is the first switch, so the root, and has no link up")
        for name in names:
            if name != self.root and name not in parents:
                raise TopologyError(f"{name} has no link up to a switch")
            if name in places and name != self.root and places[parents[name]] >= places[name]:
                raise TopologyError(f"{name} comes before its parent {parents[name]}: name parents first")
            if name.startswith("server") and name in self.hosts and parents[name] != self.root:
                raise TopologyError(f"{name} is on {parents[name]}; servers are on the root, {self.root}")

    @property
    def root(self) -> str:
        return self.switches[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        """Workers, then servers."""
        return host_names(self.workers, self.servers)

    def above(self, name: str) -> Link | None:
        """The link up; None for the root."""
        return next((link for link in self.links if link.lower == name), None)

    def below(self, switch: str) -> list[Link]:
        """The links down, in the order of the switch's ports."""
        return [link for link in self.links if link.upper == switch]

    def dilated(self, factor: float) -> Topology:
        """The same network in a time that runs `factor` times slower.

        Raises:
            TopologyError: the factor is not above 0, or a number becomes impossible.
        """
        if not 0 < factor < float("inf"):
            raise TopologyError(f"a dilation of {factor} is not above 0")
        return replace(
            self,
            links=tuple(
                replace(
                    link,
                    rate_bits_s=None if link.rate_bits_s is None else link.rate_bits_s / factor,
                    delay_ns=round(link.delay_ns * factor),
                )
                for link in self.links
            ),
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def host_names(workers: int, servers: int) -> tuple[str, ...]:
    return (*(f"worker{n}" for n in range(workers)), *(f"server{n}" for n in range(servers)))


def _repeated(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _known(topology: Topology) -> str:
    servers = f", server0..{topology.servers - 1}" if topology.servers else ""
    return f"there are worker0..{topology.workers - 1}{servers} and the switches {', '.join(topology.switches)}"


# ---- the usual ones ---------------------------------------------------------------------------------------------


def star(
    workers: int,
    servers: int = 0,
    rate_bits_s: float | None = None,
    delay_ns: int = 0,
    loss: float = 0.0,
    queue: int = QUEUE_FRAMES,
) -> Topology:
    """Every host on one switch, called `switch`.

    Raises:
        TopologyError: see Topology.
    """
    hosts = host_names(workers, servers)
    links = tuple(Link(name, "switch", rate_bits_s, delay_ns, loss, queue) for name in hosts)
    return Topology(workers, servers, ("switch",), links)


def leaf_spine(
    workers: int,
    leaves: int = LEAVES,
    servers: int = 0,
    rate_bits_s: float | None = None,
    oversubscription: float = 1.0,
    delay_ns: int = 0,
    loss: float = 0.0,
    queue: int = QUEUE_FRAMES,
) -> Topology:
    """Workers spread over leaves `leaf0`, ..., whose uplinks meet in one `spine`; servers are on that.

    Args:
        oversubscription: what a full leaf's workers may send together, as a multiple of its uplink's rate.

    Raises:
        TopologyError: see Topology.
    """
    if not 1 <= leaves <= workers:
        raise TopologyError(f"{leaves} leaves for {workers} workers: at least 1, and a worker on each")
    if not 0 < oversubscription < float("inf"):
        raise TopologyError(f"an oversubscription of {oversubscription} is not above 0")
    most = -(-workers // leaves)
    up_bits_s = None if rate_bits_s is None else rate_bits_s * most / oversubscription
    names = [f"leaf{n}" for n in range(leaves)]
    links = [Link(name, "spine", up_bits_s, delay_ns, loss, queue) for name in names]
    for number, host in enumerate(host_names(workers, servers)):
        upper = names[number * leaves // workers] if number < workers else "spine"
        links.append(Link(host, upper, rate_bits_s, delay_ns, loss, queue))
    return Topology(workers, servers, ("spine", *names), tuple(links))


# ---- tables -----------------------------------------------------------------------------------------------------


def read_table(path: Path) -> dict[str, Any]:
    """The table [topology] of a TOML file; empty when it has none.

    Raises:
        TopologyError: it cannot be read, that is no table, or it has a table that is no experiment's either.
    """
    try:
        tables = tomllib.loads(path.read_text())
    except (OSError, ValueError) as wrong:
        raise TopologyError(f"{path} is not a TOML file: {wrong}") from wrong
    for key in tables:
        if key not in ROOT_KEYS:
            raise TopologyError(f"{path}: there is no {key!r} in a network's file; there is topology")
    table = tables.get("topology", {})
    if not isinstance(table, dict):
        raise TopologyError(f"{path}: topology {table!r} is not a table ([topology])")
    return table


def declare(table: Mapping[str, Any], workers: int, servers: int = 0, rate_bits_s: float | None = None) -> Topology:
    """The network that a TOML table says (docs/topology.md), with so many hosts.

    Args:
        rate_bits_s: of a host's link, where the table does not say.

    Raises:
        TopologyError: an unknown key, a value of the wrong type, or see Topology.
    """
    kind = table.get("kind", "star")
    if kind not in KEYS:
        raise TopologyError(f"topology: there is no kind {kind!r}; there are {', '.join(KEYS)}")
    _check_keys(f"topology of kind {kind}", table, KEYS[kind])
    quality = _quality("topology", table)
    if kind == "star":
        return star(workers, servers, rate_bits_s, **quality)
    if kind == "leaf-spine":
        leaves = table.get("leaves", min(LEAVES, workers))
        if isinstance(leaves, bool) or not isinstance(leaves, int):
            raise TopologyError(f"topology: leaves {leaves!r} is not a whole number")
        oversubscription = _number("topology", "oversubscription", table.get("oversubscription", 1.0))
        return leaf_spine(workers, leaves, servers, rate_bits_s, oversubscription, **quality)
    return _custom(table, workers, servers, rate_bits_s, quality)


def _custom(
    table: Mapping[str, Any], workers: int, servers: int, rate_bits_s: float | None, quality: dict[str, Any]
) -> Topology:
    switches, described = table.get("switches", ["switch"]), table.get("links", [])
    if not isinstance(switches, list) or not all(isinstance(name, str) and name for name in switches):
        raise TopologyError(f"topology: switches {switches!r} is not a list of names")
    if not isinstance(described, list) or not all(isinstance(link, Mapping) for link in described):
        raise TopologyError("topology: links is not a list of tables ([[topology.links]])")
    links: list[Link] = []
    for link in described:
        _check_keys("topology: a link", link, LINK_KEYS)
        lower, upper = link.get("lower"), link.get("upper")
        lowers = lower if isinstance(lower, list) else [lower]
        if not isinstance(upper, str) or not all(isinstance(name, str) for name in lowers):
            raise TopologyError("topology: a link has lower, a node's name or several, and upper, a switch's name")
        where = f"topology: link {lowers[0] if lowers else ''}-{upper}"
        rate = _rate(where, link.get("rate", 1.0), rate_bits_s)
        links += [Link(name, upper, rate, **{**quality, **_quality(where, link)}) for name in lowers]
    return Topology(workers, servers, tuple(switches), tuple(links))


def _check_keys(what: str, table: Mapping[str, Any], legal: Iterable[str]) -> None:
    unknown = next((key for key in table if key not in legal), None)
    if unknown is not None:
        raise TopologyError(f"{what} has no {unknown!r}; it has {', '.join(legal)}")


def _quality(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """delay_ns, loss and queue, as far as the table says."""
    found: dict[str, Any] = {}
    if "delay" in table:
        try:
            found["delay_ns"] = parse_delay(str(table["delay"]))
        except PortError as wrong:
            raise TopologyError(f"{where}: {wrong}") from wrong
    if "loss" in table:
        found["loss"] = _number(where, "loss", table["loss"])
    if "queue" in table:
        if isinstance(table["queue"], bool) or not isinstance(table["queue"], int):
            raise TopologyError(f"{where}: queue {table['queue']!r} is not a whole number of frames")
        found["queue"] = table["queue"]
    return found


def _rate(where: str, said: Any, rate_bits_s: float | None) -> float | None:
    """From `25gbit`, or a number: so many times a host's rate."""
    if isinstance(said, str):
        try:
            return parse_rate(said)
        except PortError as wrong:
            raise TopologyError(f"{where}: {wrong}") from wrong
    times = _number(where, "rate", said)
    if not 0 < times < float("inf"):
        raise TopologyError(f"{where}: a rate of {times} times a host's is not above 0")
    return None if rate_bits_s is None else rate_bits_s * times


def _number(where: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TopologyError(f"{where}: {name} {value!r} is not a number")
    return float(value)
