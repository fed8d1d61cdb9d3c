"""The device's side of a collective, piece by piece, on a device without a GPU."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hostlib import _engine
from hostlib.bench import device_bench
from hostlib.errors import RunError
from hostlib.protocol import block_float
from hostlib.protocol.openings import TensorCut
from hostlib.staging import device_reduction
from hostlib.staging.device_reduction import DeviceReduction
from hostlib.staging.request import ReduceRequest
from tests.threaded_device import ThreadedDevice, ThreadedStream

ELEMENTS = 32
HOST = torch.device("cpu")


@pytest.mark.parametrize(("blocks", "slots", "lanes"), [(1, 4, 1), (9, 4, 1), (40, 8, 3), (5, 2, 3), (2, 16, 4)])
def test_codes_are_rounded_as_the_engine_rounds_them(blocks: int, slots: int, lanes: int) -> None:
    x = np.ldexp(1.0, np.random.default_rng(blocks).integers(-90, 90, blocks * ELEMENTS - 3)).astype(np.float32)
    each = [block_float.block_code("float32", x[i : i + ELEMENTS]) for i in range(0, len(x), ELEMENTS)]
    codes = torch.tensor(each, dtype=torch.int16)
    TensorCut(ELEMENTS, slots, lanes, 2).round_openings(codes.numpy(), len(x))
    assert codes.tolist() == _engine.own_codes(x, ELEMENTS, slots, lanes, 2).tolist()


def ask(device: ThreadedDevice, tensor: Tensor) -> tuple[Any, Any]:
    """(future, what goes on) of a sum over two ranks."""
    sums = DeviceReduction(device, 2, TensorCut(ELEMENTS, 4, 1, 2), lambda codes: None)
    future = device.future()
    return future, sums.ask(tensor, tensor.dtype, False, future)


def test_no_more_pieces_are_under_way_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_reduction, "PIECE_BYTES", 4 * 8 * ELEMENTS)
    monkeypatch.setattr(device_reduction, "PIECES", 5)
    tensor = torch.arange(20.0 * 8 * ELEMENTS)
    expected = 2 * tensor
    future, go_on = ask(ThreadedDevice(), tensor)
    requests: list[ReduceRequest] = []
    full = threading.Semaphore(0)
    other = threading.Thread(target=lambda: go_on(lambda summand: (requests.append(summand), full.release())))
    other.start()
    done = 0
    while done < 20:
        assert full.acquire(timeout=30)
        # What was given and not delivered, and at most AHEAD + 1 that are being made.
        assert len(requests) - done <= 5
        requests[done].values.mul_(2)
        requests[done].deliver()
        requests[done].complete()
        done += 1
    other.join(30)
    assert not other.is_alive() and torch.equal(future.wait(), expected) and future.value() is tensor


@pytest.mark.parametrize("kernel", ["block_codes", "quantise", "dequantise"])
def test_a_device_that_fails_is_one_line_and_leaves_no_room_taken(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: ThreadedStream, *_: object) -> None:
        def launched() -> None:
            raise ValueError("no such kernel")

        self.ask(launched)

    def give(summand: ReduceRequest) -> None:
        try:
            summand.deliver()
            summand.complete()
        except RunError as error:
            summand.refuse(error)
            raise

    monkeypatch.setattr(ThreadedStream, kernel, broken)
    monkeypatch.setattr(device_reduction, "PIECES", 1)
    tensor = torch.ones(100)
    device = ThreadedDevice()
    sums = DeviceReduction(device, 2, TensorCut(ELEMENTS, 4, 1, 2), lambda codes: None)
    for _ in range(1 if kernel == "quantise" else 2):
        go_on = sums.ask(tensor, tensor.dtype, False, device.future())
        with pytest.raises(RunError, match="device failed: ValueError"):
            go_on(give)


def test_a_bench_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_bench, "PASSES", 1)
    device = ThreadedDevice()
    rates = device_bench.kernel_rates(device, HOST, 4 * 10 * device_bench.CUT.elements, 0.001)
    assert [(rate.name, rate.dtype) for rate in rates[:3]] == [
        (name, "float32") for name in ("block_codes", "quantise", "dequantise")
    ]
    assert len(rates) == 9 and all(rate.ratio == rate.gb_s / rate.memcpy_gb_s > 0 for rate in rates)
    bucket = device_bench.bucket_time(device, HOST, 1 << 16, 0.001)
    assert 0 < bucket.asking_us < bucket.whole_us and bucket.copies_us > 0
