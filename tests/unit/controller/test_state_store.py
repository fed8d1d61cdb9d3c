"""The controller's state on disk, and the clock of leases."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.errors import StateError
from controller.lease_clock import LeaseClock
from controller.state_store import RecordedEntries, StateStore
from tests.unit.controller.test_job import Clock, World


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    with contextlib.closing(StateStore(tmp_path)) as opened:
        yield opened


def dump(*names: str, epoch: int = 7) -> dict[str, Any]:
    jobs = [{"name": name, "epoch": epoch + number} for number, name in enumerate(names)]
    return {"last_epoch": epoch, "drained": ["leaf0"], "jobs": jobs}


def test_what_was_saved_is_read_back(store: StateStore, tmp_path: Path) -> None:
    assert store.load() == {"last_epoch": 0, "drained": [], "clean": False, "jobs": []}
    store.save(dump("b", "a"), clean=True)
    with contextlib.closing(StateStore(tmp_path)) as later:
        assert later.load() == {**dump("b", "a"), "clean": True}
        later.save(dump("a", epoch=9), clean=False)
        assert later.load() == {**dump("a", epoch=9), "clean": False}
        later.forget_jobs()
        assert later.load() == {"last_epoch": 9, "drained": [], "clean": False, "jobs": []}


def test_files_are_readable_by_their_owner_only(store: StateStore, tmp_path: Path) -> None:
    store.save(dump("a"), clean=True)
    files = list(tmp_path.iterdir())
    assert len(files) > 1 and {file.stat().st_mode & 0o777 for file in files} == {0o600}


def test_writes_to_switches_are_announced_once(store: StateStore) -> None:
    world = World()
    world.table._entries = RecordedEntries(world.fabric, store.begin_writes)
    store.save(dump("a"), clean=True)
    world.join(0, 1)
    assert store.load()["clean"] is False and world.fabric.installed == ["demo"]
    store.save(world.table.dump(), clean=True)
    assert store.load()["clean"] is True
    world.table.leave("demo", 0)
    assert store.load()["clean"] is False and world.fabric.installed == []


def test_a_full_disk_changes_nothing_and_recovers(store: StateStore) -> None:
    store.save(dump("a"), clean=True)
    (pages,) = store.read("PRAGMA page_count")[0]
    store.read(f"PRAGMA max_page_count = {pages}")
    large = {**dump("b"), "drained": ["leaf" * 20_000]}
    with pytest.raises(StateError, match=r"state\.db cannot be written: database or disk is full$"):
        store.save(large, clean=True)
    assert store.load() == {**dump("a"), "clean": True}
    store.read("PRAGMA max_page_count = 100000")
    store.save(large, clean=True)
    assert store.load()["jobs"] == large["jobs"]


def test_a_refused_announcement_leaves_the_job_and_its_entries(store: StateStore) -> None:
    world = World()
    world.table._entries = RecordedEntries(world.fabric, store.begin_writes)
    world.table._saving = lambda dump: store.save(dump, clean=True)
    job = world.join(0, 1)
    other = sqlite3.connect(store.path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    store.read("PRAGMA busy_timeout = 10")
    with pytest.raises(StateError, match="database is locked"):
        world.table.leave("demo", 0)
    assert world.table.jobs == {"demo": job} and world.fabric.installed == ["demo"]
    other.close()
    world.table.leave("demo", 0)
    assert world.table.jobs == {} and store.load()["jobs"] == []


@pytest.mark.parametrize("content", [b"nonsense" * 200, b'{"jobs": []}'])
def test_a_file_that_is_no_database_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "state.db").write_bytes(content)
    with pytest.raises(StateError, match=r"state\.db cannot be opened: file is not a database; remove it$"):
        StateStore(tmp_path)


def test_leases_stand_still_while_the_controller_is_away() -> None:
    wall = Clock(100.0)
    clock = LeaseClock(wall, 1.0)
    for _ in range(4):
        wall.seconds += 0.5
        clock.tick()
    assert clock() == 2.0
    wall.seconds += 0.25
    assert clock() == 2.25
    wall.seconds += 40.0
    assert clock() == 3.0, "it was stopped"
    clock.tick()
    wall.seconds += 0.5
    assert clock() == 3.5
