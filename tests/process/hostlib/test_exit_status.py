"""How commands end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click
import pytest

from hostlib.errors import FabricError, HostlibError
from hostlib.system import interrupts
from hostlib.system.exit_status import end_with
from hostlib.system.interrupts import interrupt_on
from hostlib.system.user_file import read_text


def raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (FabricError("no answer"), 1, "error: no answer\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (click.exceptions.Abort(), 130, "interrupted\n"),
        (click.UsageError("no such option"), 2, "error: no such option\n"),
        (click.BadParameter("no number", param=click.Option(["--size"])), 2, "error: --size: no number\n"),
        (click.exceptions.Exit(3), 3, ""),
        (PermissionError(13, "Permission denied", "/etc/x"), 1, "error: /etc/x: Permission denied\n"),
        (OSError("no more"), 1, "error: cannot write the output: no more\n"),
        (BrokenPipeError(), 1, ""),
        (MemoryError(), 1, "error: out of memory\n"),
        (OSError(24, "Too many open files"), 1, "error: Too many open files: raise the limit (ulimit -n)\n"),
        (HostlibError("no \x1b]0;title\x07 in\ntwo lines"), 1, "error: no \\x1b]0;title\\x07 in\\ntwo lines\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        end_with(raising(error), HostlibError)
    assert (ended.value.code, capsys.readouterr().err) == (code, line)


@pytest.mark.parametrize("error", [FabricError("no answer"), click.UsageError("no such option")])
def test_with_json_an_error_is_a_document_too(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["hostlib", "bench", "--json"])
    with pytest.raises(SystemExit):
        end_with(raising(error), HostlibError)
    said = capsys.readouterr()
    assert said.err == f"error: {json.loads(said.out)['error']}\n"


def test_another_rooms_error_is_none_of_its_own() -> None:
    with pytest.raises(ValueError, match="not ours"):
        end_with(raising(ValueError("not ours")), HostlibError)


def test_a_command_that_ends_well_just_returns() -> None:
    end_with(lambda: None, HostlibError)


def test_a_signal_ends_it_as_ctrl_c_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "_came", False)  # and so again after the test
    before = signal.getsignal(signal.SIGTERM)
    try:
        interrupt_on(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.came()
    finally:
        signal.signal(signal.SIGTERM, before)


FULL = [
    ("hostlib", "mechanisms"),
    ("simulation", "run", "--workers", "2", "--mechanism", "ring"),
    ("simulation", "run", "--workers", "2", "--mechanism", "ring", "--json"),
    ("emulation", "topology", "--kinds", "--json"),
    ("netfold", "mechanisms", "--json"),
]


@pytest.mark.parametrize("command", FULL, ids=" ".join)
def test_a_full_disk_is_one_line(command: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", *command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert (done.returncode, done.stderr) == (1, "error: cannot write the output: No space left on device\n")


def test_who_is_not_read_ends_without_a_word() -> None:
    command = [sys.executable, "-m", "hostlib", "mechanisms", "--json"]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_a_closed_stream_is_no_traceback(closed: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'"$0" -m netfold mechanisms {closed}>&-', sys.executable],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("ring" in done.stdout) == (closed != 1)


def test_a_terminal_without_an_arrow_gets_a_question_mark() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "netfold", "schedule", "ring", "--workers", "2", "--draw"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "") and "0 ? worker1" in done.stdout


def test_a_pipe_that_nothing_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "netfold", "simulate", "run", "--trace", "pipe"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        1,
        "error: pipe cannot be read as a trace: it is a pipe that nothing writes to\n",
    )


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """Also what comes late."""
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as elsewhere:
        found = elsewhere.submit(read_text, tmp_path / "pipe")
        with (tmp_path / "pipe").open("w") as pipe:
            pipe.write("one\n")
            pipe.flush()
            time.sleep(0.1)
            pipe.write("two\n" * 50_000)
    assert found.result() == "one\n" + "two\n" * 50_000
