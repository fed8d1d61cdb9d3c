"""Create and configure a namespace's network links over netlink: veths, bridges, addresses, rates."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from hostlib.errors import HostlibError
from hostlib.system.network_namespace import NamespaceError, inside

if TYPE_CHECKING:
    from pyroute2 import IPRoute

MTU = 1500  # Ethernet's, unless a link is told otherwise
ETHERNET_BYTES = 14
QUEUE_FRAMES = 1000  # at each end of a link
BUCKET, QUEUE = 0x10000, 0x20000  # handles of a shaped link's token bucket, and of the queue in it
# Burst of a shaped link, the largest of these: so much time of it, bytes, and frames. What leaves faster than the link
# waits in the next queue, and so do other hosts' acknowledgements in it.
BURST_S, BURST_BYTES, BURST_FRAMES = 0.001, 10 * MTU, 2
MOST_BYTES_S = 2**32 - 1  # struct tc_ratespec
UNSEGMENTED = 65535  # the most segments of one packet that a veth passes on unsplit
SIOCETHTOOL, ETHTOOL_STXCSUM = 0x8946, 0x17
Returned = TypeVar("Returned")


@contextmanager
def tables() -> Iterator[IPRoute]:
    """Open the kernel's routing tables of this thread's network namespace.

    Raises:
        NamespaceError: the kernel refused an operation.
    """
    from pyroute2 import IPRoute, NetlinkError  # it takes its time to import, and few have use for it

    try:
        with IPRoute() as kernel:
            yield kernel
    except NetlinkError as error:
        raise NamespaceError(f"the kernel refused to set up the network: {error}") from error


def with_tables(space: str | None, do: Callable[[IPRoute], Returned]) -> Returned:
    """Call `do` with the kernel's tables of a namespace (None: the current one).

    Raises:
        NamespaceError: the kernel refused an operation, or there is no such namespace.
    """

    def run() -> Returned:
        with tables() as kernel:
            return do(kernel)

    return run() if space is None else inside(space, run)


def index_of(kernel: IPRoute, name: str) -> int:
    """Index of an interface. Raises NamespaceError: there is no such interface."""
    found = kernel.link_lookup(ifname=name)
    if not found:
        raise NamespaceError(f"there is no network interface {name}")
    return int(found[0])


def veth(
    kernel: IPRoute, name: str, peer: str, peer_space: str | int | None = None, mtu: int = MTU, **options: Any
) -> None:
    """Create a veth pair, one end here and one in another namespace (a name, or a process's pid); this end is up."""
    other: dict[str, Any] = {"ifname": peer, "mtu": mtu}
    if peer_space is not None:
        other["net_ns_pid" if isinstance(peer_space, int) else "net_ns_fd"] = peer_space
    kernel.link("add", ifname=name, kind="veth", peer=other, mtu=mtu)
    kernel.link("set", index=index_of(kernel, name), state="up", **options)


def set_up(kernel: IPRoute, name: str, address: str, prefix_bits: int, mac: str | None = None) -> int:
    """Give an interface its addresses and set it up; returns its index."""
    index = index_of(kernel, name)
    if mac is not None:
        kernel.link("set", index=index, address=mac)
    kernel.addr("replace", index=index, address=address, prefixlen=prefix_bits)
    kernel.link("set", index=index, state="up")
    return index


def bridge(kernel: IPRoute, name: str) -> int:
    """Create a kernel bridge; returns its index."""
    kernel.link("add", ifname=name, kind="bridge")
    return index_of(kernel, name)


def limit_segments(kernel: IPRoute, name: str, most: int) -> None:
    """Limit the segments that leave as one packet: 1 sends each frame by itself, as on a wire."""
    kernel.link("set", index=index_of(kernel, name), gso_max_segs=most)


def as_on_a_wire(kernel: IPRoute, name: str) -> None:
    """Send every frame by itself and with its checksums, as a switch behind a packet socket must see it.

    A veth would otherwise pass several segments on as one packet, and leave TCP and UDP checksums to a network card.
    """
    limit_segments(kernel, name, 1)
    off = array.array("B", struct.pack("II", ETHTOOL_STXCSUM, 0))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, SIOCETHTOOL, struct.pack("16sP16x", name.encode(), off.buffer_info()[0]))


def shape(kernel: IPRoute, name: str, rate_bits_s: float, queue_frames: int = QUEUE_FRAMES, mtu: int = MTU) -> None:
    """Limit an interface's rate with a token bucket, tc-tbf(8).

    Packets wait in the queue that Linux gives an interface of itself, tc-pfifo_fast(8): those with a priority overtake
    others. It has that many frames of each of three priorities.

    Raises:
        HostlibError: the rate is less than a byte per second, or more than tc-tbf has a number for.
    """
    rate = round(rate_bits_s / 8)
    if rate < 1:
        raise HostlibError(f"a rate of {rate_bits_s} bit/s is less than a byte per second")
    if rate > MOST_BYTES_S:
        raise HostlibError(
            f"a link of {rate_bits_s / 1e9:g} Gbit/s cannot be emulated: at most {8 * MOST_BYTES_S / 1e9:.4g} Gbit/s are "
            "legal; a larger --dilation makes links slower"
        )
    burst = max(round(rate * BURST_S), BURST_BYTES, BURST_FRAMES * (ETHERNET_BYTES + mtu))
    link = index_of(kernel, name)
    kernel.tc("add", "tbf", link, handle=BUCKET, rate=rate, burst=burst, limit=burst)
    kernel.link("set", index=link, txqlen=queue_frames)  # which pfifo_fast takes over
    kernel.tc("add", "pfifo_fast", link, handle=QUEUE, parent=BUCKET | 1)


def unshape(kernel: IPRoute, name: str) -> None:
    """Remove the rate limit."""
    from pyroute2.netlink.rtnl import TC_H_ROOT

    kernel.tc("del", index=index_of(kernel, name), parent=TC_H_ROOT)
