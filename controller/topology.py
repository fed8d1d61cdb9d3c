"""Switches as the controller reaches them: a tree (hostlib/topology/) with addresses, and the hosts on each port."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from controller.errors import ControllerError
from controller.target import TARGETS, V1MODEL, Target
from hostlib.protocol.addresses import SWITCH_MAC
from hostlib.system.user_file import parse_json, read_text
from hostlib.topology.switch_tree import SwitchTree

MOST_PORT = 0x1FF
LEAF_RANK = 0x8000  # Switch i of a topology has rank LEAF_RANK + i at its parent, above every worker's.


@dataclass(frozen=True, slots=True)
class End:
    """An end of a cable: a port of a switch."""

    switch: str
    port: int

    def __str__(self) -> str:
        return f"port {self.port} of {self.switch}"


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch.

    Attributes:
        address: its own fabric address.
        ports: port number -> ADDRESS:PORT where a rank on it reaches the fabric.
        hosts: port number -> IPv4 address of the host that is plugged in there; a rank with that address gets that
            port. Ports without an entry are available to any rank.
        macs: port number -> MAC address of that host. The switches forward everything for that address to it.
        cpu_port: the port that P4Runtime's packets leave and come in by; None where there is none. Cables between
            switches that have one are checked.
        target: what kind of switch it is, a name in TARGETS.
        parent: name of the switch above; with `uplink`, this switch's port to it, and `downlink`, its port to here.
    """

    name: str
    p4rt: str
    device_id: int
    address: str
    ports: dict[int, str]
    parent: str | None = None
    uplink: int = 0
    downlink: int = 0
    mac: int = SWITCH_MAC
    hosts: dict[int, str] = field(default_factory=dict)
    macs: dict[int, str] = field(default_factory=dict)
    cpu_port: int | None = None
    target: str = V1MODEL.name

    @property
    def kind(self) -> Target:
        return TARGETS[self.target]


