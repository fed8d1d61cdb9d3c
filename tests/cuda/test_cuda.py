"""CUDA tensors on a real device: `python -m pytest tests/cuda tests/process/hostlib/test_cuda_kernel.py`,
as root or not.

tests/integration/pytorch/test_device.py has the same without a GPU; tests/process/hostlib/test_cuda_kernel.py has
the kernels, on either.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.conftest import Fabric, running_fabric
from tests.device_run import ended, start, wait_for

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def fabric(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fabric]:
    with running_fabric(tmp_path_factory.mktemp("fabric")) as started:
        yield started


@pytest.mark.timeout(400)
@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring", "gloo", "shm"])
def test_cuda_tensors_are_summed_as_those_of_the_host(mechanism: str, fabric: Fabric, tmp_path: Path) -> None:
    run = start(fabric, tmp_path, "all", "cuda", NETFOLD_MECHANISM=mechanism)
    for rank, seen in enumerate(ended(run, tmp_path)):
        assert [what for what, same in seen["same"].items() if not same] == []
        # Nothing waited for what the compute stream still had to do, and everything used what it made.
        assert seen["early"] == [False] * 3
        assert seen["late"] == [3.0, 3.0, 1.5] * 2
        assert seen["coalesced"] == [[1.0] * 3, [], [1.0] * 2]
        assert seen["share"] == [[0.0, 1.5], [3.0, 4.5]][rank]
        assert seen["alone"] == [rank + 1.0] * 5
        assert seen["passed"] == [2.0 - rank] * 3
        assert seen["ddp"] == seen["fsdp"] == [4.5] * 8


@pytest.mark.timeout(400)
def test_a_dead_switch_changes_no_bit(start_fabric: Callable[..., Fabric], tmp_path: Path) -> None:
    fabric = start_fabric()
    run = start(fabric, tmp_path, "failover", "cuda")
    wait_for(run, tmp_path / "begun0", tmp_path / "begun1")
    os.kill(fabric.state["processes"]["switch"]["pid"], signal.SIGKILL)
    for seen in ended(run, tmp_path):
        assert seen["mismatches"] == 0 < seen["rounds"]
        assert seen["failures"][0]["by_hosts"] > 0


@pytest.mark.timeout(200)
def test_ranks_are_measured_with_tensors_on_the_device() -> None:
    asked = ["--device", "cuda", "--mechanism", "inagg+mcast,ring", "--workers", "2", "--size", "64K,9M", "--json"]
    command = [sys.executable, "-m", "hostlib", "bench", *asked, "--dtype", "float32,int32"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(rows) == 8 and not any(row["wrong"] for row in rows)


def test_asking_does_not_wait_for_the_compute_stream() -> None:
    """A bucket that takes a second to compute: the caller goes on at once, and the bucket comes out right."""
    from hostlib.protocol.openings import TensorCut
    from hostlib.staging.device_reduction import DeviceReduction
    from hostlib.staging.find_device import device_of

    tensor = torch.zeros(1 << 20, device="cuda")
    device = device_of(tensor)
    assert device is not None
    sums = DeviceReduction(device, 2, TensorCut(256, 128, 1, 2), lambda codes: None)
    for late in (False, True):  # The first time Triton compiles.
        tensor.zero_()
        if late:
            torch.cuda._sleep(2_000_000_000)
        tensor.fill_(3.0)
        computed = torch.cuda.Event()
        computed.record()
        future, start_s = device.future(), time.perf_counter()
        go_on = sums.ask(tensor, tensor.dtype, False, future)
        asking_s = time.perf_counter() - start_s
        assert not late or (not computed.query() and asking_s < 0.2)
        go_on(lambda summand: (summand.deliver(), summand.complete()))
        future.wait()  # The current stream waits for the result.
        assert tensor.sum().item() == 3.0 * tensor.numel()


def test_the_figures_are_those_of_the_device() -> None:
    from hostlib.bench.device_bench import measure_cuda

    figures = measure_cuda(0.5)
    assert figures.name == torch.cuda.get_device_name()
    assert {(rate.name, rate.dtype) for rate in figures.kernels} == {
        (name, dtype)
        for name in ("block_codes", "quantise", "dequantise")
        for dtype in ("float32", "float16", "bfloat16")
    }
    assert all(0.05 < rate.ratio < 1.5 for rate in figures.kernels)
    assert all(0 < bucket.asking_us < bucket.whole_us for bucket in figures.buckets)
