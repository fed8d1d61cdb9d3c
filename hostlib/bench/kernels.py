"""Performance of the CPU kernels compared with memcpy: one core, no network.

Each pass goes over a tensor larger than the caches, packet by packet, as the engine does. The way out, `pack`, computes
a block's exponent code one window before it packs the block (for int32 the whole tensor's, before the first packet).
The way back, `unpack`, tests each packet's elements and computes their check word before it writes the values; `weigh`
is that test alone. Packets are in one batch of reused buffers with room for headers, as the engine's are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from rich.console import Console
from rich.table import Table

from hostlib import _engine
from hostlib.fabric.engine_checks import for_engine
from hostlib.protocol import block_float, constants
from hostlib.protocol.check_words import check_words
from hostlib.system.machine import cpu_name

TENSOR_BYTES = 64 << 20
ELEMENTS, PACKETS, WINDOW, WORLD_SIZE = 256, 64, 128, 4
ROUNDS_MIN = 3
SECRET = 16 * "00"  # any takes as long


@dataclass(frozen=True, slots=True)
class KernelRate:
    """One kernel's rate.

    Attributes:
        name: "pack", "unpack" or "weigh".
        dtype: of the tensor.
        gb_s: bytes of the tensor that are read (pack) or written (unpack), 10^9 per second; median of the rounds.
        memcpy_gb_s: bytes that memcpy copies, each counted once, in the same rounds.
        ratio: gb_s / memcpy_gb_s.
        packet_ns: nanoseconds per packet of ELEMENTS elements; None for kernels that see no packets.
    """

    name: str
    dtype: str
    gb_s: float
    memcpy_gb_s: float
    ratio: float
    packet_ns: float | None = None


def run(
    seconds: float, tensor_bytes: int = TENSOR_BYTES, dtypes: Iterable[str] = tuple(block_float.STORED)
) -> list[KernelRate]:
    """Measure pack and unpack for each dtype, and what of it the check word of a received packet takes.

    All passes and memcpy alternate until the time is up, and this thread's CPU time is measured: a busy machine slows
    them alike, through the shared memory.

    Args:
        seconds: in total, but at least three rounds.
        tensor_bytes: of each tensor; below the size of the caches the rates are the caches'.

    Raises:
        ValueError: no time, or no whole packet in the tensor.
    """
    if not seconds > 0:
        raise ValueError(f"the time must be above 0 s, not {seconds}")
    if tensor_bytes < 4 * ELEMENTS:
        raise ValueError(f"the tensor must have at least {4 * ELEMENTS} bytes, not {tensor_bytes}")
    piece = np.random.default_rng(1).standard_normal(1 << 16).astype(np.float32)
    source = np.resize(piece, tensor_bytes // 4)
    target = np.empty_like(source)
    ring = np.zeros(PACKETS * (constants.HEADER_BYTES + 4 * ELEMENTS), np.uint8)
    passes: dict[tuple[str, str], Callable[[], object]] = {}
    passes["memcpy", ""] = partial(np.copyto, target, source)
    check = for_engine(check_words(SECRET, WORLD_SIZE, ELEMENTS))
    for dtype in dtypes:
        stored = block_float.STORED[dtype]
        x = (
            source.view(stored)
            if np.dtype(stored).itemsize == 4
            else np.resize(block_float.narrowed(dtype, piece), 2 * len(source))
        )
        codes = np.zeros(-(-len(x) // ELEMENTS), np.uint16)
        average = dtype != "int32"
        passes["pack", dtype] = partial(_engine.pack_pass, dtype, x, codes, ring, ELEMENTS, WORLD_SIZE, WINDOW, check)
        back = (dtype, ring, target.view(stored), codes, ELEMENTS, WORLD_SIZE, average, check)
        passes["unpack", dtype] = partial(_engine.unpack_pass, *back)
    packets = source.nbytes // (4 * ELEMENTS)
    passes["weigh", "int32"] = partial(_engine.weigh_pass, ring, packets, ELEMENTS, check)
    taken: dict[tuple[str, str], list[int]] = {key: [] for key in passes}
    end_ns = time.perf_counter_ns() + int(seconds * 1e9)
    rounds = 0
    while rounds < ROUNDS_MIN or time.perf_counter_ns() < end_ns:
        for key, once in passes.items():
            start_ns = time.thread_time_ns()
            once()
            taken[key].append(time.thread_time_ns() - start_ns)
        rounds += 1
    medians = {key: statistics.median(times) for key, times in taken.items()}
    memcpy = source.nbytes / medians.pop(("memcpy", ""))
    found = []
    for (name, dtype), median_ns in medians.items():
        rate = source.nbytes / median_ns
        of_packet = ELEMENTS * np.dtype(block_float.STORED[dtype]).itemsize
        found.append(KernelRate(name, dtype, rate, memcpy, rate / memcpy, median_ns * of_packet / source.nbytes))
    return found


def print_table(rates: list[KernelRate], console: Console) -> None:
    """Print a line per kernel and dtype, under the CPU's name."""
    memcpy = rates[0].memcpy_gb_s if rates else 0.0
    table = Table(
        title=f"{cpu_name()}, one core, {_engine.kernels_name()} kernels; memcpy {memcpy:.1f} GB/s",
        title_justify="left",
    )
    table.add_column("kernel")
    table.add_column("type")
    table.add_column("GB/s", justify="right")
    table.add_column("of memcpy", justify="right")
    table.add_column("ns per packet", justify="right")
    for rate in rates:
        table.add_row(rate.name, rate.dtype, f"{rate.gb_s:.2f}", f"{rate.ratio:.2f}", f"{rate.packet_ns:.0f}")
    console.print(table)
