"""The real command, `hostlib train`, in the background: started, watched, disturbed."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from controller.state_file import State
from tests.conftest import ROOT, Fabric

# Starting torch in all ranks takes the longest.
PATIENCE_S = 60.0
LATEST_S = 2.0  # after the first step, a random moment


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@dataclass(slots=True)
class TrainingRun:
    """A `hostlib train` in the background, and what it said."""

    process: subprocess.Popen[bytes]
    output: str = ""
    pids: set[int] = field(default_factory=set)

    @classmethod
    def start(cls, *options: str) -> TrainingRun:
        """One with these options. Whoever starts it calls `stop`."""
        command = [sys.executable, "-m", "hostlib", "train", "--progress", *options]
        return cls(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE))

    def wait_for_step(self) -> None:
        """Until the first progress line: all ranks train."""
        give_up = time.monotonic() + PATIENCE_S
        assert self.process.stderr is not None
        while ": step " not in self.output:
            assert time.monotonic() < give_up, f"no step within {PATIENCE_S} s: {self.output}"
            ready, _, _ = select.select([self.process.stderr], [], [], 1)
            if ready:
                chunk = os.read(self.process.stderr.fileno(), 4096)
                assert chunk, f"it ended before the first step: {self.output}"
                self.output += chunk.decode()
        self.pids = {*children_of(self.process.pid), *self._forked()}

    def ranks(self) -> dict[int, int]:
        """number -> pid, by the processes' names: of the ranks, then of the servers."""
        named = {}
        for pid in self._forked():
            kind, _, number = Path(f"/proc/{pid}/comm").read_text().strip().partition(" ")
            if kind in ("rank", "server"):
                named[kind, int(number)] = pid
        return dict(enumerate(pid for _, pid in sorted(named.items())))

    def _forked(self) -> list[int]:
        return [pid for fork_server in children_of(self.process.pid) for pid in children_of(fork_server)]

    def end(self, within_s: float) -> int:
        """Its exit code; everything it started is gone by then."""
        _, rest = self.process.communicate(timeout=within_s)
        self.output += rest.decode()
        left = [pid for pid in self.pids if Path(f"/proc/{pid}").exists()]
        assert left == [], f"still running: {left}"
        return self.process.returncode

    def error(self) -> str:
        """Its one line of error."""
        lines = [line for line in self.output.splitlines() if line.strip() and ": step " not in line]
        assert len(lines) == 1, self.output
        return lines[0]

    def stop(self) -> None:
        """Whatever became of it, it is over afterwards."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()


def weights_of(path: Path, *options: str) -> list[str]:
    """sha256 of the weights, per rank, that a run ends with; its result is written to `path`."""
    run = TrainingRun.start("--output", str(path), *options)
    try:
        assert run.end(PATIENCE_S) == 0, run.output
    finally:
        run.stop()
    return list(json.loads(path.read_text())["weights_sha256"])


def survive(number: int, seed: int, fabric: Fabric, path: Path, *options: str) -> dict[str, Any]:
    """A run whose switch is killed at a random moment, the same for the same seed and number; its result."""
    chance = random.Random(f"netfold command {seed}/{number}")
    run = TrainingRun.start("--controller", fabric.http, "--output", str(path), *options)
    try:
        run.wait_for_step()
        time.sleep(chance.uniform(0, LATEST_S))
        state = State.read(fabric.state_dir)
        assert state is not None
        os.kill(state.processes["switch"].pid, signal.SIGKILL)
        assert run.end(PATIENCE_S) == 0, run.output
    finally:
        run.stop()
    return dict(json.loads(path.read_text()))
