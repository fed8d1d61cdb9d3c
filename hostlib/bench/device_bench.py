"""Performance of a device's kernels compared with its memory copies, and a bucket's overhead without the network.

Kernel rates count bytes read and written, as memcpy's does. A bucket takes the whole path through
hostlib/staging/device_reduction.py, except for the network: its words are used as the sum.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from hostlib.bench.kernels import KernelRate
from hostlib.protocol.openings import TensorCut
from hostlib.staging.device import Device
from hostlib.staging.device_reduction import DeviceReduction
from hostlib.staging.find_device import device_of, require_cuda
from hostlib.staging.request import ReduceRequest

TENSOR_BYTES = 256 << 20
BUCKET_BYTES = (1 << 20, 4 << 20, 25 << 20)
WORLD_SIZE = 4
CUT = TensorCut(elements=256, slots=128, lanes=1, world_size=WORLD_SIZE)
PASSES = 10  # launches that are timed together
ROUNDS_MIN = 5
FLOATS = (torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class BucketTime:
    """Medians for one bucket of float32.

    Attributes:
        asking_us: until the caller can continue.
        whole_us: until the result is in the bucket.
        copies_us: only copying the same bytes to pinned memory and back.
    """

    bucket_bytes: int
    asking_us: float
    whole_us: float
    copies_us: float

    @property
    def overhead_us(self) -> float:
        return self.whole_us - self.copies_us


@dataclass(frozen=True, slots=True)
class DeviceFigures:
    """Measurements on a device of that name."""

    name: str
    kernels: list[KernelRate]
    buckets: list[BucketTime]


def measure_cuda(seconds: float, name: str = "cuda") -> DeviceFigures:
    """Measure a CUDA device for about `seconds`; `cuda` is the current one.

    Raises:
        HostlibError: there is none, or Triton is missing.
    """
    where = require_cuda(name)
    torch.cuda.set_device(where)
    device = device_of(torch.empty(1, device=where))
    assert device is not None
    return DeviceFigures(
        torch.cuda.get_device_name(where),
        kernel_rates(device, where, TENSOR_BYTES, seconds / 2),
        [bucket_time(device, where, size, seconds / 2 / len(BUCKET_BYTES)) for size in BUCKET_BYTES],
    )


def kernel_rates(device: Device, where: torch.device, tensor_bytes: int, seconds: float) -> list[KernelRate]:
    """Rates of block_codes, quantise and dequantise for every dtype; measurements alternate with memcpy."""
    stream = device.stream()
    passes: dict[tuple[str, str], tuple[Callable[[], object], int]] = {}
    plain = torch.randn(tensor_bytes // 4, device=where)
    target = torch.empty_like(plain)
    passes["memcpy", ""] = (partial(stream.copy, target, plain), 2 * plain.nbytes)
    words = torch.empty(tensor_bytes // 2, dtype=torch.int32, device=where)
    for dtype in FLOATS:
        values = plain if dtype == torch.float32 else torch.cat([plain, plain]).to(dtype)
        count, name = values.numel(), str(dtype).removeprefix("torch.")
        codes = torch.empty(-(-count // CUT.elements), dtype=torch.int16, device=where)
        back, its = torch.empty_like(values), words[:count]
        sizes = (CUT.elements, WORLD_SIZE)
        passes["block_codes", name] = (partial(stream.block_codes, values, codes, CUT.elements), values.nbytes)
        passes["quantise", name] = (partial(stream.quantise, values, codes, its, *sizes), values.nbytes + its.nbytes)
        passes["dequantise", name] = (
            partial(stream.dequantise, its, codes, back, *sizes, True),
            back.nbytes + its.nbytes,
        )
    stream.after(device.now())
    taken: dict[tuple[str, str], list[int]] = {key: [] for key in passes}
    with stream.use():
        for once, _ in passes.values():  # Triton compiles at the first launch.
            once()
        stream.mark().wait()
        end_ns = time.perf_counter_ns() + int(seconds * 1e9)
        while len(taken["memcpy", ""]) < ROUNDS_MIN or time.perf_counter_ns() < end_ns:
            for key, (once, _) in passes.items():
                start_ns = time.perf_counter_ns()
                for _ in range(PASSES):
                    once()
                stream.mark().wait()
                taken[key].append(time.perf_counter_ns() - start_ns)
    rates = {key: PASSES * passes[key][1] / statistics.median(times) for key, times in taken.items()}
    memcpy = rates.pop(("memcpy", ""))
    return [KernelRate(name, dtype, rate, memcpy, rate / memcpy) for (name, dtype), rate in rates.items()]


def bucket_time(device: Device, where: torch.device, bucket_bytes: int, seconds: float) -> BucketTime:
    """Time of averaging a bucket in place."""
    sums = DeviceReduction(device, WORLD_SIZE, CUT, lambda codes: None)
    tensor = torch.randn(bucket_bytes // 4, device=where)
    stream, host = device.stream(), device.pinned(tensor.numel(), tensor.dtype)
    stream.after(device.now())
    asking: list[float] = []
    whole: list[float] = []
    copies: list[float] = []
    end_ns = time.perf_counter_ns() + int(seconds * 1e9)
    while len(whole) < ROUNDS_MIN + 1 or time.perf_counter_ns() < end_ns:
        start_ns = time.perf_counter_ns()
        future = device.future()
        go_on = sums.ask(tensor, tensor.dtype, True, future)
        asking.append(time.perf_counter_ns() - start_ns)
        go_on(_finish)
        future.wait()
        device.now().wait()
        whole.append(time.perf_counter_ns() - start_ns)
        start_ns = time.perf_counter_ns()
        with stream.use():
            stream.copy(host, tensor)
            stream.copy(tensor, host)
        stream.mark().wait()
        copies.append(time.perf_counter_ns() - start_ns)
    # The first one pays one-off costs.
    return BucketTime(bucket_bytes, *(statistics.median(times[1:]) / 1e3 for times in (asking, whole, copies)))


def _finish(request: ReduceRequest) -> None:
    request.deliver()
    request.complete()


def print_tables(figures: DeviceFigures, console: Console) -> None:
    """Print a line per kernel and dtype, and one per bucket, under the device's name."""
    memcpy = figures.kernels[0].memcpy_gb_s
    kernels = Table(title=f"{figures.name}; memcpy {memcpy:.1f} GB/s, read and written", title_justify="left")
    for heading in ("kernel", "type"):
        kernels.add_column(heading)
    for heading in ("GB/s", "of memcpy"):
        kernels.add_column(heading, justify="right")
    for rate in figures.kernels:
        kernels.add_row(rate.name, rate.dtype, f"{rate.gb_s:.1f}", f"{rate.ratio:.2f}")
    buckets = Table(title="a bucket of float32, without the network", title_justify="left")
    for heading in ("size (MiB)", "asking (us)", "whole way (us)", "copies alone (us)", "overhead (us)"):
        buckets.add_column(heading, justify="right")
    for bucket in figures.buckets:
        times = (bucket.asking_us, bucket.whole_us, bucket.copies_us, bucket.overhead_us)
        buckets.add_row(f"{bucket.bucket_bytes / (1 << 20):g}", *(f"{time_us:.0f}" for time_us in times))
    console.print(kernels, buckets)
