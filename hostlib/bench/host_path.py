"""`hostlib bench --path`: what a gradient's way through one rank's engine takes of a core.

The engine's thread has a core, and a reflector, which sends every packet back as its result, another. So nothing of a
switch or of other ranks is in the figures: only what this rank does, and what the kernel does for it. Beside them stand
the limits of the same run: what a core copies, and a bare stream of the same packets, sent and received by one core.

CPU time is the thread's, which its core's other work does not change. The engine's own part is what the thread spent
outside the kernel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
from hostlib.protocol.slots import SLOTS_PER_POOL
from hostlib.system.machine import cpu_name, pinned, usable_cores

ELEMENTS = (64, 256, 1024, 2048)
TENSOR_BYTES = 64 << 20
SECONDS, LIMIT_S = 2.0, 0.5  # for each size, and for each of its limits
DEADLINE_S = 10.0
HERE = "127.0.0.1"
SECRET = 16 * "00"  # any takes as long
EXACT = 2.0**-27  # of a block's largest value: what one rank's sum may miss where levels set the scale


@dataclass(frozen=True, slots=True)
class PathRate:
    """What one rank does over one path with packets of one size.

    Attributes:
        path: "udp", the kernel's sockets.
        elements: of a packet.
        goodput_gbit_s: gradient (float32) summed, 10^9 bits per second of wall time.
        cpu_us_per_packet: CPU time of the engine's thread for each packet that it sends and whose result it receives.
        engine_us_per_kib: of that, outside the kernel, per 1,024 bytes of gradient.
        sent_again: packets that were sent again, as a part of all.
        stream_gbit_s: 10^9 bits of gradient per second that one core sends and receives in such packets, and no more.
        copied_gbit_s: 10^9 bits per second that a core copies from memory to memory.
    """

    path: str
    elements: int
    goodput_gbit_s: float
    cpu_us_per_packet: float
    engine_us_per_kib: float
    sent_again: float
    stream_gbit_s: float
    copied_gbit_s: float


def measure_paths(
    report: Callable[[PathRate], None] = lambda rate: None,
    sizes: Sequence[int] = ELEMENTS,
    seconds: float | None = None,
    tensor_bytes: int | None = None,
) -> list[PathRate]:
    """Measure each path of this host, with packets of each size.

    Args:
        report: gets each row as soon as it is measured.
        sizes: elements of a packet.
        seconds: for each size, about [SECONDS].
        tensor_bytes: of the gradient [TENSOR_BYTES]; below the size of the caches it is the caches' speed.

    Raises:
        RunError: loopback does not carry what is sent, or the results are wrong.
    """
    seconds, tensor_bytes = seconds or SECONDS, tensor_bytes or TENSOR_BYTES
    limit_s = min(LIMIT_S, seconds)
    copied = 8 * copied_gb_s(limit_s, tensor_bytes)
    rates = []
    for elements in sizes:
        rate = _measure(elements, seconds, limit_s, tensor_bytes, copied)
        report(rate)
        rates.append(rate)
    return rates


def _measure(elements: int, seconds: float, limit_s: float, tensor_bytes: int, copied: float) -> PathRate:
    packet_bytes = constants.HEADER_BYTES + 4 * elements
    stream = packets_per_s(limit_s, packet_bytes) * 32 * elements / 1e9
    gradient = np.resize(np.random.default_rng(1).standard_normal(1 << 16).astype(np.float32), tensor_bytes // 4)
    cores = sorted(os.sched_getaffinity(0))
    with pinned(cores[1:2] or cores):
        reflector = _engine.Reflector(HERE)
    with pinned(cores[:1]):
        before = _threads()
        engine = _engine.Engine(HERE)
        (thread,) = _threads() - before
    check = for_engine(check_words(SECRET, 1, elements))
    engine.configure(HERE, reflector.port, 1, 1, 0, 1, [(0, SLOTS_PER_POOL)], elements, check)
    expected = gradient.copy()
    _sum(engine, gradient)  # the sockets and the caches are warm, and the round trip is known
    _require_same(gradient, expected, elements)
    begun, counted = _cpu_s(thread), engine.stats()
    start = time.perf_counter()
    while time.perf_counter() < start + seconds:
        _sum(engine, gradient)
    wall_s = time.perf_counter() - start
    user_s, system_s = (now - then for now, then in zip(_cpu_s(thread), begun, strict=True))
    done = {name: count - counted[name] for name, count in engine.stats().items()}
    engine.halt()
    kib = done["chunks"] * elements * 4 / 1024
    return PathRate(
        path="udp",
        elements=elements,
        goodput_gbit_s=kib * 8192 / wall_s / 1e9,
        cpu_us_per_packet=(user_s + system_s) * 1e6 / done["chunks"],
        engine_us_per_kib=user_s * 1e6 / kib,
        sent_again=done["retransmits"] / done["packets_sent"],
        stream_gbit_s=stream,
        copied_gbit_s=copied,
    )


def _sum(engine: _engine.Engine, gradient: np.ndarray) -> None:
    try:
        engine.allreduce(gradient, False, DEADLINE_S)
    except _engine.Stalled as error:
        raise RunError(f"loopback does not carry packets of {HERE}: {error}") from None


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
        )
    console.print(table)
