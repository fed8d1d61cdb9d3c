"""`hostlib bench --path`: what a gradient's way through one rank's engine takes of a core.

The engine's thread has a core, and a reflector, which sends every packet back as its result, another. So nothing of a
switch or of other ranks is in the figures: only what this rank does, and what the kernel does for it. Beside them stand
the limits of the same run: what a core copies, and a bare stream of the same packets, sent and received by one core.

There are two paths. `udp` goes over loopback. `xdp` goes over a veth pair between two namespaces that are made for it,
which takes root; the kernel copies packets there, as veth has no zero copy.

CPU time is the thread's, which its core's other work does not change. The engine's own part is what the thread spent
outside the kernel.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import psutil
from rich.console import Console
from rich.table import Table

from hostlib import _engine
from hostlib.bench.calibration import copied_gb_s, packets_per_s
from hostlib.errors import RunError
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol import constants
from hostlib.protocol.check_words import check_words
from hostlib.protocol.framing import JUMBO_MTU, V1MODEL_ELEMENTS
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.system.machine import cpu_name, pinned, usable_cores
from hostlib.system.network_links import set_up, veth, with_tables
from hostlib.system.network_namespace import NamespaceError, inside, namespace

TENSOR_BYTES = 64 << 20
SECONDS, LIMIT_S = 2.0, 0.5  # for each size, and for each of its limits
ROUND_TRIPS = 500
DEADLINE_S = 10.0
HERE = "127.0.0.1"
ENDS, PREFIX_BITS = ("10.0.0.1", "10.0.0.2"), 24  # of the veth pair
PATHS = ("udp", "xdp")
SECRET = 16 * "00"  # any takes as long
EXACT = 2.0**-27  # of a block's largest value: what one rank's sum may miss where levels set the scale
Returned = TypeVar("Returned")


@dataclass(frozen=True, slots=True)
class PathRate:
    """What one rank does over one path with packets of one size.

    Attributes:
        path: "udp", the kernel's sockets, or "xdp", AF_XDP.
        elements: of a packet.
        goodput_gbit_s: gradient (float32) summed, 10^9 bits per second of wall time.
        cpu_us_per_packet: CPU time of the engine's thread for each packet that it sends and whose result it receives.
        engine_us_per_kib: of that, outside the kernel, per 1,024 bytes of gradient.
        sent_again: packets that were sent again, as a part of all.
        round_trip_us: of one packet alone: wall time of a sum that fits one, the call from Python included; median.
        stream_gbit_s: 10^9 bits of gradient per second that one core sends and receives in such packets, and no more.
        copied_gbit_s: 10^9 bits per second that a core copies from memory to memory.
    """

    path: str
    elements: int
    goodput_gbit_s: float
    cpu_us_per_packet: float
    engine_us_per_kib: float
    sent_again: float
    round_trip_us: float
    stream_gbit_s: float
    copied_gbit_s: float


@dataclass(frozen=True, slots=True)
class _Network:
    """Where the rank and the reflector are: addresses, and namespaces if they have some of their own."""

    path: str
    rank: str = HERE
    reflector: str = HERE
    rank_space: str | None = None
    reflector_space: str | None = None


def measure_paths(
    report: Callable[[PathRate], None] = lambda rate: None,
    sizes: Sequence[int] = V1MODEL_ELEMENTS,
    seconds: float | None = None,
    tensor_bytes: int | None = None,
    skip: Callable[[str], None] = lambda reason: None,
) -> list[PathRate]:
    """Measure each path of this host, with packets of each size.

    Args:
        report: gets each row as soon as it is measured.
        sizes: elements of a packet.
        seconds: for each size, about [SECONDS].
        tensor_bytes: of the gradient [TENSOR_BYTES]; below the size of the caches it is the caches' speed.
        skip: gets a line that says why the path "xdp" cannot be measured here.

    Raises:
        RunError: a path does not carry what is sent, or the results are wrong.
    """
    seconds, tensor_bytes = seconds or SECONDS, tensor_bytes or TENSOR_BYTES
    limit_s = min(LIMIT_S, seconds)
    copied = 8 * copied_gb_s(limit_s, tensor_bytes)
    rates = []

    def measure(network: _Network) -> None:
        for elements in sizes:
            rate = _measure(network, elements, seconds, limit_s, tensor_bytes, copied)
            report(rate)
            rates.append(rate)

    with _on("udp"):
        measure(_Network("udp"))
    with _on("xdp"), ExitStack() as cabled:
        try:
            network = cabled.enter_context(_cabled())
            inside(str(network.rank_space), lambda: _try_path(network))
        except (NamespaceError, OSError) as error:
            skip(f"the path xdp is not measured: {error}")
        else:
            measure(network)
    return rates


@contextmanager
def _on(path: str) -> Iterator[None]:
    """Have sockets that are opened meanwhile use a path."""
    chosen = {"NETFOLD_PATH": path, "NETFOLD_XDP_QUEUE": "0"}
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _cabled() -> Iterator[_Network]:
    """Two namespaces with a veth pair. Raises NamespaceError: it takes root."""
    with namespace("bench") as rank_space, namespace("bench") as reflector_space:
        rank, reflector = ENDS
        with_tables(rank_space, lambda kernel: veth(kernel, "rank", "reflector", reflector_space, JUMBO_MTU))
        with_tables(rank_space, lambda kernel: set_up(kernel, "rank", rank, PREFIX_BITS))
        with_tables(reflector_space, lambda kernel: set_up(kernel, "reflector", reflector, PREFIX_BITS))
        yield _Network("xdp", rank, reflector, rank_space, reflector_space)


def _try_path(network: _Network) -> None:
    """Raise OSError with the reason if this process cannot use the path."""
    engine = _engine.Engine(network.rank)
    check = for_engine(check_words(SECRET, 1, V1MODEL_ELEMENTS[0]))
    engine.configure(network.reflector, 9, 1, 1, 0, 1, [(0, SLOTS_PER_POOL)], V1MODEL_ELEMENTS[0], check)


def _there(space: str | None, do: Callable[[], Returned]) -> Returned:
    return do() if space is None else inside(space, do)


def _stream(network: _Network, port: int, limit_s: float, packet_bytes: int) -> float:
    """Packets per second of CPU time that a core sends and receives on the path."""
    if network.path == "udp":
        return packets_per_s(limit_s, packet_bytes)
    stream = (network.rank, network.reflector, port, packet_bytes, limit_s)
    try:
        return _there(network.rank_space, lambda: _engine.bare_stream(*stream))
    except RuntimeError as error:
        raise RunError(f"the path {network.path} does not carry packets: {error}") from None


def _measure(
    network: _Network, elements: int, seconds: float, limit_s: float, tensor_bytes: int, copied: float
) -> PathRate:
    gradient = np.resize(np.random.default_rng(1).standard_normal(1 << 16).astype(np.float32), tensor_bytes // 4)
    cores = sorted(os.sched_getaffinity(0))
    check = for_engine(check_words(SECRET, 1, elements))
    with pinned(cores[1:2] or cores):
        reflector = _there(network.reflector_space, lambda: _engine.Reflector(network.reflector))

    def start_engine() -> tuple[_engine.Engine, int]:
        before = _threads()
        engine = _engine.Engine(network.rank)
        (thread,) = _threads() - before
        engine.configure(network.reflector, reflector.port, 1, 1, 0, 1, [(0, SLOTS_PER_POOL)], elements, check)
        return engine, thread

    with pinned(cores[:1]):
        packet_bytes = constants.HEADER_BYTES + 4 * elements
        stream = _stream(network, reflector.port, limit_s, packet_bytes) * 32 * elements / 1e9
        engine, thread = _there(network.rank_space, start_engine)
    expected = gradient.copy()
    _sum(engine, gradient)  # the sockets and the caches are warm, and the round trip is known
    _require_same(gradient, expected, elements)
    begun, counted = _cpu_s(thread), engine.stats()
    start = time.perf_counter()
    while (passed_s := time.perf_counter() - start) < seconds or (
        # CPU time is counted in ticks, of which a busy machine may have given the thread none yet.
        passed_s < seconds + DEADLINE_S and _cpu_s(thread)[0] == begun[0]
    ):
        _sum(engine, gradient)
    wall_s = time.perf_counter() - start
    user_s, system_s = (now - then for now, then in zip(_cpu_s(thread), begun, strict=True))
    done = {name: count - counted[name] for name, count in engine.stats().items()}
    round_trip_us = _round_trip_us(engine, elements)
    engine.halt()
    kib = done["chunks"] * elements * 4 / 1024
    return PathRate(
        path=network.path,
        elements=elements,
        goodput_gbit_s=kib * 8192 / wall_s / 1e9,
        cpu_us_per_packet=(user_s + system_s) * 1e6 / done["chunks"],
        engine_us_per_kib=user_s * 1e6 / kib,
        sent_again=done["retransmits"] / done["packets_sent"],
        round_trip_us=round_trip_us,
        stream_gbit_s=stream,
        copied_gbit_s=copied,
    )


def _sum(engine: _engine.Engine, gradient: np.ndarray) -> None:
    try:
        engine.allreduce(gradient, False, DEADLINE_S)
    except _engine.Stalled as error:
        raise RunError(f"the path does not carry packets: {error}") from None


def _round_trip_us(engine: _engine.Engine, elements: int) -> float:
    packet, times = np.ones(elements, np.float32), []
    for _ in range(ROUND_TRIPS):
        start = time.perf_counter()
        _sum(engine, packet)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def _require_same(summed: np.ndarray, expected: np.ndarray, elements: int) -> None:
    """Check the sum of one rank's gradient. Raises RunError."""
    whole = len(summed) // elements * elements
    values = expected[:whole].reshape(-1, elements)
    missed = np.abs(summed[:whole].reshape(-1, elements) - values)
    if not (missed <= EXACT * np.abs(values).max(axis=1, keepdims=True)).all():
        raise RunError("the engine's sums of one rank's gradient are wrong")


