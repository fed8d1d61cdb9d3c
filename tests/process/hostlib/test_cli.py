"""The `hostlib` command as a person meets it: what it prints, and one line for what it refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.conftest import ROOT

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def command(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a module of ours to its end, outside any torchrun."""
    plain = {k: v for k, v in os.environ.items() if k not in TORCHRUN and not k.startswith("NETFOLD_")}
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**plain, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line that a refused command says."""
    assert done.returncode in (1, 2), done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.strip()


def closed_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_help_says_what_there_is() -> None:
    done = command("hostlib", "--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("train", "mechanisms", "schedule", "bench", "doctor", "torchrun"))


def test_mechanisms_as_json() -> None:
    done = command("hostlib", "mechanisms", "--json")
    printed = json.loads(done.stdout)
    assert set(printed["mechanisms"]) >= {"gloo", "inagg+mcast", "ring"}
    assert printed["mechanisms"]["inagg+mcast"]["needs_fabric"] is True
    assert printed["mechanisms"]["ring"]["needs_fabric"] is False
    bound = {name: (m["transport"], m["device"]) for name, m in printed["mechanisms"].items()}
    assert {name: each for name, each in bound.items() if any(each)} == {"mpi": ("mpi", None), "nccl": (None, "cuda")}
    assert set(printed["strategies"]) >= {"bsp", "wfbp"}


def test_mechanisms_as_a_table() -> None:
    lines = command("hostlib", "mechanisms").stdout.splitlines()
    rows = [[cell.strip() for cell in line.split("│")] for line in lines if line.startswith("│")]
    where = {name: runs_on for _, name, _, runs_on, *_ in rows}
    assert (where["mpi"], where["nccl"], where["gloo"]) == ("hosts, mpi", "hosts, cuda", "hosts")
    assert where["shm"] == "one host"


def test_a_schedule_as_json() -> None:
    done = command("hostlib", "schedule", "ring", "--workers", "4", "--size", "4000", "--json")
    printed = json.loads(done.stdout)
    assert printed["verified"] is True
    assert printed["pieces"] == 4
    assert printed["links"]["worker0"] == {"sent_bytes": 6000, "received_bytes": 6000}
    assert printed["nodes"]["worker0"][0] == "send piece 3 to worker1"


def test_a_pipelines_passes() -> None:
    done = command("hostlib", "schedule", "1f1b:stages=2:microbatches=2/ring")
    assert done.stdout.splitlines()[1:] == ["stage0  F0 F1       B0---    B1---", "stage1     F0 B0--- F1 B1---"]
    printed = json.loads(command("hostlib", "schedule", "interleaved:microbatches=2", "--json").stdout)
    assert printed["passes"]["stage1"] == ["F0a", "F1a", "F0b", "B0b", "F1b", "B1b", "B0a", "B1a"]


def test_a_schedule_of_another_collective() -> None:
    done = command(
        "hostlib", "schedule", "ring", "--workers", "4", "--size", "4000", "--collective", "reduce_scatter", "--json"
    )
    shown = json.loads(done.stdout)
    assert (shown["collective"], shown["verified"]) == ("reduce_scatter", True)
    assert shown["links"]["worker0"] == {"sent_bytes": 3000, "received_bytes": 3000}
    rooted = ("--collective", "broadcast", "--root", "1", "--workers", "2", "--json")
    shown = json.loads(command("hostlib", "schedule", "butterfly", *rooted).stdout)
    assert shown["nodes"] == {
        "worker0": ["receive piece 0 from worker1, copy"],
        "worker1": ["send piece 0 to worker0"],
    }


def test_a_schedule_as_a_table() -> None:
    done = command("hostlib", "schedule", "inagg+mcast", "--workers", "2")
    assert done.returncode == 0
    assert "verified" in done.stdout
    assert "sum piece 0 of worker0, worker1" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["schedule", "rong"], "unknown mechanism 'rong'; legal are"),
        (["schedule", "gloo"], "gloo is a library's own collective and has no schedule"),
        (["schedule", "mpi"], "mpi is a library's own collective and has no schedule"),
        (["schedule", "nccl"], "nccl is a library's own collective and has no schedule"),
        (["schedule", "ring", "--workers", "0"], "--workers must be at least 1"),
        (["train", "--mechanism", "rong"], "unknown mechanism 'rong'; legal are"),
        (["train", "--mechanism", "bps/ring"], "unknown strategy 'bps'; legal are 1f1b, adam, "),
        (["train", "--mechanism", "mpi"], "legal: mpirun -n 4 python -m hostlib.train --transport mpi --mechanism mpi"),
        (["train", "--mechanism", "nccl"], "nccl only sums CUDA tensors, but these ranks' are on the CPU"),
        (["train", "--transport", "mpi", "--mechanism", "nccl"], "nccl only sums CUDA tensors"),
        (["train", "--workers", "0"], "--workers must be at least 1, not 0"),
        (
            ["train", "--save", "/nowhere/x.pt"],
            "cannot write /nowhere/x.pt: its folder does not exist or is not writable",
        ),
        (["train", "--chrome-traces", "/proc/traces"], "/proc/traces: No such file or directory"),
        (["train", "--epochs", "0"], "--epochs must be above 0, not 0"),
        (["train", "--deadline", "-1"], "--deadline: '-1' is not a number"),
        (["bench", "--mechanism", "ring,rong"], "unknown mechanism 'rong'; legal are"),
        (
            ["bench", "--mechanism", "gloo,mpi"],
            "mpi is a library's own collective, for ranks that the library started",
        ),
        (["bench", "--mechanism", "nccl"], "nccl only sums CUDA tensors"),
        (["bench", "--mechanism", ","], "unknown mechanism ''; legal are"),
        (["bench", "--dtype", "float64"], "unknown dtype 'float64'; legal are bfloat16, float16, float32, int32"),
        (
            ["bench", "--size", "16MX"],
            "--size: '16MX' is not a number and one of b, k, kib, m, mib, g, gib, kb, mb, gb (as in 16MiB)",
        ),
        (["bench", "--size", "2"], "a size of 2 bytes is not in 4..4294967296"),
        (["bench", "--size", "8", "--from", "8", "--to", "64"], "give sizes either as a list"),
        (["bench", "--from", "64"], "give sizes either as a list"),
        (["bench", "--from", "64", "--to", "8"], "--from 64 --to 8 is not a range of sizes"),
        (["bench", "--from", "8", "--to", "64", "--factor", "1"], "--factor must be at least 2, not 1"),
        (["bench", "--workers", "33"], "--workers must be in 1..32, not 33"),
        (["bench", "--on", "mininet"], "--on: 'mininet' is not one of"),
        (["bench", "--on", "netns", "--workers", "33"], "--workers must be in 1..32, not 33"),
        (
            ["bench", "--on", "netns", "--workers", "4", "--bandwidth", "fast"],
            "--bandwidth: 'fast' is not a number and one of bit, kbit",
        ),
        (
            ["bench", "--on", "netns", "--workers", "4", "--controller", "http://x"],
            "--controller goes with --on loopback",
        ),
        (["bench", "--bandwidth", "1gbit"], "--bandwidth sets the rate of links between network namespaces"),
        (["bench", "--mechanism", "inagg+mcast,gloo,ring", "--loss", "0.1"], "gloo, ring would not use it"),
        (["bench", "--mechanism", "inagg+mcast", "--loss", "1"], "--loss: '1' is not a probability in [0, 1)"),
        (["bench", "--iterations", "0"], "--iterations must be above 0, not 0"),
        (["doctor", "--address", "192.0.2.1"], "no interface of this host has the IPv4 address 192.0.2.1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(arguments: list[str], line: str) -> None:
    assert line in refusal(command("hostlib", *arguments))


def test_an_absent_controller_is_named_with_the_remedy() -> None:
    url = f"http://127.0.0.1:{closed_port()}"
    line = refusal(command("hostlib", "train", "--mechanism", "inagg+mcast", "--controller", url))
    assert f"no controller answers at {url}" in line
    assert "start one with `controller start`" in line


def test_a_usage_error_is_one_line_as_others_are() -> None:
    line = refusal(command("hostlib", "train", "--epochs", "many"))
    assert line.startswith("error: --epochs: 'many' is not a valid integer")


def test_a_rank_without_torchrun_says_so() -> None:
    line = refusal(command("hostlib.train", "--mechanism", "ring"))
    assert line == "error: RANK is not set: run this under torchrun, or use `hostlib train`"


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({}, "--workers 3 does not match the 2 ranks that were started"),
        ({"RANK": "2"}, "rank 2 is not in 0..1, the ranks of world size 2"),
        ({"RANK": "first"}, "RANK, WORLD_SIZE and MASTER_PORT must be numbers"),
    ],
)
def test_a_rank_in_the_wrong_world_is_refused(environment: dict[str, str], line: str) -> None:
    done = command("hostlib.train", "--mechanism", "ring", "--workers", "3", **{**TORCHRUN, **environment})
    assert line in refusal(done)
