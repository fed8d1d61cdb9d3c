"""Processes that are forked from one: what is heard of them, and what becomes of them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hostlib.errors import RunError
from hostlib.zygote import Zygote, zygote


@pytest.fixture
def heard() -> Any:
    """A Zygote that hears what is written to the descriptor."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stdout:
        yield Zygote(SimpleNamespace(stdout=stdout), None), writing  # type: ignore[arg-type]
    os.close(writing)


def test_a_number_that_comes_again_is_another_process(heard: Any) -> None:
    zygote, writing = heard
    for said in ({"pid": 7}, {"pid": 7, "status": 1}, {"pid": 8}, {"pid": 8, "status": -9}, {"pid": 7}):
        os.write(writing, json.dumps(said).encode() + b"\n")
    zygote.events(1.0)
    assert zygote.ended == {8: -9}


def test_lines_may_come_in_parts(heard: Any) -> None:
    zygote, writing = heard
    os.write(writing, b'{"event": "failed", "ra')
    assert zygote.events(1.0) == []
    os.write(writing, b'nk": 3}\n{"pid": 9, "status": 0}\n')
    assert zygote.events(1.0) == [{"event": "failed", "rank": 3}]
    assert zygote.ended == {9: 0}


EXAMPLE = """
import os, signal, sys
def main():
    print(os.environ["SAYS"], os.getpid(), sys.stdin.read(), flush=True)
    print("error: and that", file=sys.stderr, flush=True)
    if os.environ["SAYS"] == "waits":
        signal.pause()
    os._exit(3)
"""


def test_what_is_forked_has_its_own_name_environment_and_output(tmp_path: Path) -> None:
    (tmp_path / "forked_example.py").write_text(EXAMPLE)
    out, err = tmp_path / "out", tmp_path / "err"
    with zygote("forked_example", folder=tmp_path) as forks, out.open("wb") as output, err.open("wb") as errors:

        def fork(says: str) -> int:
            told = {"SAYS": says}
            return forks.fork("forked_example", told, None, errors.fileno(), output.fileno(), f"rank {says}")

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


def test_what_cannot_be_loaded_is_said_in_one_line() -> None:
    with (
        zygote("hostlib.nothing") as forks,
        pytest.raises(RunError, match=r"^hostlib\.nothing cannot be loaded: No mod"),
    ):
        forks.fork("hostlib.nothing", {}, None, 2)