def _threads() -> set[int]:
    return {each.id for each in psutil.Process().threads()}


def _cpu_s(thread: int) -> tuple[float, float]:
    """CPU time of a thread of this process, in user mode and in the kernel, seconds."""
    (found,) = (each for each in psutil.Process().threads() if each.id == thread)
    return found.user_time, found.system_time


def print_rates(rates: list[PathRate], console: Console) -> None:
    """Print a line for each path and size, under the CPU's name."""
    copied = rates[0].copied_gbit_s if rates else 0.0
    table = Table(
        title=f"{cpu_name()}, {_engine.kernels_name()} kernels, cores: {usable_cores()}; "
        f"a core copies {copied:.0f} Gbit/s",
        title_justify="left",
        title_style="",
    )
    table.add_column("path")
    for name in (
        "elements",
        "goodput (Gbit/s)",
        "bare stream (Gbit/s)",
        "CPU per packet (us)",
        "engine per KiB (us)",
        "sent again",
        "round trip (us)",
    ):
        table.add_column(name, justify="right")
    for rate in rates:
        table.add_row(
            rate.path,
            f"{rate.elements:,}",
            f"{rate.goodput_gbit_s:.2f}",
            f"{rate.stream_gbit_s:.2f}",
            f"{rate.cpu_us_per_packet:.3f}",
            f"{rate.engine_us_per_kib:.3f}",
            f"{rate.sent_again:.2%}",
            f"{rate.round_trip_us:.0f}",
        )
    console.print(table)
