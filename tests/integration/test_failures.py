"""Real processes, really killed: a run ends with one clear line, or goes on, and nothing is left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.conftest import ROOT, Fabric, controller

DEADLINE_S = 4
# Starting torch in four processes takes the longest; a rank that is gone is found within deadline and a look around.
PATIENCE_S = 60.0


@dataclass(slots=True)
class TrainingRun:
    """A `hostlib train` in the background, and what it said."""

    process: subprocess.Popen[bytes]
    said: str = ""
    pids: set[int] = field(default_factory=set)

    def wait_for_step(self) -> None:
        """Until the first progress line: all ranks train."""
        give_up = time.monotonic() + PATIENCE_S
        assert self.process.stderr is not None
        while ": step " not in self.said:
            assert time.monotonic() < give_up, f"no step within {PATIENCE_S} s: {self.said}"
            ready, _, _ = select.select([self.process.stderr], [], [], 1)
            if ready:
                chunk = os.read(self.process.stderr.fileno(), 4096)
                assert chunk, f"it ended before the first step: {self.said}"
                self.said += chunk.decode()
        self.pids = set(self.ranks().values())

    def ranks(self) -> dict[int, int]:
        """rank -> pid, from the children's environments."""
        found = {}
        for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            rank = next((v.removeprefix(b"RANK=") for v in variables if v.startswith(b"RANK=")), None)
            if rank is not None:
                found[int(rank)] = int(child)
        return found

    def end(self, within_s: float) -> int:
        """Its exit code; everything it started is gone by then."""
        _, rest = self.process.communicate(timeout=within_s)
        self.said += rest.decode()
        left = [pid for pid in self.pids if Path(f"/proc/{pid}").exists()]
        assert left == [], f"still running: {left}"
        return self.process.returncode

    def error(self) -> str:
        """Its one line of error."""
        lines = [line for line in self.said.splitlines() if line.strip() and ": step " not in line]
        assert len(lines) == 1, self.said
        return lines[0]


@pytest.fixture
def train() -> Iterator[Callable[..., TrainingRun]]:
    """Start `hostlib train` runs that would take minutes; none outlives the test."""
    runs: list[TrainingRun] = []

    def start(*options: str, epochs: int = 2000) -> TrainingRun:
        command = [
            sys.executable,
            "-m",
            "hostlib",
            "train",
            "--epochs",
            str(epochs),
            "--deadline",
            str(DEADLINE_S),
            "--progress",
            *options,
        ]
        run = TrainingRun(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        runs.append(run)
        return run

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
            try:
                run.process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                run.process.kill()
                run.process.communicate()


@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring", "gloo"])
def test_a_killed_rank_ends_the_run_by_name(
    mechanism: str, train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric]
) -> None:
    run = train("--mechanism", mechanism, "--controller", start_fabric().http)
    run.wait_for_step()
    pid = run.ranks()[2]
    os.kill(pid, signal.SIGKILL)
    assert run.end(within_s=DEADLINE_S + 10) == 1
    assert run.error() == f"error: rank 2 (pid {pid}) was killed by SIGKILL; the other ranks were stopped"


@pytest.mark.parametrize("mechanism", ["inagg+mcast", "ring"])
def test_a_stopped_rank_is_named_by_the_others(
    mechanism: str, train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric]
) -> None:
    run = train("--mechanism", mechanism, "--controller", start_fabric().http)
    run.wait_for_step()
    os.kill(run.ranks()[1], signal.SIGSTOP)
    assert run.end(within_s=DEADLINE_S + 15) == 1
    assert "rank 1 is missing: no sign of life" in run.error()


def test_a_killed_switch_ends_the_run_and_is_blamed(
    train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric]
) -> None:
    fabric = start_fabric()
    run = train("--mechanism", "inagg+mcast", "--controller", fabric.http)
    run.wait_for_step()
    os.kill(fabric.state["processes"]["switch"]["pid"], signal.SIGKILL)
    assert run.end(within_s=DEADLINE_S + 15) == 1
    assert "no answer from the switch at 127.0.0.1:" in run.error()
    assert "all ranks are alive" in run.error()
    assert fabric.status()["up"] is False


def test_training_goes_on_without_the_controller(
    train: Callable[..., TrainingRun], start_fabric: Callable[..., Fabric], tmp_path: Path
) -> None:
    fabric = start_fabric()
    weights = {}
    for name, kill in (("undisturbed", False), ("disturbed", True)):
        result = tmp_path / f"{name}.json"
        run = train("--mechanism", "inagg+mcast", "--controller", fabric.http, "--result", str(result), epochs=20)
        run.wait_for_step()
        if kill:
            os.kill(fabric.state["pid"], signal.SIGKILL)
        assert run.end(within_s=PATIENCE_S) == 0, run.said
        weights[name] = json.loads(result.read_text())["weights_sha256"]
    assert len(set(weights["undisturbed"] + weights["disturbed"])) == 1
    stopped = controller("stop", "--state-dir", fabric.state_dir)
    assert stopped.stdout == f"stopped switch (pid {fabric.state['processes']['switch']['pid']})\n"


def test_interrupting_leaves_nothing_behind(train: Callable[..., TrainingRun]) -> None:
    run = train("--mechanism", "ring")
    run.wait_for_step()
    run.process.send_signal(signal.SIGINT)
    assert run.end(within_s=15) == 130


def test_a_killed_launcher_takes_its_ranks_with_it(train: Callable[..., TrainingRun]) -> None:
    run = train("--mechanism", "ring")
    run.wait_for_step()
    run.process.kill()
    run.process.communicate(timeout=10)
    give_up = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in run.pids):
        assert time.monotonic() < give_up, f"still running: {run.pids}"
