"""The device's side of a collective, piece by piece, on a device without a GPU."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hostlib import _engine, device_sum, devicebench, kernel
from hostlib.device_sum import Cut, DeviceSums
from hostlib.errors import RunError
from hostlib.summand import Summand
from tests.conftest import ROOT
from tests.threaded_device import ThreadedDevice, ThreadedStream

ELEMENTS = 32
HOST = torch.device("cpu")


@pytest.mark.parametrize(("blocks", "slots", "lanes"), [(1, 4, 1), (9, 4, 1), (40, 8, 3), (5, 2, 3), (2, 16, 4)])
def test_codes_are_shared_as_the_engine_shares_them(blocks: int, slots: int, lanes: int) -> None:
    x = np.ldexp(1.0, np.random.default_rng(blocks).integers(-90, 90, blocks * ELEMENTS - 3)).astype(np.float32)
    each = [kernel.block_code("float32", x[i : i + ELEMENTS]) for i in range(0, len(x), ELEMENTS)]
    codes = torch.tensor(each, dtype=torch.int16)
    Cut(ELEMENTS, slots, lanes).share_openings(codes)
    assert codes.tolist() == _engine.own_codes(x, ELEMENTS, slots, [-1] * lanes).tolist()


def ask(device: ThreadedDevice, tensor: Tensor) -> tuple[Any, Any]:
    """(future, what goes on) of a sum over two ranks."""
    sums = DeviceSums(device, 2, Cut(ELEMENTS, 4, 1), lambda codes: None)
    future = device.future()
    return future, sums.ask(tensor, tensor.dtype, False, future)


def test_no_more_pieces_are_under_way_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_sum, "PIECE_BYTES", 4 * 8 * ELEMENTS)
    monkeypatch.setattr(device_sum, "PIECES", 5)
    tensor = torch.arange(20.0 * 8 * ELEMENTS)
    expected = 2 * tensor
    future, go_on = ask(ThreadedDevice(), tensor)
    given: list[Summand] = []
    full = threading.Semaphore(0)
    other = threading.Thread(target=lambda: go_on(lambda summand: (given.append(summand), full.release())))
    other.start()
    done = 0
    while done < 20:
        assert full.acquire(timeout=30)
        # What was given and not delivered, and at most AHEAD + 1 that are being made.
        assert len(given) - done <= 5
        given[done].values.mul_(2)
        given[done].deliver()
        done += 1
    other.join(30)
    assert not other.is_alive() and torch.equal(future.wait(), expected) and future.value() is tensor


@pytest.mark.parametrize("kernel", ["block_codes", "quantise", "dequantise"])
def test_a_device_that_fails_is_one_line_and_leaves_no_room_taken(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ThreadedStream, *_: object) -> None:
        def launched() -> None:
            raise ValueError("no such kernel")

        self.ask(launched)

    def give(summand: Summand) -> None:
        try:
            summand.deliver()
        except RunError as wrong:
            summand.refuse(wrong)
            raise

    monkeypatch.setattr(ThreadedStream, kernel, broken)
    monkeypatch.setattr(device_sum, "PIECES", 1)
    tensor = torch.ones(100)
    device = ThreadedDevice()
    sums = DeviceSums(device, 2, Cut(ELEMENTS, 4, 1), lambda codes: None)
    for _ in range(1 if kernel == "quantise" else 2):
        go_on = sums.ask(tensor, tensor.dtype, False, device.future())
        with pytest.raises(RunError, match="device failed: ValueError"):
            go_on(give)


def test_a_bench_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devicebench, "PASSES", 1)
    device = ThreadedDevice()
    rates = devicebench.kernel_rates(device, HOST, 4 * 10 * devicebench.CUT.elements, 0.001)
    assert [(rate.name, rate.dtype) for rate in rates[:3]] == [
        (name, "float32") for name in ("block_codes", "quantise", "dequantise")
    ]
    assert len(rates) == 9 and all(rate.ratio == rate.gb_s / rate.memcpy_gb_s > 0 for rate in rates)
    bucket = devicebench.bucket_time(device, HOST, 1 << 16, 0.001)
    assert 0 < bucket.asking_us < bucket.whole_us and bucket.copies_us > 0


WITHOUT_TRITON = """
import sys
sys.modules["triton"] = None
import hostlib.backend
try:
    import hostlib.cuda
except hostlib.errors.HostlibError as line:
    sys.exit(str(line))
"""


def test_without_triton_all_but_cuda_works() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_TRITON], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr.startswith(
        "sums of CUDA tensors need Triton, which every CUDA build of torch brings: pip install"
    )


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--device", "cuda"], "error: --device cuda measures kernels alone: add --kernels"),
        pytest.param(
            ["--device", "cuda", "--kernels"],
            "error: no CUDA device: torch ",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
        ),
    ],
)
def test_figures_of_a_gpu_need_one(options: list[str], line: str) -> None:
    command = [sys.executable, "-m", "hostlib", "bench", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(line) and len(done.stderr.splitlines()) == 1
