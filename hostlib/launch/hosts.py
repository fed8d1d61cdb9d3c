"""Where ranks run: directly on this machine, or each in its own network namespace behind a shaped link."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from hostlib.errors import HostlibError
from hostlib.protocol.addresses import FABRIC_ADDRESS, fabric_endpoint, link_mac, mac_text
from hostlib.protocol.framing import MTU
from hostlib.system.network_links import (
    QUEUE_FRAMES,
    UNSEGMENTED,
    bridge,
    index_of,
    limit_segments,
    set_up,
    shape,
    unshape,
    veth,
    with_tables,
)
from hostlib.system.network_namespace import NamespaceError, inside, namespace, sweep, take_part_in_ecn
from hostlib.text import units

if TYPE_CHECKING:
    from pyroute2 import IPRoute

DATA, CONTROL = "10.0.0", "10.1.0"
CONTROL_ADDRESS = f"{CONTROL}.254"
LARGEST_WORLD = 32


class Hosts(Protocol):
    """Where the ranks and the fabric run."""

    def space(self, rank: int | None) -> str | None:
        """Network namespace of a rank, or (None) of the fabric and the torch store; returns None for this process's
        own.
        """
        ...

    def environment(self, rank: int) -> dict[str, str]: ...

    def address(self, rank: int) -> str:
        """The source address of the rank's packets."""
        ...

    def switch_ports(self) -> list[str]:
        """Options of `emulation switch` that give it a port for each rank."""
        ...

    def fabric(self, ready: dict[str, Any]) -> dict[str, Any]:
        """Topology section (docs/topology.md) that describes the switch's ports and hosts to the controller.

        Args:
            ready: the contents of the switch's ready file.
        """
        ...

    @property
    def control_address(self) -> str:
        """The address where the controller and the ranks' torch store listen."""
        ...


@dataclass(frozen=True, slots=True)
class LocalHosts:
    """Processes on this machine, connected over loopback."""

    def space(self, rank: int | None) -> str | None:
        return None

    def environment(self, rank: int) -> dict[str, str]:
        return {}

    def address(self, rank: int) -> str:
        return "127.0.0.1"

    def switch_ports(self) -> list[str]:
        return ["--ports", str(LARGEST_WORLD), "--udp-destination", fabric_endpoint()]

    def fabric(self, ready: dict[str, Any]) -> dict[str, Any]:
        return {"ports": ready["ports"]}

    @property
    def control_address(self) -> str:
        return "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NamespaceHosts:
    """Host i (from 1) in its own namespace, with two interfaces: h<i>, its link, and `control`.

    The other ends are in the namespace `middle`: s<i>, which a switch or a bridge takes, and a bridge for the control
    network.

    Attributes:
        spaces: the hosts' namespaces, in order.
        rate: of each link in each direction, as tc(8) takes it (100mbit); None for unlimited.
        switched: the links lead to the embedded switch; otherwise to a bridge.
        messages: messages between ranks also use the links to the switch.
        ranks_per_host: ranks on each, one host after the other.
        queue: frames that wait at each end of a link with a rate; more are dropped.
        mtu: of the links, bytes from the IP header on.
        mark: frames in the switch's queues from which and to which it marks some, FROM:TO; None for never.
    """

    middle: str
    spaces: tuple[str, ...]
    rate: str | None
    switched: bool = False
    messages: bool = False
    ranks_per_host: int = 1
    queue: int = QUEUE_FRAMES
    mtu: int = MTU
    mark: str | None = None

    @property
    def ends(self) -> list[str]:
        """The far ends of the links."""
        return [f"s{n}" for n in range(1, len(self.spaces) + 1)]

    def space(self, rank: int | None) -> str | None:
        return self.middle if rank is None else self.spaces[self._host(rank)]

    def environment(self, rank: int) -> dict[str, str]:
        # With in-network mechanisms, Gloo only carries rendezvous and heartbeats.
        return {"GLOO_SOCKET_IFNAME": "control" if self.switched and not self.messages else f"h{self._host(rank) + 1}"}

    def address(self, rank: int) -> str:
        return f"{DATA}.{self._host(rank) + 1}"

    def _host(self, rank: int) -> int:
        return rank // self.ranks_per_host

    def switch_ports(self) -> list[str]:
        ports = [word for n, end in enumerate(self.ends, start=1) for word in ("--port", f"{n}={end}")]
        # The switch shapes the traffic itself: a qdisc would wake the kernel, and the rank, for every single frame.
        if self.rate is None:
            return ports
        mark = [] if self.mark is None else ["--mark", self.mark]
        return [*ports, "--bandwidth", self.rate, "--queue", str(self.queue), *mark]

    def fabric(self, ready: dict[str, Any]) -> dict[str, Any]:
        numbers = range(1, len(self.spaces) + 1)
        return {
            "ports": {str(n): fabric_endpoint() for n in numbers},
            "hosts": {str(n): f"{DATA}.{n}" for n in numbers},
            "macs": {str(n): mac_text(link_mac(n)) for n in numbers},
        }

    @property
    def control_address(self) -> str:
        return CONTROL_ADDRESS


