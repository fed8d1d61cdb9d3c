"""`emulation demo`, whole, and interrupted. What its runs show holds of `hostlib train`'s, whose they are."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hostlib.protocol.constants import HEADER_BYTES
from tests.conftest import ROOT

FLOAT_BYTES = 4
WORLD_SIZE = 4
MECHANISMS = ["inagg+mcast", "ring", "gloo"]
DEMO = [sys.executable, "-m", "emulation", "demo"]


def processes_of(output: Path) -> list[str]:
    """Command lines of living processes that name this demo's output folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if str(output) in line and int(process.name) != os.getpid():
            found.append(line)
    return found


def wait_for_step(demo: subprocess.Popen[bytes], log: Path) -> None:
    give_up = time.monotonic() + 60
    while ": step " not in log.read_text():
        assert demo.poll() is None and time.monotonic() < give_up
        time.sleep(0.02)


@dataclass(frozen=True, slots=True)
class Demo:
    """What one whole demo said and left."""

    printed: str
    said: str
    result: dict[str, Any]
    runs: dict[str, dict[str, Any]]
    left: list[str]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    output = tmp_path_factory.mktemp("demo")
    done = subprocess.run([*DEMO, "--output", output], cwd=ROOT, capture_output=True, text=True, timeout=115)
    assert done.returncode == 0, done.stderr
    runs = {name: json.loads((output / f"{name}.json").read_text()) for name in MECHANISMS}
    return Demo(done.stdout, done.stderr, json.loads((output / "result.json").read_text()), runs, processes_of(output))


def test_the_demo_leaves_its_result_and_nothing_else(demo: Demo) -> None:
    assert set(demo.result["mechanisms"]) == set(MECHANISMS)
    for name, run in demo.result["mechanisms"].items():
        assert run["test_accuracy"] >= 0.95, name
        assert len(run["weights_sha256"]) == WORLD_SIZE
        assert len(set(run["weights_sha256"])) == 1, name
        assert run["steps"] == 264
        assert run["iteration_ms_median"] > 0
    switch = demo.result["switch"]
    assert (switch["kind"], switch["program"]) == ("embedded", "netfold-v1model-256")
    assert switch["slots_completed"] == switch["slots_predicted"] > 0
    assert switch["replicas_out"] == 4 * switch["slots_completed"]
    assert switch["packets_in"] >= 4 * switch["slots_completed"]
    assert "slots completed" in demo.printed
    (compared,) = demo.result["comparison"]
    assert compared["sentence"] in demo.printed and demo.result["weights"] in demo.printed
    assert (compared["hosts"], compared["speedup"] > 0) == ("ring", True) and 0 < compared["fewer_bytes"] < 0.35
    assert "The weights' hashes differ between mechanisms" in demo.printed
    assert re.search(r"starting the controller and the embedded switch, which runs .* \.\.\.\n  done in", demo.said)
    assert re.search(r"over gloo \(run 3 of 3\) \.\.\.\n(.*\n)*  done in [\d.]+ s", demo.said)
    assert demo.left == []


def reduced_elements(run: dict[str, Any]) -> int:
    """Elements of all all-reduces of a run together."""
    return sum(int(size) * count for size, count in run["bucket_elements"].items())


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_gradient_is_summed_once(mechanism: str, demo: Demo) -> None:
    run = demo.runs[mechanism]
    assert run["mechanism"] == mechanism
    assert reduced_elements(run) == run["parameters"] * run["steps"]


@pytest.mark.parametrize("mechanism", ["ring", "gloo"])
def test_peers_links_carry_what_a_ring_does(mechanism: str, demo: Demo) -> None:
    run = demo.runs[mechanism]
    payload = FLOAT_BYTES * reduced_elements(run) * 2 * (WORLD_SIZE - 1) / WORLD_SIZE
    for link in run["link_bytes"].values():
        # Gloo's message headers and DDP's start come on top.
        assert payload <= link["sent"] <= 1.1 * payload
        assert payload <= link["received"] <= 1.1 * payload
    assert run["engine"] == [None] * WORLD_SIZE
    assert run["steps_chunks_total"] == 0


def test_fabric_links_carry_every_chunk_once_each_way(demo: Demo) -> None:
    run = demo.runs["inagg+mcast"]
    packet_bytes = HEADER_BYTES + FLOAT_BYTES * run["elements_per_packet"]
    for rank, engine in enumerate(run["engine"]):
        assert engine["chunks"] == engine["position"] == run["steps_chunks_total"]
        assert engine["packets_sent"] - engine["retransmits"] == engine["chunks"]
        assert engine["packets_received"] - engine["duplicates"] - engine["foreign"] == engine["chunks"]
        assert engine["bytes_sent"] == engine["packets_sent"] * packet_bytes
        # On a busy machine, the fabric's answer to a question before the start may come after it.
        assert engine["damaged"] == 0 and engine["foreign"] <= 2
        # What is sent again was lost, maybe before the link counts it: on a busy machine, sockets overflow.
        assert run["link_bytes"][f"rank{rank}"]["sent"] >= engine["chunks"] * packet_bytes


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 130, marks=(pytest.mark.slow, pytest.mark.crossed))],
)
def test_an_interrupted_demo_stops_what_it_started(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with (tmp_path / "log").open("w+") as log:
        demo = subprocess.Popen([*DEMO, "--output", tmp_path / "out"], cwd=ROOT, stdout=log, stderr=log)
        wait_for_step(demo, tmp_path / "log")
        demo.send_signal(number)
        assert demo.wait(30) == code
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "out" / "result.json").exists()


@pytest.mark.slow
def test_a_killed_controller_does_not_stop_the_demos_training(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        demo = subprocess.Popen(
            [*DEMO, "--output", tmp_path / "out", "--mechanism", "inagg+mcast", "--epochs", "8"],
            cwd=ROOT,
            stdout=log,
            stderr=log,
        )
        wait_for_step(demo, tmp_path / "log")
        state = json.loads((tmp_path / "out" / "fabric" / "controller.json").read_text())
        os.kill(state["pid"], signal.SIGKILL)
        assert demo.wait(60) == 1
    run = json.loads((tmp_path / "out" / "inagg+mcast.json").read_text())
    assert run["steps"] == 176
    assert "the controller died" in (tmp_path / "log").read_text().splitlines()[-1]
    assert processes_of(tmp_path) == []


@pytest.mark.slow
def test_a_killed_demo_takes_everything_with_it(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+") as log:
        demo = subprocess.Popen([*DEMO, "--output", tmp_path / "out"], cwd=ROOT, stdout=log, stderr=log)
        wait_for_step(demo, tmp_path / "log")
        demo.kill()
        demo.wait(10)
    give_up = time.monotonic() + 20
    while processes_of(tmp_path):
        assert time.monotonic() < give_up, processes_of(tmp_path)
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--mechanism", "ring,smoke-signals"],
            "unknown mechanism 'smoke-signals'; legal are butterfly, gloo",
        ),
        (["--model", "resnet9000"], "unknown model 'resnet9000'; legal are MODULE:FACTORY, alexnet"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
        (["--loss", "3"], "error: --loss: '3' is not a probability in [0, 1)"),
        (["--elements", "100"], "no program for 100 elements per packet; there are 64, 256, 1024, 2048"),
    ],
)
def test_what_cannot_run_starts_nothing(tmp_path: Path, options: list[str], says: str) -> None:
    done = subprocess.run([*DEMO, "--output", tmp_path, *options], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == (2 if "see `" in done.stderr else 1)  # 2: of the command line, which has a help
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and says in lines[0]
    assert processes_of(tmp_path) == []
