"""How commands end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import click
import pytest

from hostlib.errors import FabricError, HostlibError
from hostlib.system import interrupts
from hostlib.system.exit_status import end_with
from hostlib.system.interrupts import interrupt_on


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