# ---- namespaces -------------------------------------------------------------------------------------------------


@contextmanager
def namespace_hosts(
    count: int,
    rate: str | None,
    ranks_per_host: int = 1,
    queue: int = QUEUE_FRAMES,
    mtu: int = MTU,
    mark: str | None = None,
) -> Iterator[NamespaceHosts]:
    """Make hosts in namespaces for the duration of the block, after removing what killed processes left behind.

    Args:
        rate: of each link in each direction, as tc(8) takes it (100mbit); None for unlimited.
        queue, mtu: see NamespaceHosts.
        mark: likewise; the hosts' TCP then takes part in ECN.

    Raises:
        NamespaceError: they cannot be made; it needs root.
    """
    if os.geteuid() != 0:
        raise NamespaceError("hosts in network namespaces need root; --on loopback does not")
    sweep()
    with ExitStack() as stack:
        space = stack.enter_context(namespace("bench"))
        spaces = tuple(
            stack.enter_context(namespace("bench", f"{space.rpartition('-')[2]}h{n}")) for n in range(1, count + 1)
        )
        with_tables(space, lambda kernel: _cable(kernel, spaces, mtu))
        for n, host in enumerate(spaces, start=1):
            with_tables(host, partial(_configure, n=n, rate=rate, queue=queue, mtu=mtu))
            if mark is not None:
                inside(host, take_part_in_ecn)
        yield NamespaceHosts(space, spaces, rate, ranks_per_host=ranks_per_host, queue=queue, mtu=mtu, mark=mark)


def _cable(kernel: IPRoute, spaces: tuple[str, ...], mtu: int) -> None:
    """In the middle namespace: make the bridge of the control network, and one end of each host's link."""
    control = bridge(kernel, "control")
    set_up(kernel, "control", CONTROL_ADDRESS, 24)
    for n, host in enumerate(spaces, start=1):
        veth(kernel, f"s{n}", f"h{n}", host, mtu)
        veth(kernel, f"c{n}", "control", host, master=control)


def _configure(kernel: IPRoute, n: int, rate: str | None, queue: int, mtu: int) -> None:
    """Configure the interfaces in host n's namespace."""
    set_up(kernel, "control", f"{CONTROL}.{n}", 24)
    index = set_up(kernel, f"h{n}", f"{DATA}.{n}", 24, mac_text(link_mac(n)))
    kernel.route("add", dst=FABRIC_ADDRESS, dst_len=32, oif=index)
    if rate is not None:
        shape(kernel, f"h{n}", units.bandwidth(rate, "rate"), queue, mtu)


def to_switch(hosts: NamespaceHosts, messages: bool = False) -> NamespaceHosts:
    """Prepare the links for packet sockets: each frame by itself, as on a wire.

    Args:
        messages: messages between ranks also use these links.
    """
    _segments(hosts, 1)
    return replace(hosts, switched=True, messages=messages)


@contextmanager
def to_bridge(hosts: NamespaceHosts) -> Iterator[NamespaceHosts]:
    """Connect the links to one kernel bridge for the duration of the block."""
    _segments(hosts, UNSEGMENTED)
    with_tables(hosts.middle, lambda kernel: _bridge(kernel, hosts))
    try:
        yield hosts
    finally:
        with_tables(hosts.middle, lambda kernel: _unbridge(kernel, hosts))


def _bridge(kernel: IPRoute, hosts: NamespaceHosts) -> None:
    data = bridge(kernel, "data")
    kernel.link("set", index=data, state="up")
    for end in hosts.ends:
        kernel.link("set", index=index_of(kernel, end), master=data)
        if hosts.rate is not None:
            shape(kernel, end, units.bandwidth(hosts.rate, "rate"), hosts.queue, hosts.mtu)


def _unbridge(kernel: IPRoute, hosts: NamespaceHosts) -> None:
    kernel.link("del", index=index_of(kernel, "data"))
    if hosts.rate is not None:
        for end in hosts.ends:
            unshape(kernel, end)


def _segments(hosts: NamespaceHosts, most: int) -> None:
    for n, host in enumerate(hosts.spaces, start=1):
        with_tables(host, partial(limit_segments, name=f"h{n}", most=most))


def parse_hosts(text: str) -> int | None:
    """Number of namespaces that `netns:N` asks for; None for `local`.

    Raises:
        HostlibError: the text is neither.
    """
    if text == "local":
        return None
    kind, _, count = text.partition(":")
    if kind != "netns" or not (count.isdecimal() and count.isascii()) or not 1 <= int(count) <= LARGEST_WORLD:
        raise HostlibError(f"--hosts must be local or netns:N, with N in 1..{LARGEST_WORLD}, not {text!r}")
    return int(count)
