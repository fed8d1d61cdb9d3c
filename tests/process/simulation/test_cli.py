"""The `simulation` command: what it promises to print, and one line for what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "simulation", *words], cwd=ROOT, capture_output=True, text=True)


def test_run_prints_what_it_promises() -> None:
    done = simulate(
        "run", "--model", "vgg16", "--mechanism", "ring", "--workers", "32", "--bandwidth", "25gbit", "--json",
        "--semantics", "papers",
    )  # fmt: skip
    printed = json.loads(done.stdout)
    assert set(printed) == {"iteration_s", "bytes_per_link", "events", "wall_s"}
    assert printed["iteration_s"] == pytest.approx(0.683, rel=0.03)
    assert len(printed["bytes_per_link"]) == 32


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--bandwidth fast", "--bandwidth: 'fast' is not a number"),
        ("--mechanism gloo", "gloo is a library's own"),
        ("--mechanism rung", "unknown mechanism 'rung'"),
        ("--model vgg16 --size 1MiB", "exclude each other"),
        ("--model vgg16 --straggler 1", "--straggler takes RANK=FACTOR"),
        ("--trace /nowhere", "/nowhere cannot be read as a trace"),
        ("--size 0", "--size must be at least 1 byte"),
        ("--workers -3", "--workers must be at least 1, not -3"),
        ("--oversubscription 3", "--oversubscription is of racks' uplinks: it needs --racks of 2 or more"),
        (
            "--jitter 0.1 --straggler 0=2",
            "--jitter, --straggler: an all-reduce computes nothing; with --model this is legal",
        ),
        ("--size 1MiB --tflops 3", "--tflops: an all-reduce computes nothing"),
        ("--bandwidth 25GB/s", "--bandwidth: '25GB/s' is in bytes; links are in bits per second (as in 25gbit)"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(words: str, says: str) -> None:
    done = simulate("run", *words.split())
    assert (done.returncode in (1, 2), len(done.stderr.splitlines())) == (True, 1)
    assert says in done.stderr


def test_the_command_prints_what_it_promises() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "simulation", "paper", "7", "--json"], cwd=ROOT, capture_output=True, text=True
    )
    printed = json.loads(done.stdout)
    keys = {"table", "row", "column", "published", "simulated", "kind", "rests_on", "faster_links", "time_s"}
    assert [set(cell) for cell in printed] == [keys] * 12
