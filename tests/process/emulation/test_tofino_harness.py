"""The model's process, with a stand-in that answers as the model does."""

from __future__ import annotations

import os
import signal
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from emulation.errors import ModelError
from emulation.tofino.chip_memory import Word
from emulation.tofino.harness import Harness, require_model

# Sends each frame back by the port after its own; says what it is told to say; copies a file that it loads.
STAND_IN = """#!/usr/bin/env python3
import shutil, sys
observed = open(sys.argv[sys.argv.index("--observation-log") + 1], "w", buffering=1)
for line in sys.stdin:
    words = line.split(maxsplit=1)
    print(f"script:1:{line.rstrip()}", flush=True)
    if words[0] == "packet":
        port, frame = words[1].split()
        observed.write(f"{int(port) + 1} {frame.upper()}\\n")
    elif words[0] == "load":
        shutil.copy(words[1].strip(), "{loaded}")
    elif words[0] == "say":
        print(words[1].rstrip(), flush=True)
    elif words[0] == "flood":
        for _ in range(int(words[1])):
            observed.write("1 " + "AB" * 1500 + "\\n")
            print("x" * 1500, flush=True)
    elif words[0] == "hang":
        import time; time.sleep(600)
    elif words[0] == "end":
        sys.exit("bad configuration")
"""


@pytest.fixture
def started(tmp_path: Path) -> Callable[[], Harness]:
    path = tmp_path / "model"
    path.write_text(STAND_IN.replace("{loaded}", str(tmp_path / "loaded")))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return lambda: Harness(str(path))


@pytest.fixture
def harness(started: Callable[[], Harness]) -> Harness:
    made = started()
    yield made
    made.close()


def test_frames_come_back_in_order(harness: Harness) -> None:
    frames = [(port, bytes([port]) * 60) for port in (1, 9, 4, 1)]
    assert harness.send(frames) == [(port + 1, frame) for port, frame in frames]
    assert harness.send([]) == []


def test_what_is_said_belongs_to_its_command(harness: Harness) -> None:
    assert [line for line in harness.run(["say counted 7"]) if "script" not in line] == ["counted 7"]
    assert [line for line in harness.run(["say counted 8"]) if "script" not in line] == ["counted 8"]


def test_neither_side_waits_for_the_other(harness: Harness) -> None:
    """More than pipes hold, both ways."""
    assert len(harness.run(["flood 500", *["say " + "y" * 1000] * 500])) > 1000
    assert len(harness.send([])) == 500


def test_a_complaint_is_an_error_and_the_next_command_is_heard(harness: Harness) -> None:
    with pytest.raises(ModelError, match="model of Tofino: no action x in table y"):
        harness.run(["say <stdin>:3: no action x in table y"])
    harness.run(["say <stdin>:3: No key value for z, will match against 0"])


def test_words_are_written_by_a_file(harness: Harness, tmp_path: Path) -> None:
    harness.write([Word(0x123, 1, 2), Word(0x456)])
    data = (tmp_path / "loaded").read_bytes()
    assert data[:4] == b"\0\0\0d" and len(data) == 2 * (4 + 16 + 16) and data[4:12] == (0x123).to_bytes(8, "little")


def test_a_model_that_ends_says_why(harness: Harness) -> None:
    with pytest.raises(ModelError, match=r"has ended: .*bad configuration"):
        harness.run(["end"])


def test_a_killed_model_is_an_error(harness: Harness) -> None:
    os.kill(harness.pid, signal.SIGKILL)
    with pytest.raises(ModelError, match="has ended"):
        for _ in range(100):
            harness.run([])
            time.sleep(0.01)


def test_a_model_that_hangs_is_an_error(harness: Harness) -> None:
    with pytest.raises(ModelError, match=r"did not answer within 0\.2 s"):
        harness.run(["hang"], 0.2)


def test_nothing_is_left(started: Callable[[], Harness]) -> None:
    made, files = started(), len(os.listdir("/proc/self/fd"))
    pid = made.pid
    made.close()
    assert not Path(f"/proc/{pid}").exists() and len(os.listdir("/proc/self/fd")) < files


def test_an_absent_model_is_named() -> None:
    with pytest.raises(ModelError, match=r"no-such-model, is not on PATH: docs/tofino\.md"):
        require_model("no-such-model")
    with pytest.raises(ModelError, match="no-such-model, cannot be started: No such file or directory"):
        Harness("no-such-model")
