"""A run that is killed in the middle: `emulation clean` removes what it made, and nothing of anybody else's."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulation.networks.cleanup import RecordedRun, runs
from hostlib.system.network_namespace import delete_namespace, make_namespace
from hostlib.system.process import start_time
from tests.conftest import ROOT

MAKER = """
import subprocess, sys, time
from hostlib.topology.builtin.leaf_spine import leaf_spine
from emulation.networks.realise import NetworkKind, SwitchKind, realise
with realise(leaf_spine(4, 2), NetworkKind(sys.argv[1]), SwitchKind.EMBEDDED) as fabric:
    # It does not end with its parent.
    fabric.record.process(subprocess.Popen(["sleep", "300"]).pid, "sleeper")
    time.sleep(300)
"""
WAIT_S = 90.0


@pytest.fixture
def bystander() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A namespace that looks like a run's and a process in it, which are in nobody's record."""
    space = f"netfold-emulation-{os.getpid()}-foreign"
    make_namespace(space)
    with subprocess.Popen(["ip", "netns", "exec", space, "sleep", "300"]) as process:
        try:
            yield space, process
        finally:
            process.kill()
            delete_namespace(space)


def run_of(maker: subprocess.Popen[bytes]) -> RecordedRun | None:
    return next((run for run in runs() if run.maker.pid == maker.pid and run.alive), None)


def await_(maker: subprocess.Popen[bytes], moment: str) -> RecordedRun:
    """Until the maker has made its first namespaces, or everything."""
    give_up = time.monotonic() + WAIT_S
    while time.monotonic() < give_up:
        run = run_of(maker)
        if run is not None:
            names = [what for _, what in run.processes]
            if (moment == "namespaces" and len(run.namespaces) >= 3) or moment in names:
                return run
        assert maker.poll() is None
        time.sleep(0.005)
    raise AssertionError(f"no {moment} within {WAIT_S} s")


def clean(*options: str) -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-m", "emulation", "clean", "--json", *options], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["removed"])


@pytest.mark.root
@pytest.mark.parametrize("moment", ["namespaces", "leaf0", "sleeper"])
def test_a_killed_run_leaves_nothing_after_clean(moment: str, bystander: tuple[str, subprocess.Popen[bytes]]) -> None:
    foreign, process = bystander
    with subprocess.Popen([sys.executable, "-c", MAKER, "netns"], cwd=ROOT) as maker:
        await_(maker, moment)
        assert [each for each in clean() if each["run"].startswith(f"{maker.pid}-")] == [], "it is alive"
        maker.send_signal(signal.SIGKILL)
        maker.wait()
    run = next(run for run in runs() if run.maker.pid == maker.pid)
    there = [name for name in run.namespaces if Path("/run/netns", name).exists()]
    assert there != [] and run.folder.exists()
    would = [each for each in clean("--dry-run") if each["run"] == run.name]
    removed = [each for each in clean() if each["run"] == run.name]
    # Of what was made: a maker that is killed between its note and its deed leaves the note alone.
    assert [each["name"] for each in removed if each["kind"] == "namespace"] == there[::-1]
    assert [each for each in would if each["kind"] != "process"] == [e for e in removed if e["kind"] != "process"]
    assert any("sleeper" in each["name"] for each in removed) == (moment == "sleeper")
    assert [name for name in run.namespaces if Path("/run/netns", name).exists()] == []
    assert [recorded for recorded, _ in run.processes if start_time(recorded.pid) == recorded.start_time] == []
    assert not run.path.exists() and not run.folder.exists()
    assert process.poll() is None and Path("/run/netns", foreign).exists()
    assert [each for each in clean() if each["run"] == run.name] == []


@pytest.mark.root
@pytest.mark.mininet
def test_a_killed_mininet_leaves_nothing_after_clean() -> None:
    with subprocess.Popen([sys.executable, "-c", MAKER, "mininet"], cwd=ROOT) as maker:
        await_(maker, "sleeper")
        maker.send_signal(signal.SIGKILL)
        maker.wait()
    run = next(run for run in runs() if run.maker.pid == maker.pid)
    there = [name for name in run.interfaces if Path("/sys/class/net", name).exists()]
    assert there != [], "those between two switches are in nobody's namespace"
    removed = [each for each in clean() if each["run"] == run.name]
    assert {"interface", "process", "folder"} == {each["kind"] for each in removed}
    assert [name for name in run.interfaces if Path("/sys/class/net", name).exists()] == []
    assert [recorded for recorded, _ in run.processes if start_time(recorded.pid) == recorded.start_time] == []
    assert not run.path.exists() and not run.folder.exists()


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_interrupted_cleans_up_by_itself(number: signal.Signals) -> None:
    code = f"import signal\nsignal.signal({number}, signal.default_int_handler)\n{MAKER}"
    with subprocess.Popen([sys.executable, "-c", code, "netns"], cwd=ROOT, stderr=subprocess.PIPE) as maker:
        run = await_(maker, "leaf0")
        maker.send_signal(number)
        _, complained = maker.communicate(timeout=WAIT_S)
    assert complained.decode().strip().endswith("KeyboardInterrupt")
    assert not run.path.exists() and not run.folder.exists()
    assert [name for name in run.namespaces if Path("/run/netns", name).exists()] == []
    assert [recorded for recorded, _ in run.processes if start_time(recorded.pid) == recorded.start_time] == []
