"""`emulation demo`, whole, and interrupted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

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


def test_the_demo_leaves_its_result_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run([*DEMO, "--output", tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=115)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert set(result["mechanisms"]) == {"inagg+mcast", "ring", "gloo"}
    for name, run in result["mechanisms"].items():
        assert run["test_accuracy"] >= 0.95, name
        assert len(run["weights_sha256"]) == 4
        assert len(set(run["weights_sha256"])) == 1, name
        assert run["steps"] == 264
        assert run["iteration_ms_median"] > 0
    switch = result["switch"]
    assert (switch["kind"], switch["program"]) == ("embedded", "netfold-v1model-256")
    assert switch["slots_completed"] == switch["slots_predicted"] > 0
    assert switch["replicas_out"] == 4 * switch["slots_completed"]
    assert switch["packets_in"] >= 4 * switch["slots_completed"]
    assert "slots completed" in done.stdout
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_an_interrupted_demo_stops_what_it_started(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with (tmp_path / "said").open("w+") as said:
        demo = subprocess.Popen([*DEMO, "--output", tmp_path / "out"], cwd=ROOT, stdout=said, stderr=said)
        give_up = time.monotonic() + 60
        while ": step " not in (tmp_path / "said").read_text():
            assert demo.poll() is None and time.monotonic() < give_up
        demo.send_signal(number)
        assert demo.wait(30) == code
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_killed_controller_does_not_stop_the_demos_training(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        demo = subprocess.Popen(
            [*DEMO, "--output", tmp_path / "out", "--mechanisms", "inagg+mcast", "--epochs", "8"],
            cwd=ROOT,
            stdout=said,
            stderr=said,
        )
        give_up = time.monotonic() + 60
        while ": step " not in (tmp_path / "said").read_text():
            assert demo.poll() is None and time.monotonic() < give_up
        state = json.loads((tmp_path / "out" / "fabric" / "controller.json").read_text())
        os.kill(state["pid"], signal.SIGKILL)
        assert demo.wait(60) == 1
    run = json.loads((tmp_path / "out" / "inagg+mcast.json").read_text())
    assert run["steps"] == 176
    assert "the controller died" in (tmp_path / "said").read_text().splitlines()[-1]
    assert processes_of(tmp_path) == []


def test_a_killed_demo_takes_everything_with_it(tmp_path: Path) -> None:
    with (tmp_path / "said").open("w+") as said:
        demo = subprocess.Popen([*DEMO, "--output", tmp_path / "out"], cwd=ROOT, stdout=said, stderr=said)
        give_up = time.monotonic() + 60
        while ": step " not in (tmp_path / "said").read_text():
            assert demo.poll() is None and time.monotonic() < give_up
        demo.kill()
        demo.wait(10)
    give_up = time.monotonic() + 20
    while processes_of(tmp_path):
        assert time.monotonic() < give_up, processes_of(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ["--mechanisms", "ring,smoke-signals"],
            "unknown mechanism 'smoke-signals'; legal are butterfly, gloo",
        ),
        (["--model", "resnet9000"], "unknown model 'resnet9000'; legal are MODULE:FACTORY, alexnet"),
        (["--world-size", "0"], "--world-size must be at least 1, not 0"),
        (["--loss", "3"], "the embedded switch did not start: loss 3.0 is not a probability in [0, 1)"),
        (["--elements", "100"], "no program for 100 elements per packet; there are 64 and 256"),
    ],
)
def test_what_cannot_run_starts_nothing(tmp_path: Path, options: list[str], says: str) -> None:
    done = subprocess.run([*DEMO, "--output", tmp_path, *options], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ") and says in lines[0]
    assert processes_of(tmp_path) == []
