"""Which controller of a state directory is the primary: claims, silence, and what a deposed one may still do."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from controller.errors import DeposedError, StateError
from controller.primacy import AWAY_S, BEAT_S, BOOT_ID, Primacy
from controller.state_file import Standby
from controller.state_store import STATE_STORE, StateStore
from hostlib.system.process import Process
from tests.unit.controller.memory_api import Clock

SILENCE_S = 5.0
DEAD = Process(2**22 + 1, 1)  # above the largest pid there can be
Open = Callable[..., Primacy]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def open_primacy(tmp_path: Path, clock: Clock) -> Iterator[Open]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(Primacy(tmp_path, SILENCE_S, clock)))


def recorded(folder: Path, process: Process, boot: str) -> None:
    """Another controller has become primary, with the file as it is."""
    with contextlib.closing(sqlite3.connect(folder / STATE_STORE)) as database, database:
        (epoch,) = next(iter(database.execute("SELECT epoch FROM primacy")), (0,))
        row = (epoch + 1, process.pid, process.start_time, boot, "http://127.0.0.1:1")
        database.execute("INSERT OR REPLACE INTO primacy VALUES (1, ?, ?, ?, ?, ?)", row)


def look_for(waiting: Primacy, clock: Clock, seconds: float) -> bool:
    """As a standby does, again and again; whether it may claim at the end."""
    free = waiting.free()
    for _ in range(round(seconds / BEAT_S)):
        clock.seconds += BEAT_S
        free = waiting.free()
    return free


def test_one_of_two_is_primary_and_the_other_when_that_gives_it_up(open_primacy: Open, clock: Clock) -> None:
    first, second = open_primacy(), open_primacy()
    assert first.claim("http://first") and not second.claim("http://second")
    holder = second.holder()
    assert holder is not None and (holder.epoch, holder.http, holder.process.alive) == (1, "http://first", True)
    with pytest.raises(StateError, match=r"a controller is running already \(pid \d+, http://first\).*--standby"):
        second.require_free()
    first.release()
    assert second.claim("http://second") and second.held and not first.held
    second.release()
    assert first.claim("http://first") and first.epoch == 3


def test_a_dead_process_is_no_primary(open_primacy: Open, tmp_path: Path) -> None:
    waiting = open_primacy()
    recorded(tmp_path, DEAD, BOOT_ID.read_text().strip())
    waiting.require_free()
    assert waiting.claim("http://second") and waiting.epoch == 2


def test_a_silent_primary_loses_it_after_a_while(open_primacy: Open, clock: Clock, tmp_path: Path) -> None:
    """Its process is there: it is stopped. A process of another boot, too, is given that time."""
    here = Process.of(1)
    assert here is not None
    touched = time.time_ns()
    for process, boot in ((here, BOOT_ID.read_text().strip()), (DEAD, "another")):
        waiting = open_primacy()
        recorded(tmp_path, process, boot)
        assert not look_for(waiting, clock, SILENCE_S)
        sign = tmp_path / "controller.lock"
        sign.touch()
        touched += 10**9  # within a tick of the file system's clock it would be the same time
        os.utime(sign, ns=(touched, touched))
        assert not look_for(waiting, clock, SILENCE_S)
        assert look_for(waiting, clock, 2 * BEAT_S)


def test_who_was_stopped_itself_has_seen_no_silence(open_primacy: Open, clock: Clock, tmp_path: Path) -> None:
    here = Process.of(1)
    assert here is not None
    waiting = open_primacy()
    recorded(tmp_path, here, BOOT_ID.read_text().strip())
    assert not waiting.free()
    clock.seconds += 100 * SILENCE_S
    assert not waiting.free()
    assert not look_for(waiting, clock, SILENCE_S - AWAY_S)


def test_a_deposed_primary_writes_nothing_and_is_told(open_primacy: Open, tmp_path: Path) -> None:
    first = open_primacy()
    assert first.claim("http://first")
    dump = {"last_epoch": 7, "drained": [], "jobs": []}
    with contextlib.closing(StateStore(tmp_path, first.epoch)) as store:
        store.begin_writes()
        store.save(dump, clean=False)
        recorded(tmp_path, DEAD, "another")
        for write in (store.begin_writes, store.forget_jobs, lambda: store.save({**dump, "last_epoch": 9}, clean=True)):
            with pytest.raises(
                DeposedError, match=r"this controller is a standby: the primary is http://127\.0\.0\.1:1"
            ):
                write()
        assert store.load() == {**dump, "clean": False}
    with pytest.raises(DeposedError):
        first.require()
    with pytest.raises(DeposedError), first.fenced():
        pytest.fail("a deposed primary's block began")
    told = []
    assert first.lost.wait(30)
    first.when_lost(lambda: told.append(True))
    assert told and not first.held
    first.release()
    holder = first.holder()
    assert holder is not None and holder.epoch == 2, "it is not its own to give up"


def test_nobody_becomes_primary_within_a_fence(open_primacy: Open, tmp_path: Path) -> None:
    first = open_primacy()
    assert first.claim("http://first")
    database = sqlite3.connect(tmp_path / STATE_STORE, timeout=0)
    with contextlib.closing(database), first.fenced(), pytest.raises(sqlite3.OperationalError, match="locked"):
        database.execute("UPDATE primacy SET epoch = 2")
    assert first.held


def test_election_ids_are_handed_down(open_primacy: Open) -> None:
    first, second = open_primacy(), open_primacy()
    assert second.former("switch") is None
    first.won("switch", 2**100)
    first.won("switch", 2**128 - 2)
    assert second.former("switch") == 2**128 - 2


def test_standbys_that_died_are_forgotten(tmp_path: Path) -> None:
    here = Process.of(1)
    assert here is not None
    living = Standby(here, "http://127.0.0.1:2")
    living.write(tmp_path)
    Standby(DEAD, "http://127.0.0.1:3").write(tmp_path)
    assert Standby.all(tmp_path) == [living]
    assert [path.name for path in tmp_path.iterdir()] == ["standby-1.json"]
    living.forget(tmp_path)
    assert Standby.all(tmp_path) == []
