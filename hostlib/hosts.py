"""Where ranks run: on this machine as it is, or each in a network namespace of its own behind a shaped link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hostlib import quantity
from hostlib.errors import HostlibError
from hostlib.namespace import NamespaceError, inside, ip, namespace, sweep

FABRIC_ADDRESS, FABRIC_PORT = "10.255.255.254", 4793
DATA, CONTROL = "10.0.0", "10.1.0"
CONTROL_ADDRESS = f"{CONTROL}.254"
LARGEST_WORLD = 32
MTU = 1500
QUEUE_BYTES = 1 << 20  # that wait at each end of a link
BURST_S, BURST_FRAMES = 0.001, 10  # what may leave a link at once, the larger of both
FRAME_BYTES = 14 + MTU
UNSEGMENTED = 65535  # the most segments of a packet that a veth takes whole


class Hosts(Protocol):
    """Where ranks run, and where the fabric does."""

    def space(self, rank: int | None) -> str | None:
        """The network namespace of a rank, or (None) of the fabric and of where ranks meet; None: this process's."""
        ...

    def environment(self, rank: int) -> dict[str, str]: ...

    def address(self, rank: int) -> str:
        """Where the rank's packets come from."""
        ...

    def switch_ports(self) -> list[str]:
        """Options of `emulation switch` that give it a port for each rank."""
        ...

    def fabric(self, ready: dict[str, Any]) -> dict[str, Any]:
        """What a topology (docs/topology.md) says of that switch's ports, and of who is there.

        Args:
            ready: the switch's ready file.
        """
        ...

    @property
    def control_address(self) -> str:
        """Where the controller listens, and the ranks' torch store."""
        ...


@dataclass(frozen=True, slots=True)
class LocalHosts:
    """Processes on this machine, which meet on loopback."""

    def space(self, rank: int | None) -> str | None:
        return None

    def environment(self, rank: int) -> dict[str, str]:
        return {}

    def address(self, rank: int) -> str:
        return "127.0.0.1"

    def switch_ports(self) -> list[str]:
        return ["--udp-ports", str(LARGEST_WORLD), "--udp-destination", f"{FABRIC_ADDRESS}:{FABRIC_PORT}"]

    def fabric(self, ready: dict[str, Any]) -> dict[str, Any]:
        return {"ports": ready["ports"]}

    @property
    def control_address(self) -> str:
        return "127.0.0.1"


@dataclass(frozen=True, slots=True)
class NamespaceHosts:
    """Host i (from 1) in a namespace, with two interfaces: h<i>, its link, and `control`.

    The other ends are in the namespace `middle`: s<i>, for a switch or a bridge to take, and a bridge of the control
    network.

    Attributes:
        spaces: of the hosts, in order.
        rate: of each link in each direction, as tc(8) takes it (100mbit); None for as fast as it goes.
        switched: the links lead to the embedded switch; otherwise to a bridge.
        messages: also what ranks send each other goes by the links to the switch.
    """

    middle: str
    spaces: tuple[str, ...]
    rate: str | None
    switched: bool = False
    messages: bool = False

    @property
    def ends(self) -> list[str]:
        """The links' other ends."""
        return [f"s{n}" for n in range(1, len(self.spaces) + 1)]

    def space(self, rank: int | None) -> str | None:
        return self.middle if rank is None else self.spaces[rank]

    def environment(self, rank: int) -> dict[str, str]:
        # What goes through the switch by itself has Gloo only to say when to begin and who is there.
        return {"GLOO_SOCKET_IFNAME": "control" if self.switched and not self.messages else f"h{rank + 1}"}

    def address(self, rank: int) -> str:
        return f"{DATA}.{rank + 1}"

    def switch_ports(self) -> list[str]:
        ports = [word for n, end in enumerate(self.ends, start=1) for word in ("--port", f"{n}={end}")]
        # The switch keeps to the rate by itself: a qdisc would wake the kernel, and the rank, for every single frame.
        return ports if self.rate is None else [*ports, "--rate", self.rate]

    def fabric(self, ready: dict[str, Any]) -> dict[str, Any]:
        numbers = range(1, len(self.spaces) + 1)
        return {
            "ports": {str(n): f"{FABRIC_ADDRESS}:{FABRIC_PORT}" for n in numbers},
            "hosts": {str(n): f"{DATA}.{n}" for n in numbers},
            "macs": {str(n): _mac(n) for n in numbers},
        }

    @property
    def control_address(self) -> str:
        return CONTROL_ADDRESS


# ---- namespaces -------------------------------------------------------------------------------------------------


