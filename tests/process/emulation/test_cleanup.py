"""The record of what runs have made: what is removed is what is in it, by pid and start time, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from emulation.cli import main
from emulation.networks.cleanup import (
    CleanupError,
    CleanupRecord,
    RecordedRun,
    Removed,
    clean,
    cleanup_record,
    present,
    remove,
    runs,
)
from hostlib.system.process import Process, start_time

DEAD = 2**22 + 1  # above the largest pid there can be


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "300"])
    yield child
    child.kill()
    child.wait()


def dead(folder: Path, name: str = "aaaaaa") -> CleanupRecord:
    """The record of a run whose maker is gone."""
    made = CleanupRecord(folder / f"{DEAD}-1-{name}.jsonl")
    made.path.touch()
    made.folder.mkdir()
    (made.folder / "switch.log").write_text("half a line")
    return made


def test_a_run_that_ends_takes_everything_with_it(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    with cleanup_record(tmp_path) as made:
        made.process(sleeper.pid, "switch")
        (run,) = runs(tmp_path)
        assert (run.maker, run.alive) == (Process.of(os.getpid()), True)
        assert made.processes() == {"switch": Process.of(sleeper.pid)}
        assert clean(False, False, tmp_path) == ([], [run.name]), "it is alive"
    assert list(tmp_path.iterdir()) == []
    assert sleeper.wait(5) == -15


def test_what_a_dead_run_left_is_removed(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    made = dead(tmp_path)
    made.process(sleeper.pid, "leaf0")
    made.namespace("netfold-emulation-there-is-none")
    name = made.path.stem
    expected = [Removed("process", f"{sleeper.pid} (leaf0)", name), Removed("folder", str(made.folder), name)]
    assert clean(False, True, tmp_path) == (expected, [])
    assert sleeper.poll() is None and made.folder.exists(), "that was a dry run"
    assert clean(False, False, tmp_path) == (expected, [])
    assert sleeper.wait(5) == -15
    assert list(tmp_path.iterdir()) == []
    assert clean(False, False, tmp_path) == ([], [])


def test_the_command_says_what_it_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulation.networks.cleanup.state_folder", lambda: tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    made = dead(tmp_path)
    with cleanup_record(tmp_path) as alive:
        for options, title in ((["--dry-run"], "would be removed"), ([], "removed")):
            output = CliRunner().invoke(main, ["clean", *options], catch_exceptions=False).output
            assert output.startswith(title) and str(made.folder) in output
            assert f"run {alive.path.stem} is alive and was left alone (--all ends it)" in output
        assert "nothing to remove" in CliRunner().invoke(main, ["clean"], catch_exceptions=False).output


def test_a_process_that_does_not_listen_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulation.networks.cleanup.STOP_S", 0.2)
    deaf = subprocess.Popen(
        ["bash", "-c", "trap '' TERM; echo deaf; while true; do read -t 1 < <(:); done"], stdout=subprocess.PIPE
    )
    with deaf:
        assert deaf.stdout is not None and deaf.stdout.readline() == b"deaf\n"
        dead(tmp_path).process(deaf.pid, "deaf")
        clean(False, False, tmp_path)
        assert deaf.wait(5) == -9


def test_a_later_process_with_a_recorded_pid_is_left_alone(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    made = dead(tmp_path)
    started = start_time(sleeper.pid)
    assert started is not None
    entry = {"process": sleeper.pid, "start_time": started - 1, "what": "switch"}
    made.path.write_text(json.dumps(entry) + "\n")
    removed, _ = clean(False, False, tmp_path)
    assert [each.kind for each in removed] == ["folder"]
    assert sleeper.poll() is None


def test_all_ends_the_living_too(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    maker = subprocess.Popen(["sleep", "300"])
    with maker:
        made = CleanupRecord(tmp_path / f"{maker.pid}-{start_time(maker.pid)}-bbbbbb.jsonl")
        made.process(sleeper.pid, "switch")
        assert clean(False, False, tmp_path) == ([], [made.path.stem])
        assert maker.poll() is None and sleeper.poll() is None
        removed, left = clean(True, False, tmp_path)
        assert ([each.kind for each in removed], left) == (["process"], [])
        assert (maker.wait(5), sleeper.wait(5)) == (-15, -15)
    assert list(tmp_path.iterdir()) == []


def test_a_record_may_end_in_the_middle_of_a_line(tmp_path: Path) -> None:
    made = dead(tmp_path)
    made.namespace("one")
    with made.path.open("a") as record:
        record.write('{"namespace": "tw')
    run = RecordedRun.read(made.path)
    assert run.namespaces == ("one",)
    assert [each.kind for each in present(run)] == ["folder"]
    assert [each.kind for each in remove(run)] == ["folder"]


@pytest.mark.parametrize("text", ["nonsense\n", '{"planet": "x"}\n', "[]\n", '{"process": 1}\n'])
def test_a_file_that_is_no_record_is_named_and_kept(tmp_path: Path, text: str) -> None:
    made = dead(tmp_path)
    made.path.write_text(text)
    with pytest.raises(CleanupError, match=r"aaaaaa.jsonl is not a run's record: .*; remove it by hand"):
        clean(False, False, tmp_path)
    assert made.path.exists()
