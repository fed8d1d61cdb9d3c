"""How commands end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import click
import pytest

from hostlib.errors import FabricError, HostlibError
from hostlib.system.exit_status import end_with, interrupt_on


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
        (click.UsageError("no such option"), 2, "Error: no such option\n"),
        (click.exceptions.Exit(3), 3, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        end_with(raising(error), HostlibError)
    assert (ended.value.code, capsys.readouterr().err) == (code, line)


def test_another_rooms_error_is_none_of_its_own() -> None:
    with pytest.raises(ValueError, match="not ours"):
        end_with(raising(ValueError("not ours")), HostlibError)


def test_a_command_that_ends_well_just_returns() -> None:
    end_with(lambda: None, HostlibError)


def test_a_signal_ends_it_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        interrupt_on(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
