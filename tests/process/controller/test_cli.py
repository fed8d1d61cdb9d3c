"""The `controller` command: one line for every mistake, and nothing half-started."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from controller.cli import main
from controller.errors import StateError
from controller.state_file import STATE_FILE, Embedded, State
from controller.topology import single
from hostlib.system.process import Process, start_time, write_whole
from tests.conftest import ROOT


def controller(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "controller", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a switch; it is our child, so that a thread must reap it when it ends."""
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    yield child
    if child.poll() is None:
        child.kill()
    child.wait()


def process_of(child: subprocess.Popen[bytes]) -> Process:
    found = Process.of(child.pid)
    assert found is not None
    return found


DEAD = Process(2**22 + 1, 1)  # above the largest pid there can be


def state(controller: Process = DEAD, switch: Process | None = None) -> State:
    topology = single("127.0.0.1:2", 1, "10.255.255.254", {1: "127.0.0.1:3"})
    processes = {"switch": switch} if switch else {}
    embedded = {"switch": Embedded(["--loss", "0.1"], {100: "127.0.0.1:4"})} if switch else {}
    return State(controller, "http://127.0.0.1:1", topology, processes, "controller.log", embedded)


# ---- processes and the state file ----


def test_a_process_is_told_from_a_later_one_with_its_pid(sleeper: subprocess.Popen[bytes]) -> None:
    here = process_of(sleeper)
    assert here.alive
    later = replace(here, start_time=here.start_time - 1)
    assert not later.alive
    assert not later.stop()
    assert sleeper.poll() is None
    assert here.stop()
    assert not here.alive
    assert not here.stop()


def test_there_is_no_process_that_does_not_exist() -> None:
    assert start_time(DEAD.pid) is None
    assert Process.of(DEAD.pid) is None
    assert start_time(os.getpid()) is not None


def test_a_process_that_ignores_sigterm_is_killed() -> None:
    code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert process_of(child).stop(patience_s=0.2)
        assert child.wait(5) == -9


def test_the_state_file_says_what_was_written(tmp_path: Path) -> None:
    assert State.read(tmp_path) is None
    for written in (state(), state(switch=Process(3, 4))):
        written.write(tmp_path)
        assert State.read(tmp_path) == written
    State.forget(tmp_path)
    State.forget(tmp_path)
    assert State.read(tmp_path) is None


@pytest.mark.parametrize("content", ["", "nonsense", "[]", '{"pid": 1}', '{"switch": {"pid": 1}}'])
def test_a_damaged_state_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / STATE_FILE).write_text(content)
    with pytest.raises(StateError, match=r"controller\.json is not a controller's state file") as refused:
        State.read(tmp_path)
    assert len(str(refused.value).splitlines()) == 1


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "new" / "jobs.json"
    write_whole(path, {"jobs": []})
    with pytest.raises(TypeError):
        write_whole(path, {"jobs": object()})
    assert json.loads(path.read_text()) == {"jobs": []}


def test_a_private_file_is_for_its_owner_alone_also_where_it_was_not(tmp_path: Path) -> None:
    path = tmp_path / "jobs.json"
    write_whole(path, {})
    for content in ({"jobs": [1]}, {"jobs": [2]}):
        write_whole(path, content, private=True)
        assert json.loads(path.read_text()) == content
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


# ---- commands ----


@pytest.mark.parametrize("command", [[], ["start"], ["status"], ["stop"]])
def test_help_reads_like_documentation(command: list[str]) -> None:
    shown = CliRunner().invoke(main, [*command, "--help"])
    assert shown.exit_code == 0
    first = shown.output.split("\n\n")[1].strip()
    assert first.endswith((".", "else."))
    found = main.get_command(click.Context(main), command[0]) if command else None
    for option in found.params if found else []:
        assert getattr(option, "help", None), f"{option.name} has no help"