@contextmanager
def namespace_hosts(count: int, rate: str | None) -> Iterator[NamespaceHosts]:
    """So many hosts, for as long as the block runs; what killed processes left of theirs is removed first.

    Args:
        rate: of each link in each direction, as tc(8) takes it (100mbit); None for as fast as it goes.

    Raises:
        NamespaceError: they cannot be made; it needs root, and iproute2.
    """
    if os.geteuid() != 0:
        raise NamespaceError("hosts in network namespaces need root; --hosts local does not")
    sweep()
    with ExitStack() as stack:
        space = stack.enter_context(namespace("bench"))
        spaces = tuple(
            stack.enter_context(namespace("bench", f"{space.rpartition('-')[2]}h{n}")) for n in range(1, count + 1)
        )
        links = [
            "link add control type bridge",
            "link set control up",
            f"address add {CONTROL_ADDRESS}/24 dev control",
        ]
        for n, host in enumerate(spaces, start=1):
            links += [
                f"link add s{n} mtu {MTU} type veth peer name h{n} address {_mac(n)} mtu {MTU} netns {host}",
                f"link add c{n} type veth peer name control netns {host}",
                f"link set c{n} master control up",
                f"link set s{n} up",
            ]
        ip("-n", space, "-batch", "-", lines=links)
        for n, host in enumerate(spaces, start=1):
            addresses = [
                f"address add {CONTROL}.{n}/24 dev control",
                f"address add {DATA}.{n}/24 dev h{n}",
                "link set control up",
                f"link set h{n} up",
                f"route add {FABRIC_ADDRESS}/32 dev h{n}",
            ]
            ip("-n", host, "-batch", "-", lines=addresses)
        if rate is not None:
            for n, host in enumerate(spaces, start=1):
                shape(host, [f"h{n}"], rate)
        yield NamespaceHosts(space, spaces, rate)


def _mac(n: int) -> str:
    """Of host n's link; a locally administered one."""
    return f"02:00:0a:00:00:{n:02x}"


def shape(space: str | None, interfaces: list[str], rate: str, queue_bytes: int = QUEUE_BYTES) -> None:
    """Let so much leave interfaces of a namespace (None: of this one), as tc(8) takes it (100mbit), and so much wait.

    Raises:
        NamespaceError: tc refused.
    """
    burst = max(round(quantity.bandwidth(rate, "rate") / 8 * BURST_S), BURST_FRAMES * FRAME_BYTES)
    shaped = f"rate {rate} burst {burst}b limit {queue_bytes + burst}b"
    lines = [f"qdisc add dev {name} root tbf {shaped}" for name in interfaces]

    def enter() -> None:
        ip("-batch", "-", command="tc", lines=lines)

    if space is None:
        enter()
    else:
        inside(space, enter)


def to_switch(hosts: NamespaceHosts, messages: bool = False) -> NamespaceHosts:
    """The links, for packet sockets: each frame alone, as it would be on a wire.

    Args:
        messages: what ranks send each other goes there, too.
    """
    _segments(hosts, 1)
    return replace(hosts, switched=True, messages=messages)


@contextmanager
def to_bridge(hosts: NamespaceHosts) -> Iterator[NamespaceHosts]:
    """The links, all on one bridge of the kernel's, for as long as the block runs."""
    _segments(hosts, UNSEGMENTED)
    ip("-n", hosts.middle, "link", "add", "data", "type", "bridge")
    try:
        lines = ["link set data up", *(f"link set {end} master data" for end in hosts.ends)]
        ip("-n", hosts.middle, "-batch", "-", lines=lines)
        if hosts.rate is not None:
            shape(hosts.middle, hosts.ends, hosts.rate)
        yield hosts
    finally:
        ip("-n", hosts.middle, "link", "delete", "data")
        # A link without one has nothing to delete, and tc calls that an error.
        with contextlib.suppress(NamespaceError):
            lines = [f"qdisc delete dev {end} root" for end in hosts.ends]
            ip("-n", hosts.middle, "-force", "-batch", "-", command="tc", lines=lines)


def _segments(hosts: NamespaceHosts, most: int) -> None:
    for n, host in enumerate(hosts.spaces, start=1):
        ip("-n", host, "link", "set", f"h{n}", "gso_max_segs", str(most))


def parse_hosts(text: str) -> int | None:
    """How many namespaces `netns:N` asks for; None for `local`.

    Raises:
        HostlibError: neither of both.
    """
    if text == "local":
        return None
    kind, _, count = text.partition(":")
    if kind != "netns" or not count.isdigit() or not 1 <= int(count) <= LARGEST_WORLD:
        raise HostlibError(f"hosts {text!r} are neither local nor netns:N, with N in 1..{LARGEST_WORLD}")
    return int(count)
