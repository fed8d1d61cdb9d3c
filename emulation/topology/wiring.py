"""Links of the kernel's between hosts and switches, made over netlink."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError

from emulation.topology import cabling
from emulation.topology.declaration import Topology, TopologyError
from hostlib.hosts import FRAME_BYTES, MTU, shape

# The same on every machine, whatever it is set to: with BBR, exchanges between changing pairs of hosts take half as long
# again. Every namespace may have Reno (tcp(7)); in a network of so little delay it fills links as CUBIC does. What may be
# on its way is bounded: where several hosts send to one, they fill its queue no further than it is long. So is what waits
# in a host: the rest stays with the sockets, as with a network card's own queue, and acknowledgements are not behind it;
# or with the program, which sends its next message when there is room for it.
TCP = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": "4096 131072 262144",
    "tcp_wmem": "4096 65536 65536",
    "tcp_limit_output_bytes": str(4 * FRAME_BYTES),
}

SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17


@contextmanager
def tables() -> Iterator[IPRoute]:
    """The kernel's tables of this thread's network namespace.

    Raises:
        TopologyError: the kernel refused something.
    """
    try:
        with IPRoute() as kernel:
            yield kernel
    except NetlinkError as wrong:
        raise TopologyError(f"the kernel refused to make the network: {wrong}") from wrong


def veth(kernel: IPRoute, name: str, peer: str, peer_space: str | int | None = None, **options: Any) -> None:
    """A cable with an end here and one in another namespace (a name, or a process's pid); this end is up."""
    other: dict[str, Any] = {"ifname": peer, "mtu": MTU}
    if peer_space is not None:
        other["net_ns_pid" if isinstance(peer_space, int) else "net_ns_fd"] = peer_space
    kernel.link("add", ifname=name, kind="veth", peer=other, mtu=MTU)
    kernel.link("set", index=index_of(kernel, name), state="up", **options)


def index_of(kernel: IPRoute, name: str) -> int:
    found = kernel.link_lookup(ifname=name)
    if not found:
        raise TopologyError(f"there is no network interface {name}")
    return int(found[0])


def set_up(kernel: IPRoute, name: str, address: str, prefix_bits: int, mac: str | None = None) -> int:
    """Give an interface its addresses; its index."""
    index = index_of(kernel, name)
    if mac is not None:
        kernel.link("set", index=index, address=mac)
    kernel.addr("replace", index=index, address=address, prefixlen=prefix_bits)
    kernel.link("set", index=index, state="up")
    return index


def as_on_a_wire(kernel: IPRoute, name: str) -> None:
    """Let every frame leave alone and with its checksums, as a switch behind a packet socket has to see it.

    A veth would pass several segments on as one, and leave TCP's and UDP's checksum to a network card that is not there.
    """
    kernel.link("set", index=index_of(kernel, name), gso_max_segs=1)
    off = array.array("B", struct.pack("II", ETHTOOL_STXCSUM, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        fcntl.ioctl(asked, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), off.buffer_info()[0]))


def bridge(kernel: IPRoute, name: str) -> int:
    """A bridge of the kernel's; its index."""
    kernel.link("add", ifname=name, kind="bridge")
    return index_of(kernel, name)


def plug(kernel: IPRoute, name: str, topology: Topology, host: str) -> None:
    """Make an interface a host's end of its link: addresses, the way to the fabric, and the other hosts' addresses."""
    as_on_a_wire(kernel, name)
    for setting, value in TCP.items():
        Path("/proc/sys/net/ipv4", setting).write_text(value)
    network, above = cabling.DATA, topology.above(host)
    index = set_up(kernel, name, network.host(topology, host), network.bits, cabling.mac(topology, host))
    assert above is not None
    kernel.route("add", dst=cabling.fabric_address(topology, above.upper), dst_len=32, oif=index)
    for other in topology.hosts:
        if other != host:
            address, lladdr = network.host(topology, other), cabling.mac(topology, other)
            kernel.neigh("replace", dst=address, lladdr=lladdr, ifindex=index, state="permanent")


def limit(space: str | None, interfaces: list[str], rate_bits_s: float | None, queue: int) -> None:
    """Let no more than the rate leave interfaces of a namespace (None: of this one), and so many frames wait for it."""
    if rate_bits_s is not None:
        shape(space, interfaces, f"{max(rate_bits_s, 8):.0f}bit", queue * FRAME_BYTES)
