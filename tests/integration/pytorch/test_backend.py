"""The torch backend "netfold", as a user's own script meets it under torchrun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hostlib.errors import HostlibError
from hostlib.fabric.job_client import DEFAULT_CONTROLLER
from hostlib.launch.fork_server import ForkServer
from hostlib.pytorch.backend import NetfoldProcessGroup
from hostlib.strategies import strategy
from hostlib.system.plugins import Registry
from tests.conftest import ROOT, Fabric
from tests.forked import Ranks

SCRIPT = Path(__file__).with_name("backend_ranks.py")
PATIENCE_S = 100.0


def torchrun(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Two ranks, to their end."""
    rendezvous = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0")
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", *rendezvous, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **environment},
        capture_output=True,
        text=True,
        timeout=110,
    )


def expected_gradients() -> list[torch.Tensor]:
    """What backend_ranks.py's model has after its backward pass, averaged over two ranks by hand."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
    for rank in range(2):
        model(torch.full((3, 4), 0.5 * (rank + 1))).square().sum().backward()
    return [p.grad.flatten() / 2 for p in model.parameters() if p.grad is not None]


def assert_close(seen: list[list[float]], expected: list[torch.Tensor]) -> None:
    # Half a unit of the last of 28 bits per block, and torch's own order of operations.
    for one, wanted in zip(seen, expected, strict=True):
        torch.testing.assert_close(torch.tensor(one), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("mechanism", "end"),
    [("inagg+mcast", "leave"), ("ring", "destroy"), ("gloo", "destroy")],
)
def test_the_backend_reduces_and_passes_the_rest_on(
    mechanism: str, end: str, fabric: Fabric, forks: ForkServer, tmp_path: Path
) -> None:
    environment = {"NETFOLD_MECHANISM": mechanism, "NETFOLD_CONTROLLER": fabric.http}
    if end == "leave":  # as Python ends
        done = torchrun(SCRIPT, tmp_path, end, **environment)
        assert done.returncode == 0, done.stderr
    else:
        ranks = Ranks(forks, tmp_path, SCRIPT, tmp_path, end, **environment)
        _, errors = ranks.communicate(PATIENCE_S)
        assert ranks.returncode == 0, errors
    # Whichever way a script ends, the controller has its places back.
    assert fabric.status()["jobs"] == []
    each: list[dict[str, Any]] = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    for rank, seen in enumerate(each):
        for dtype in ("torch.float32", "torch.float16", "torch.bfloat16", "torch.int32"):
            assert seen[dtype] == [3 * (i % 7) for i in range(1000)], dtype
        assert seen["average"] == seen["future"] == [0.5] * 5
        assert seen["one"] == [3.0]
        assert seen["strided"] == [[3.0] * 3] * 4
        assert seen["coalesced"] == [[1.0] * 3, [], [1.0] * 2]
        assert seen["share"] == [[0.0, 3.0], [6.0, 9.0]][rank]
        assert seen["share of the average"] == [[0.0, 1.5], [3.0, 4.5]][rank]
        assert seen["uneven share"] == [[1.0], [21.0, 21.0]][rank]
        assert seen["coalesced shares"] == [[2.0], [], [2.0] * 3]
        for dtype in ("torch.float64", "torch.int64", "torch.uint8", "torch.int8"):
            for name, wanted in (("SUM", [3, 7, 11, 15]), ("MAX", [2, 4, 6, 8]), ("MIN", [1, 3, 5, 7])):
                assert seen["by gloo"][f"{dtype} {name}"] == wanted
            assert seen["by gloo"][f"{dtype} PRODUCT"] == [2, 12, 30, 56]
        assert seen["by gloo"]["torch.bool SUM"] == seen["by gloo"]["torch.bool MIN"] == [True] * 4
        assert [seen["by gloo"][f"float32 {name}"] for name in ("MAX", "MIN", "PRODUCT")] == [
            [2.0, 3.0, 4.0],
            [1.0, 2.0, 3.0],
            [2.0, 6.0, 12.0],
        ]
        assert seen["by gloo"]["BAND"] == [4]
        assert seen["by gloo"]["share of MAX"] == [rank + 1]
        assert seen["by gloo"]["sparse"] == [[3.0, 0.0], [0.0, 3.0]]
        assert seen["by gloo"]["AVG"] == [0.5 + 2.0**-40]
        assert seen["by gloo"]["torch.int32 AVG"] == seen["by gloo"]["torch.int64 AVG"] == [1, -1, 2]
        assert seen["odd"] == "reduce-scatter: 5 elements are not 2 equal shares"
        assert "the output has 1 elements of torch.float32; legal: 2 of torch.float32" in seen["small"]
        assert "sums no tensors whose elements share memory" in seen["expanded"]
        assert "all-reduce: tensors on META cannot be summed; legal: CPU and CUDA" in seen["elsewhere"]
        assert seen["gathered"] == [0, 1]
        assert seen["broadcast"] == [5.0] * 3
        assert seen["groups"] == [[3.0] * 4, [3.0] * 4, [rank + 1.0] * 4]
        assert seen["after a group's end"] == [6.0] * 4
        assert_close(seen["ddp"], expected_gradients())
        assert_close(seen["fsdp2"], expected_gradients())
    assert each[0]["reduced by gloo"] == [1.0]
    # FSDP1 keeps all parameters as one, of which each rank has a half.
    whole = torch.cat(expected_gradients())
    assert_close([each[0]["fsdp1"] + each[1]["fsdp1"]], [whole])


def test_strictly_only_the_mechanism_reduces(forks: ForkServer, tmp_path: Path) -> None:
    strict = SCRIPT.with_name("strict_ranks.py")
    ranks = Ranks(forks, tmp_path, strict, tmp_path, NETFOLD_MECHANISM="ring", NETFOLD_STRICT="1")
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    for rank in range(2):
        seen = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert seen[0] == seen[3] == "all-reduce: backend netfold does not support MAX (legal: SUM, AVG)"
        assert seen[1] == "reduce-scatter: backend netfold does not support MAX (legal: SUM, AVG)"
        assert "sums dense tensors, not torch.sparse_coo" in seen[2]
        assert "can be summed, not averaged" in seen[4]
        assert "unknown dtype 'torch.float64'; legal are" in seen[5]


def examples() -> list[str]:
    page = (ROOT / "docs" / "torch.md").read_text()
    return re.findall(r"<!-- run by tests/integration/pytorch/test_backend.py -->\n```python\n(.*?)```", page, re.S)


@pytest.mark.parametrize("example", examples(), ids=["backend", "hook"])
def test_the_pages_examples_run(example: str, fabric: Fabric, forks: ForkServer, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(example.replace(DEFAULT_CONTROLLER, fabric.http))
    before = fabric.status()["events"]["completed"]
    ranks = Ranks(forks, tmp_path, script, NETFOLD_CONTROLLER=fabric.http)
    _, errors = ranks.communicate(PATIENCE_S)
    assert ranks.returncode == 0, errors
    assert fabric.status()["events"]["completed"] > before
    assert fabric.status()["jobs"] == []


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("NETFOLD_LANES", "two", "NETFOLD_LANES must be a whole number above 0, not 'two'"),
        ("NETFOLD_DEADLINE_S", "-1", "NETFOLD_DEADLINE_S must be a number above 0, not '-1'"),
        ("NETFOLD_LANES", "1000000000", "NETFOLD_LANES must be at most 4, the pools of slots of a job"),
        ("NETFOLD_WINDOW", "0", "NETFOLD_WINDOW must be a whole number from 1 to 128, the slots of a lane, not '0'"),
        ("NETFOLD_PATIENCE_S", "0", "NETFOLD_PATIENCE_S must be a number above 0, not '0'"),
        (
            "NETFOLD_SILENCE_S",
            "0.1",
            "NETFOLD_SILENCE_S must be at least 0.75 s, as ranks give a sign of life every 0.25 s",
        ),
        ("NETFOLD_DEADLINE_S", "inf", "NETFOLD_DEADLINE_S must be at most 1000000 s, not inf"),
        ("NETFOLD_ADDRESS", "localhost", "NETFOLD_ADDRESS must be an IPv4 address, as 127.0.0.1, not 'localhost'"),
        ("NETFOLD_ADDRESS", "8.8.8.8", "NETFOLD_ADDRESS: no interface of this host has the IPv4 address 8.8.8.8"),
        ("NETFOLD_MECHANISM", "magic", "unknown mechanism 'magic'; legal are"),
        ("NETFOLD_MECHANISM", "ring", "needs torch's TCP store, not HashStore"),
        ("NETFOLD_MECHANISM", "bsp", "needs torch's TCP store, not HashStore"),
        ("NETFOLD_MECHANISM", "wfbp/ring", "needs torch's TCP store, not HashStore"),
        ("NETFOLD_MECHANISM", "bsp/magic", "unknown mechanism 'magic'; legal are"),
        ("NETFOLD_MECHANISM", "magic/ring", "unknown strategy 'magic'; legal are"),
        (
            "NETFOLD_MECHANISM",
            "poseidon",
            "poseidon needs `hostlib train`: a backend only sums the tensors it is given",
        ),
        ("NETFOLD_MECHANISM", "sfb:multicast/ring", "sfb:multicast needs `hostlib train`: a backend only sums"),
        ("NETFOLD_MECHANISM", "sfb:multicast/ring", "the tensors it is given; legal here are bsp, "),
    ],
)
def test_surroundings_that_do_not_fit_are_refused(
    variable: str, value: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(HostlibError) as refused:
        NetfoldProcessGroup(dist.HashStore(), 0, 1, timedelta(seconds=5))
    assert line in str(refused.value)


def test_which_strategies_a_backend_takes_they_say_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    known = strategy.registry()
    sooner = replace(known.specs["wfbp"], name="sooner", mechanism="magic")
    monkeypatch.setattr(strategy, "registry", lambda: Registry({**known.specs, "sooner": sooner}, ()))
    monkeypatch.setenv("NETFOLD_MECHANISM", "sooner")
    with pytest.raises(HostlibError, match="unknown mechanism 'magic'"):  # its own, as it was asked for alone
        NetfoldProcessGroup(dist.HashStore(), 0, 1, timedelta(seconds=5))
    monkeypatch.setenv("NETFOLD_MECHANISM", "adam/ring")
    with pytest.raises(HostlibError, match=r"legal here are bsp, .*sooner, wfbp"):
        NetfoldProcessGroup(dist.HashStore(), 0, 1, timedelta(seconds=5))
