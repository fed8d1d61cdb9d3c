"""A host's end of its cable, and the cable's rate and queue."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from emulation.networks import addressing
from hostlib.mechanisms.mechanism import SERVER_CHANNELS
from hostlib.protocol.framing import EMULATED, ETHERNET, MTU
from hostlib.system.network_links import as_on_a_wire, set_up, shape, with_tables
from hostlib.system.network_namespace import take_part_in_ecn
from hostlib.topology.topology import QUEUE_FRAMES, WINDOW_BYTES, Topology

if TYPE_CHECKING:
    from pyroute2 import IPRoute

# The same settings on every machine: with BBR, exchanges between changing pairs of hosts take half as long again. Every
# namespace may use Reno (tcp(7)), which fills links as well as CUBIC at such low delays. The receiver's window bounds the
# data in flight, so that several hosts that send to one do not overflow its queue. Buffers hold more than a window: else
# it is not full while the program is woken to write or read. The queue in a host is bounded, too: the rest stays in the
# sockets, as with a network card, so that acknowledgements are not delayed behind it, or in the program, which sends its
# next message when there is room.
TCP = {
    "tcp_congestion_control": "reno",
    "tcp_slow_start_after_idle": "0",
    "tcp_rmem": f"4096 {4 * WINDOW_BYTES} {4 * WINDOW_BYTES}",
    "tcp_wmem": f"4096 {2 * WINDOW_BYTES} {2 * WINDOW_BYTES}",
}
# Links are slower than those they stand for, and so queues drain more slowly: eight full windows wait longer than the 200
# ms after which Linux sends again. Where links lose packets it is left as it is.
LEAST_TIMEOUT_MS = 1000
RTO_MIN = 13  # its bit in the route's lock, by which it holds for the kernel's own estimates: RTAX_RTO_MIN
OUTPUT_FRAMES = 4  # of tcp_limit_output_bytes


def plug(kernel: IPRoute, name: str, topology: Topology, host: str) -> None:
    """Make an interface a host's end of its link: addresses, route to the fabric, and other hosts' addresses."""
    as_on_a_wire(kernel, name)
    output = str(OUTPUT_FRAMES * (ETHERNET + topology.mtu))
    for setting, value in {**TCP, "tcp_limit_output_bytes": output}.items():
        Path("/proc/sys/net/ipv4", setting).write_text(value)
    network, above = addressing.DATA, topology.above(host)
    index = set_up(kernel, name, network.host(topology, host), network.bits, addressing.mac(topology, host))
    kernel.link("set", index=index, mtu=topology.mtu)
    _bound_tcp(kernel, index, topology, host)
    if any(cable.mark is not None for cable in topology.cables):
        take_part_in_ecn()
    assert above is not None
    kernel.route("add", dst=addressing.fabric_address(topology, above.upper), dst_len=32, oif=index)
    for other in topology.hosts:
        if other != host:
            address, lladdr = network.host(topology, other), addressing.mac(topology, other)
            kernel.neigh("replace", dst=address, lladdr=lladdr, ifindex=index, state="permanent")


def window_bytes(topology: Topology, host: str) -> int:
    """Of a TCP connection to a host.

    All workers send to a server at the same time, some in all its channels. Acknowledgements for it wait behind all of that
    in the queue, in which time its own windows are used up. So it has half a window for each connection at most, and all
    together fill three quarters of the queue. Where links have delays a whole window must suffice for them.
    """
    whole = topology.tcp_window_bytes
    if not host.startswith("server") or any(cable.delay_ns for cable in topology.cables):
        return whole
    segment_bytes, _ = replace(EMULATED, mtu=topology.mtu).tcp_segment()
    return min(whole // 2, 3 * QUEUE_FRAMES * segment_bytes // 4 // (topology.workers * SERVER_CHANNELS))


def _bound_tcp(kernel: IPRoute, index: int, topology: Topology, host: str) -> None:
    """Give the route to all other hosts TCP's window, and its least retransmission timeout where no link loses packets."""
    network = addressing.DATA
    metrics = {"window": window_bytes(topology, host)}
    if all(cable.loss == 0 for cable in topology.cables):
        metrics |= {"rto_min": LEAST_TIMEOUT_MS, "lock": 1 << RTO_MIN}
    source = network.host(topology, host)
    kernel.route(
        "replace",
        dst=network.first,
        dst_len=network.bits,
        oif=index,
        prefsrc=source,
        scope="link",
        proto="kernel",
        metrics=metrics,
    )


def limit(space: str | None, interfaces: list[str], rate_bits_s: float | None, queue: int, mtu: int = MTU) -> None:
    """Limit rate and queue length (frames) of interfaces in a namespace (None: this one)."""
    if rate_bits_s is None:
        return
    for name in interfaces:
        with_tables(space, partial(shape, name=name, rate_bits_s=max(rate_bits_s, 8), queue_frames=queue, mtu=mtu))
