"""What this host's cores take for a rank's work: sums, copies, packing, packets, TCP.

Every figure is of one core, in this thread's CPU time, so other load changes it little. Packets and TCP go over
loopback from a thread to itself: its time holds what the kernel takes to send and to receive. A network card's driver
and interrupts are not in it.
"""

from __future__ import annotations

import platform
import socket
import statistics
import struct
import time
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from importlib.metadata import version

import numpy as np
from rich.console import Console
from rich.table import Table

from hostlib import _engine
from hostlib.bench.kernels import TENSOR_BYTES, run
from hostlib.errors import RunError
from hostlib.protocol import constants
from hostlib.protocol.header import frame_bytes
from hostlib.system.host_costs import HostCosts
from hostlib.system.machine import cpu_name, usable_cores

UDP_SEGMENT, UDP_GRO = 103, 104
# As hostlib/native/net/udp_socket.cpp sends packets at once.
BUNDLE, BUNDLE_BYTES = 32, 65000
BUNDLES = 64  # in a round
TCP_BYTES, TCP_ROUND = 1 << 18, 256
WAIT_S = 2.0  # for a packet on loopback
ROUNDS_MIN = 3


def calibrate(seconds: float, tensor_bytes: int = TENSOR_BYTES) -> HostCosts:
    """Measure this host.

    Args:
        seconds: in total, about.
        tensor_bytes: of tensors that are added, copied and packed.

    Raises:
        RunError: loopback does not carry what is sent.
    """
    share_s = seconds / 4
    kernels = {rate.name: rate for rate in run(share_s, tensor_bytes, dtypes=("float32",))}
    values_bytes = frame_bytes()[0]
    return HostCosts(
        cpu_name(),
        usable_cores(),
        datetime.now(timezone.utc).isoformat(timespec="seconds"),
        {
            "netfold": version("netfold"),
            "numpy": np.__version__,
            "python": platform.python_version(),
            "linux": platform.release(),
            "kernels": _engine.kernels_name(),
        },
        add_gb_s=_adding(share_s, tensor_bytes),
        copy_gb_s=kernels["pack"].memcpy_gb_s,
        pack_gb_s=kernels["pack"].gb_s,
        unpack_gb_s=kernels["unpack"].gb_s,
        packets_per_s=packets_per_s(share_s, constants.HEADER_BYTES + values_bytes),
        packet_values_bytes=values_bytes,
        tcp_gb_s=_tcp(share_s),
    )


def _adding(seconds: float, tensor_bytes: int) -> float:
    total, other = np.ones(tensor_bytes // 4, np.float32), np.ones(tensor_bytes // 4, np.float32)
    return total.nbytes / _median_s(seconds, partial(np.add, total, other, out=total)) / 1e9


def copied_gb_s(seconds: float, tensor_bytes: int) -> float:
    """Bytes per second (10^9) that a core copies from memory to memory, each counted once."""
    source = np.ones(tensor_bytes // 4, np.float32)
    return source.nbytes / _median_s(seconds, partial(np.copyto, np.empty_like(source), source)) / 1e9


def packets_per_s(seconds: float, packet_bytes: int) -> float:
    """Packets per second that a core sends and receives, in bundles as the engine does (UDP GSO and GRO).

    Raises:
        RunError: loopback does not carry them.
    """
    packets = min(BUNDLE, BUNDLE_BYTES // packet_bytes)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver,
    ):
        receiver.bind(("127.0.0.1", 0))
        receiver.settimeout(WAIT_S)
        receiver.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 1)
        sender.connect(receiver.getsockname())
        sender.setsockopt(socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=I", packet_bytes))
        bundle, room = bytes(packets * packet_bytes), bytearray(1 << 16)

        def once() -> None:
            for _ in range(BUNDLES):
                sender.send(bundle)
                left = len(bundle)
                while left:
                    left -= receiver.recv_into(room)

        return BUNDLES * packets / _median_s(seconds, _explained("UDP", once))


def _tcp(seconds: float) -> float:
    """Bytes per second (10^9) that a core sends and receives over a connection."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), WAIT_S) as sender,
        server.accept()[0] as receiver,
    ):
        receiver.settimeout(WAIT_S)
        message, room, counted = bytes(TCP_BYTES), bytearray(TCP_BYTES), 0

        def once() -> None:
            nonlocal counted
            for _ in range(TCP_ROUND):
                # It may take less than the whole message; what it takes is received at once.
                left = sender.send(message)
                counted += left
                while left:
                    left -= receiver.recv_into(room, left)

        taken_ns = sum(_rounds(seconds, _explained("TCP", once)))
        return counted / max(1, taken_ns)


def _explained(what: str, once: Callable[[], None]) -> Callable[[], None]:
    def explained() -> None:
        try:
            once()
        except OSError as error:
            raise RunError(f"loopback does not carry {what} as hosts send it: {error.strerror or error}") from None

    return explained


def _rounds(seconds: float, once: Callable[[], object]) -> list[int]:
    """CPU time of this thread in each round, ns."""
    taken: list[int] = []
    end_ns = time.perf_counter_ns() + int(seconds * 1e9)
    while len(taken) < ROUNDS_MIN or time.perf_counter_ns() < end_ns:
        begin_ns = time.thread_time_ns()
        once()
        taken.append(time.thread_time_ns() - begin_ns)
    return taken


def _median_s(seconds: float, once: Callable[[], object]) -> float:
    return max(1, statistics.median(_rounds(seconds, once))) / 1e9


def print_costs(costs: HostCosts, console: Console) -> None:
    """Print a line for each figure, under the CPU's name."""
    versions = ", ".join(f"{name} {version}" for name, version in costs.versions.items())
    table = Table(
        title=f"{costs.cpu}, cores: {costs.cores}, {costs.date}; {versions}", title_justify="left", title_style=""
    )
    table.add_column("one core")
    table.add_column("rate", justify="right")
    table.add_column("unit")
    of_values = "GB/s of values"
    rows = (
        ("adding float32", costs.add_gb_s, of_values),
        ("copying", costs.copy_gb_s, of_values),
        ("packing to the slot protocol's integers", costs.pack_gb_s, of_values),
        ("unpacking them", costs.unpack_gb_s, of_values),
        ("packets sent and received, UDP on loopback", costs.packets_per_s / 1e6, "million/s"),
        ("bytes sent and received, TCP on loopback", costs.tcp_gb_s, "GB/s"),
    )
    for name, rate, unit in rows:
        table.add_row(name, f"{rate:.2f}", unit)
    console.print(table)
