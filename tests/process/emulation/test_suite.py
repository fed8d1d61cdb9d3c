"""The suite really trains: it is interrupted and resumed, and it runs on hosts through a launcher."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow  # every run loads torch

TINY = ("--way", "train", "--datasets", "mnist", "--networks", "mobilenet2", "--workers", "2", "--batch", "2")
SHORT = ("--iterations", "1", "--warm-up", "1")


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "netfold", "suite", "run", *TINY, *SHORT, *words]


def rows_of(output: Path) -> list[dict[str, Any]]:
    path = output / "results.json"
    return json.loads(path.read_text()) if path.exists() else []


def test_a_suite_is_interrupted_and_resumed(tmp_path: Path) -> None:
    words = ("--frameworks", "sequential,ring,halving-doubling", "--output", str(tmp_path / "s"))
    process = subprocess.Popen(
        command(*words), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    give_up = time.monotonic() + 60
    while not rows_of(tmp_path / "s") and process.poll() is None and time.monotonic() < give_up:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=30)
    measured = rows_of(tmp_path / "s")
    assert (process.returncode, said, errors.splitlines()[-1]) == (130, "", "interrupted")
    assert 1 <= len(measured) < 3 and "Traceback" not in errors
    assert json.loads((tmp_path / "s" / "suite.json").read_text())["finished"] is None
    assert _gone(process.pid)

    done = subprocess.run(command(*words, "--json"), cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["framework"] for row in rows] == ["sequential", "ring", "halving-doubling"]
    assert [row["iteration_ms"] for row in rows[: len(measured)]] == [row["iteration_ms"] for row in measured]
    assert all(row["failed"] is None and row["peak_memory_bytes"] > 1e8 for row in rows)
    assert rows[1]["epoch_s"] == rows[1]["iteration_ms"] / 1e3 * 70_000 / 4
    assert json.loads((tmp_path / "s" / "suite.json").read_text())["finished"] is not None


def _gone(session: int) -> bool:
    """Whether no process of a session is left, within a moment."""
    give_up = time.monotonic() + 10
    while time.monotonic() < give_up:
        try:
            os.killpg(session, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_suite_runs_on_hosts(tmp_path: Path) -> None:
    """Two of them: this machine twice, and a launcher that is a shell instead of ssh."""
    hostfile, launcher = tmp_path / "hosts", tmp_path / "launcher"
    hostfile.write_text("127.0.0.1 interface=lo\n127.0.0.1 interface=lo\n")
    launcher.write_text('#!/bin/sh\nexec sh -c "$2"\n')
    launcher.chmod(0o755)
    words = ("--frameworks", "ring,ps", "--output", str(tmp_path / "s"), "--hosts", str(hostfile))
    done = subprocess.run(
        command(*words, "--launcher", str(launcher), "--json"), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    ring, ps = json.loads(done.stdout)
    assert ring["failed"] is None and ring["iteration_ms"] > 0 and ring["speedup"] is None
    assert ps["failed"].endswith("needs 3 hosts, with its servers; there are 2")


def test_pipelines_train(tmp_path: Path) -> None:
    words = ("--datasets", "cifar10", "--networks", "resnet18", "--frameworks", "sequential,gpipe,1f1b", "--batch", "4")
    done = subprocess.run(
        command(*words, "--output", str(tmp_path / "s"), "--json"),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    one, *pipelines = json.loads(done.stdout)
    assert [row["mechanism"] for row in pipelines] == ["gpipe:stages=2/ring", "1f1b:stages=2/ring"]
    for row in pipelines:
        assert row["failed"] is None and row["speedup"] == one["epoch_s"] / row["epoch_s"] > 0
        assert row["epoch_s"] == row["iteration_ms"] / 1e3 * 60_000 / 8 and row["peak_memory_bytes"] > 1e8