@dataclass(frozen=True, slots=True)
class Topology:
    """A tree of switches, parents before their children.

    Raises:
        ControllerError: it is not a tree, or has duplicate names, addresses or ports.
    """

    switches: tuple[Switch, ...]

    def __post_init__(self) -> None:
        if not self.switches:
            raise ControllerError("a topology needs a switch")
        for what in ("name", "p4rt", "address"):
            values = [getattr(switch, what) for switch in self.switches]
            twice = next((v for v in values if values.count(v) > 1), None)
            if twice is not None:
                raise ControllerError(f"topology: two switches have the {what} {twice}")
        seen: dict[str, Switch] = {}
        used: set[tuple[str, int]] = set()
        for switch in self.switches:
            if (switch.parent is None) != (not seen):
                raise ControllerError(f"topology: the first switch is the root and has no parent, unlike {switch.name}")
            if switch.parent is not None and switch.parent not in seen:
                raise ControllerError(f"topology: {switch.name} comes before its parent {switch.parent}, or has none")
            if switch.target not in TARGETS:
                raise ControllerError(
                    f"topology: {switch.name} has the target {switch.target!r}; there are {', '.join(TARGETS)}"
                )
            ends = [(switch.name, port) for port in switch.ports]
            if switch.parent is not None:
                ends += [(switch.name, switch.uplink), (switch.parent, switch.downlink)]
            if switch.cpu_port is not None:
                if not 1 <= switch.cpu_port <= MOST_PORT:
                    raise ControllerError(
                        f"topology: cpu_port {switch.cpu_port} of {switch.name} is not in 1..{MOST_PORT}"
                    )
                ends.append((switch.name, switch.cpu_port))
            for end in ends:
                if end in used:
                    raise ControllerError(f"topology: port {end[1]} of {end[0]} is used twice")
                used.add(end)
            seen[switch.name] = switch
        self._check_hosts("hosts")
        self._check_hosts("macs")

    def _check_hosts(self, named: str) -> None:
        where: dict[str, str] = {}
        for switch in self.switches:
            for port, host in getattr(switch, named).items():
                here = f"port {port} of {switch.name}"
                if port not in switch.ports:
                    raise ControllerError(
                        f"topology: {here} has the host {host}, but ports does not say how to reach it"
                    )
                if host in where:
                    raise ControllerError(
                        f"topology: the host {host} is on {where[host]} and on {here}: a host has one"
                    )
                where[host] = here

    @property
    def root(self) -> Switch:
        return self.switches[0]

    @property
    def endpoints(self) -> dict[tuple[str, int], str]:
        """(switch, port) -> the ADDRESS:PORT where a rank on that port reaches the fabric."""
        return {(switch.name, port): where for switch in self.switches for port, where in switch.ports.items()}

    def switch(self, name: str) -> Switch:
        return next(switch for switch in self.switches if switch.name == name)

    @property
    def tree(self) -> SwitchTree:
        """The tree of switch names."""
        return SwitchTree({switch.name: switch.parent for switch in self.switches})

    def children(self, name: str) -> list[Switch]:
        return [self.switch(child) for child in self.tree.children(name)]

    def path(self, name: str) -> list[str]:
        """The switch and its ancestors, up to the root."""
        return self.tree.path(name)

    def forwarding(self, name: str) -> dict[str, int]:
        """MAC address of each host with a known one -> the port of this switch that leads there."""
        return {
            mac: port if other.name == name else self.towards(name, other.name)
            for other in self.switches
            for port, mac in other.macs.items()
        }

    def towards(self, name: str, there: str) -> int:
        """The port of a switch that leads to another one: down to switches below it, up to all others."""
        child = self.tree.towards(name, there)
        return self.switch(name).uplink if child is None else self.switch(child).downlink

    def fabric_sources(self, name: str) -> dict[str, int]:
        """Fabric address of each other switch -> the port of this switch that leads there."""
        return {other.address: self.towards(name, other.name) for other in self.switches if other.name != name}

    def trunks(self, switch: Switch) -> list[int]:
        """Ports of a switch with cables to other switches."""
        up = [] if switch.parent is None else [switch.uplink]
        return [*up, *(child.downlink for child in self.children(switch.name))]

    def cables(self) -> list[tuple[End, End]]:
        """Each direction of each cable between switches: (sender, receiver)."""
        both: list[tuple[End, End]] = []
        for switch in self.switches:
            if switch.parent is not None:
                lower, upper = End(switch.name, switch.uplink), End(switch.parent, switch.downlink)
                both += [(lower, upper), (upper, lower)]
        return both

    def flooded(self, switch: Switch) -> list[int]:
        """Ports of a switch for flooding: those with cables to hosts, or to switches that lead to hosts."""
        if not any(each.hosts for each in self.switches):
            return []
        return [*sorted(switch.hosts), *self.trunks(switch)]

    def rank_of(self, name: str) -> int:
        """The rank of a switch at its parent."""
        return LEAF_RANK + [switch.name for switch in self.switches].index(name)

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(switch) for switch in self.switches]

    @classmethod
    def of_json(cls, described: list[dict[str, Any]]) -> Topology:
        """The inverse of as_json.

        Raises:
            ControllerError: see Topology; or an unknown or missing key of a switch.
        """
        try:
            return cls(
                tuple(
                    Switch(
                        **{
                            **switch,
                            "ports": {int(n): str(a) for n, a in switch["ports"].items()},
                            "hosts": {int(n): str(IPv4Address(a)) for n, a in switch.get("hosts", {}).items()},
                            "macs": {int(n): _mac(a) for n, a in switch.get("macs", {}).items()},
                        }
                    )
                    for switch in described
                )
            )
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise ControllerError(
                f"topology: {error}; a switch has name, p4rt, device_id, address, ports, hosts, "
                "macs, cpu_port, target and, below another, parent, uplink, downlink"
            ) from error

    @classmethod
    def read(cls, path: Path) -> Topology:
        """Read a JSON file: {"switches": [...]}.

        Raises:
            ControllerError: it cannot be read, or see Topology.
        """
        try:
            described = parse_json(read_text(path))["switches"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ControllerError(f'{path} is not a JSON object {{"switches": [...]}}: {error}') from error
        return cls.of_json(described)


def _mac(text: str) -> str:
    if re.fullmatch(r"[0-9a-f]{2}(:[0-9a-f]{2}){5}", str(text).lower()) is None:
        raise ValueError(f"{text!r} is not a MAC address (as in 02:00:00:00:00:01)")
    if int(str(text)[:2], 16) & 1:
        raise ValueError(f"{text} is a multicast address, not a host's")
    return str(text).lower()


def single(p4rt: str, device_id: int, address: str, ports: dict[int, str], target: str = V1MODEL.name) -> Topology:
    """A topology of a single switch."""
    return Topology((Switch("switch", p4rt, device_id, address, ports, target=target),))
