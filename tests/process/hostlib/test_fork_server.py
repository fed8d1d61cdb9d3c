"""Processes that are forked from one: what is heard of them, and what becomes of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emulation.experiments.cell import innermost_frames
from hostlib.errors import RunError
from hostlib.launch.fork_server import STACKS, ForkServer, fork_server
from hostlib.system.process import start_time


@pytest.fixture
def heard() -> Any:
    """A ForkServer that hears what is written to the descriptor."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdout:
        yield ForkServer(SimpleNamespace(stdout=stdout), None), writing  # type: ignore[arg-type]
    os.close(writing)


def test_a_number_that_comes_again_is_another_process(heard: Any) -> None:
    fork_server, writing = heard
    for message in ({"pid": 7}, {"pid": 7, "status": 1}, {"pid": 8}, {"pid": 8, "status": -9}, {"pid": 7}):
        os.write(writing, json.dumps(message).encode() + b"\n")
    fork_server.events(1.0)
    assert fork_server.ended == {8: -9}


def test_lines_may_come_in_parts(heard: Any) -> None:
    fork_server, writing = heard
    os.write(writing, b'{"event": "failed", "ra')
    assert fork_server.events(1.0) == []
    os.write(writing, b'nk": 3}\n{"pid": 9, "status": 0}\n')
    assert fork_server.events(1.0) == [{"event": "failed", "rank": 3}]
    assert fork_server.ended == {9: 0}


# Lines are written at once, as two processes write into one file.
EXAMPLE = """
import os, signal, sys
def main():
    os.write(1, f'{os.environ["SAYS"]} {os.getpid()} {sys.stdin.read()}\\n'.encode())
    os.write(2, b"error: and that\\n")
    if os.environ["SAYS"] == "waits":
        signal.pause()
    os._exit(3)
"""


def test_what_is_forked_has_its_own_name_environment_and_output(tmp_path: Path) -> None:
    (tmp_path / "forked_example.py").write_text(EXAMPLE)
    out, err = tmp_path / "out", tmp_path / "err"
    with fork_server("forked_example", folder=tmp_path) as forks, out.open("wb") as output, err.open("wb") as errors:

        def fork(says: str) -> int:
            environment = {"SAYS": says}
            return forks.fork("forked_example", environment, None, errors.fileno(), output.fileno(), f"rank {says}")

        waits, ends = fork("waits"), fork("ends")
        give_up = time.monotonic() + 20
        while ends not in forks.ended or len(out.read_text().splitlines()) < 2:
            assert time.monotonic() < give_up
            forks.listen(0.1)
        assert forks.ended == {ends: 3}
        assert Path(f"/proc/{waits}/comm").read_text() == "rank waits\n"
        assert sorted(out.read_text().split()) == sorted(["waits", str(waits), "ends", str(ends)])
        assert err.read_text().splitlines() == ["error: and that"] * 2
        killed = fork("waits")
        os.kill(killed, signal.SIGKILL)
        while killed not in forks.ended:
            assert time.monotonic() < give_up
            forks.listen(0.1)
        assert forks.ended[killed] == -signal.SIGKILL
    while Path(f"/proc/{waits}").exists():
        assert time.monotonic() < give_up, "it outlives the one that forked it"
        time.sleep(0.01)


HANGS = """
import os, threading
def main():
    os.write(1, b"begun\\n")
    threading.Event().wait()
"""


def test_a_child_says_what_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "forked_waiting.py").write_text(HANGS)
    out, err = tmp_path / "out", tmp_path / "err"
    with fork_server("forked_waiting", folder=tmp_path) as forks, out.open("wb") as output, err.open("wb") as errors:
        pid = forks.fork("forked_waiting", {}, None, errors.fileno(), output.fileno())
        give_up = time.monotonic() + 20
        while not out.read_text():
            assert time.monotonic() < give_up
            forks.listen(0.1)
        os.kill(pid, STACKS)
        while "in <module>" not in err.read_text():
            assert time.monotonic() < give_up
            forks.listen(0.1)
        assert re.fullmatch(
            r"is in (wait \(threading.py:\d+\) < )*main \(forked_waiting.py:5\)( < .*)?",
            innermost_frames(err.read_text()),
        )
        assert pid not in forks.ended
    assert innermost_frames("") == "does not answer"


LARGE = """
import hashlib, os, subprocess
def main():
    subprocess.run(["true"], check=True, env={"PATH": os.environ["PATH"]})
    os.write(1, (hashlib.sha256(os.environ["OPTIONS"].encode()).hexdigest() + "\\n").encode())
"""


@pytest.mark.parametrize("size", [1 << 17, 165_000, 300_000, 5_000_000])
def test_orders_are_of_any_size(tmp_path: Path, size: int) -> None:
    """More than a packet of 128 KiB, and more than a socket takes at once."""
    (tmp_path / "forked_large.py").write_text(LARGE)
    options = "".join(chr(0x61 + n % 26) for n in range(size))
    out, err = tmp_path / "out", tmp_path / "err"
    with fork_server("forked_large", folder=tmp_path) as forks, out.open("wb") as output, err.open("wb") as errors:
        pids = [
            forks.fork("forked_large", {"OPTIONS": options}, None, errors.fileno(), output.fileno()) for _ in range(2)
        ]
        give_up = time.monotonic() + 20
        while not forks.ended.keys() >= set(pids):
            assert time.monotonic() < give_up
            forks.listen(0.1)
        assert (set(forks.ended.values()), err.read_text()) == ({0}, "")
    assert out.read_text().split() == [hashlib.sha256(options.encode()).hexdigest()] * 2


def test_it_dies_with_its_starter_even_while_it_loads(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(60)\n")
    code = f"""
import os, signal
from pathlib import Path
from hostlib.system.process import start_time
from hostlib.launch.fork_server import fork_server
with fork_server("slow", folder=Path({str(tmp_path)!r})) as forks:
    print(forks.process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    printed = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, timeout=20).stdout
    give_up = time.monotonic() + 20
    while start_time(int(printed)) is not None:
        assert time.monotonic() < give_up, "it outlives the one that started it"
        time.sleep(0.01)


def test_one_that_is_gone_is_named() -> None:
    with fork_server("hostlib.errors") as forks:
        forks._wait()
        forks.process.kill()
        forks.process.wait()
        with pytest.raises(RunError, match=r"^the fork server (is gone: status|ended with status) -9$"):
            forks.fork("hostlib.errors", {}, None, 2)


def test_what_cannot_be_loaded_is_said_in_one_line() -> None:
    with (
        fork_server("hostlib.nothing") as forks,
        pytest.raises(RunError, match=r"^hostlib\.nothing cannot be loaded: No mod"),
    ):
        forks.fork("hostlib.nothing", {}, None, 2)
