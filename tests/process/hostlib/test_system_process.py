"""Processes that are started, waited for and told from one another."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hostlib.system.process import Process, StartError, running, start, start_and_wait_ready, start_time

READY = """
import json, os, signal, sys
print("on my way", flush=True)
with open(sys.argv[1] + ".partial", "w") as file:
    json.dump({"pid": os.getpid(), "cwd": os.getcwd()}, file)
os.replace(sys.argv[1] + ".partial", sys.argv[1])
signal.pause()
"""
PATIENCE_S = 20.0


def command(ready: Path) -> list[str]:
    return [sys.executable, "-c", READY, str(ready)]


def test_a_process_is_known_by_pid_and_ticks() -> None:
    """Ticks as the kernel has them: two processes that start within one second differ."""
    own = start_time(os.getpid())
    assert isinstance(own, int)
    with subprocess.Popen(["sleep", "60"]) as child:
        time.sleep(2 / os.sysconf("SC_CLK_TCK"))
        with subprocess.Popen(["sleep", "60"]) as later:
            times = [start_time(child.pid), start_time(later.pid)]
            later.kill()
        child.kill()
    assert own < times[0] < times[1]  # type: ignore[operator]
    assert Process.of(child.pid) is None


def test_it_is_ready_when_its_file_is_there_and_ends_with_the_block(tmp_path: Path) -> None:
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    ready.write_text(json.dumps({"pid": 1, "of": "an earlier one"}))
    with running(command(ready), ready, log, what="it", folder=tmp_path) as described:
        process = Process.of(described["pid"])
        assert process is not None and process.alive
        assert described["cwd"] == str(tmp_path)
        assert os.getsid(process.pid) == process.pid
    assert not process.alive
    assert log.read_text() == "on my way\n"


def test_its_last_words_say_why_it_did_not_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("error: of the one before\n")
    code = "import sys; sys.exit('error: no room')"
    with pytest.raises(StartError, match=r"^the lodger did not start: no room$") as refused:
        start_and_wait_ready([sys.executable, "-c", code], tmp_path / "ready", log, what="the lodger", append=True)
    assert refused.value.reason == "no room"
    assert log.read_text().splitlines() == ["error: of the one before", "error: no room"]
    with pytest.raises(StartError, match=r"^the lodger did not start: exit code 3$"):
        start_and_wait_ready(
            [sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "ready", log, what="the lodger", append=True
        )


def test_one_that_is_never_ready_is_stopped(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    code = f"import os, time; open({str(pid)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with pytest.raises(StartError, match=r"^it was not ready within 1 s; see .*/log$"):
        start_and_wait_ready(
            [sys.executable, "-c", code], tmp_path / "ready", tmp_path / "log", what="it", within_s=1.0
        )
    assert Process.of(int(pid.read_text())) is None


def test_waiting_can_be_ended_by_another_thread(tmp_path: Path) -> None:
    cancelled = threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    began = time.monotonic()
    with pytest.raises(StartError, match=r"^waiting for it was cancelled$"):
        start_and_wait_ready(["sleep", "60"], tmp_path / "ready", tmp_path / "log", what="it", cancelled=cancelled)
    assert time.monotonic() - began < PATIENCE_S


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_the_one_that_started_it(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    code = f"""
import os, signal, sys
from pathlib import Path
from hostlib.system.process import start
ready = Path(sys.argv[1])
start({command(ready)!r}, ready, ready.with_suffix(".log"), what="it", dies_by=signal.Signals({int(number)})).wait()
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code, str(ready)], timeout=PATIENCE_S)
    pid = json.loads(ready.read_text())["pid"]
    give_up = time.monotonic() + PATIENCE_S
    while start_time(pid) is not None:
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_it_outlives_us_where_it_is_to(tmp_path: Path) -> None:
    starting = start(command(tmp_path / "ready"), tmp_path / "ready", tmp_path / "log", what="it", dies_by=None)
    try:
        starting.wait()
        assert Path(f"/proc/{starting.child.pid}/cmdline").read_bytes().startswith(sys.executable.encode())
    finally:
        starting.child.kill()
        starting.child.wait()