def test_there_is_nothing_to_ask_or_stop(tmp_path: Path) -> None:
    for command in ("status", "stop"):
        refused = CliRunner().invoke(main, [command, "--state-dir", str(tmp_path)])
        assert isinstance(refused.exception, StateError)
        assert str(refused.exception).startswith("no controller is running")


def test_an_error_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    done = controller("status", "--state-dir", tmp_path)
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert done.stderr == "error: no controller is running (controller start)\n"


def test_a_wrong_option_is_one_line(tmp_path: Path) -> None:
    assert "No such option" in one_line(controller("start", "--elephants", "4", "--state-dir", tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_stop_ends_the_switch_of_a_dead_controller(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    state(switch=process_of(sleeper)).write(tmp_path)
    asked = CliRunner().invoke(main, ["status", "--state-dir", str(tmp_path)])
    assert f"; switch (pid {sleeper.pid}) still running" in str(asked.exception)
    done = CliRunner().invoke(main, ["stop", "--state-dir", str(tmp_path)])
    assert done.output == f"stopped switch (pid {sleeper.pid})\n"
    assert sleeper.wait(5) == -15
    assert list(tmp_path.iterdir()) == []


def test_stop_leaves_a_stranger_with_that_pid_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    stranger = replace(process_of(sleeper), start_time=1)
    state(controller=stranger, switch=stranger).write(tmp_path)
    done = CliRunner().invoke(main, ["stop", "--state-dir", str(tmp_path)])
    assert done.output == "nothing was running any more; state file removed\n"
    assert sleeper.poll() is None


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert (done.returncode in (1, 2), done.stdout) == (True, "")
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_one_controller_per_state_directory(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    state(controller=process_of(sleeper)).write(tmp_path)
    line = one_line(controller("start", "--state-dir", tmp_path))
    assert f"a controller is running already (pid {sleeper.pid}, http://127.0.0.1:1)" in line
    assert State.read(tmp_path) is not None
    assert sleeper.poll() is None


def test_a_living_switch_is_not_given_another_program(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    """Ranks in a job there quantise by blocks of a packet's elements: they would go on with other weights."""
    replace(state(switch=process_of(sleeper)), elements=256).write(tmp_path)
    line = one_line(controller("start", "--http", "127.0.0.1:0", "--state-dir", tmp_path, "--elements", "64"))
    assert f"the switches of {tmp_path} run a program of 256 elements per packet, not 64" in line
    assert State.read(tmp_path) is not None
    assert sleeper.poll() is None


@pytest.mark.parametrize(("switch", "at_work"), [(Process.of(os.getpid()), True), (DEAD, False), (None, True)])
def test_switches_are_at_work_unless_all_of_its_own_are_dead(switch: Process | None, at_work: bool) -> None:
    assert state(switch=switch).at_work == at_work


def test_an_http_port_in_use_starts_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = f"127.0.0.1:{taken.getsockname()[1]}"
        line = one_line(controller("start", "--http", http, "--state-dir", tmp_path))
    assert f"cannot listen on {http}: Address already in use" in line
    assert {path.name for path in tmp_path.iterdir()} == {"controller.log", "state.db"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--elements", "100"], "there are 64, 256, 1024, 2048"),
        (["--http", "nowhere"], "is not ADDRESS:PORT"),
        (["--http", "127.0.0.1:65536"], "is not ADDRESS:PORT"),
        (["--p4rt", "127.0.0.1:1"], "--p4rt needs --switch-ports"),
        (["--racks", "17"], "--racks 17 is not in 1..16"),
        (["--ports", "33"], "--ports 33 is not in 1..32"),
    ],
)
def test_what_cannot_start_says_why(tmp_path: Path, options: list[str], says: str) -> None:
    line = one_line(controller("start", "--http", "127.0.0.1:0", "--state-dir", tmp_path, *options))
    assert says in line
    assert not (tmp_path / STATE_FILE).exists()
