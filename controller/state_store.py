"""What a restarted controller must know of its jobs: STATE_DIR/state.db, a small SQLite database."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from controller.errors import DeposedError, StateError
from controller.jobs.job import Job, JobEntries

STATE_STORE = "state.db"
BUSY_S = 5.0  # another command may be writing a token
SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS jobs (name TEXT PRIMARY KEY, described TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS tokens (
    id TEXT PRIMARY KEY, hash TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, quota TEXT NOT NULL, created_s REAL NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS primacy (
    only INTEGER PRIMARY KEY CHECK (only = 1), epoch INTEGER NOT NULL, pid INTEGER, start_time INTEGER, boot TEXT, http TEXT
);
CREATE TABLE IF NOT EXISTS elections (switch TEXT PRIMARY KEY, id TEXT NOT NULL) WITHOUT ROWID;
"""


class StateStore:
    """The database; its caller sees to it that one thread uses it at a time.

    Facts are last_epoch, drained, and clean: whether the switches have the entries of these jobs and no others.

    Attributes:
        epoch: of the primacy that each change needs (controller/primacy.py); None for changes that others may make.

    Raises:
        StateError: it cannot be opened, or is damaged.
    """

    def __init__(self, folder: Path, epoch: int | None = None) -> None:
        self.path = folder / STATE_STORE
        self.epoch = epoch
        self._saved: dict[str, str] = {}
        self._incomplete = False
        with self._refusing("opened"):
            # SQLite gives its other files the mode of this one. Only a new one is opened here: to close a file takes
            # this process's locks on it from the connections that it has.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            self._database = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            # A killed controller loses nothing; a power failure the last changes, but with them the switches' jobs.
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = NORMAL")
            self._database.executescript(SCHEMA)

    def close(self) -> None:
        self._database.close()

    @contextmanager
    def _refusing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            remedy = "; remove it" if "not a database" in str(reason) or "malformed" in str(reason) else ""
            raise StateError(f"the controller's state {self.path} cannot be {what}: {reason}{remedy}") from error

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All changes within, or none.

        Raises:
            StateError: the file cannot be written.
            DeposedError: another controller has become the primary.
        """
        with self._refusing("written"):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                self._require_primacy()
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    def _require_primacy(self) -> None:
        if self.epoch is None:
            return
        (epoch, http), *_ = self._database.execute("SELECT epoch, http FROM primacy").fetchall() or [(0, "")]
        if epoch != self.epoch:
            raise DeposedError(http)

    def read(self, query: str, *values: object) -> list[Any]:
        """Rows of a query.

        Raises:
            StateError: the file cannot be read.
        """
        with self._refusing("read"):
            return self._database.execute(query, values).fetchall()

    # ---- jobs -------------------------------------------------------------------------------------------------

    def save(self, dump: dict[str, Any], clean: bool) -> None:
        """Save the table of jobs; writes only what has changed.

        Raises:
            StateError: the file cannot be written; what it said before stays.
        """
        jobs = {job["name"]: json.dumps(job) for job in dump["jobs"]}
        facts = {"last_epoch": dump["last_epoch"], "drained": dump["drained"], "clean": clean}
        with self.transaction() as database:
            _write_facts(database, facts)
            gone = [(name,) for name in self._saved.keys() - jobs.keys()]
            database.executemany("DELETE FROM jobs WHERE name = ?", gone)
            changed = [(name, text) for name, text in jobs.items() if self._saved.get(name) != text]
            database.executemany("INSERT OR REPLACE INTO jobs VALUES (?, ?)", changed)
        self._saved, self._incomplete = jobs, not clean

    def begin_writes(self) -> None:
        """Record that switches are about to be written to: until the next `save`, jobs do not account for all entries.

        Raises:
            StateError: the file cannot be written.
        """
        if self._incomplete:
            with self._refusing("read"):
                self._require_primacy()
            return
        with self.transaction() as database:
            _write_facts(database, {"clean": False})
        self._incomplete = True

    def load(self) -> dict[str, Any]:
        """What an earlier controller saved: last_epoch, drained, clean, jobs.

        Raises:
            StateError: the file is damaged.
        """
        found: dict[str, Any] = {"last_epoch": 0, "drained": [], "clean": False}
        rows = self.read("SELECT name, described FROM jobs ORDER BY json_extract(described, '$.epoch')")
        try:
            found |= {name: json.loads(value) for name, value in self.read("SELECT name, value FROM facts")}
            found["jobs"] = [json.loads(described) for _, described in rows]
        except ValueError as error:
            raise StateError(f"the controller's state {self.path} is damaged: {error}; remove it") from error
        self._saved, self._incomplete = dict(rows), not found["clean"]
        return found

    def forget_jobs(self) -> None:
        """Forget jobs and drained switches, but not which epochs there were, nor tokens.

        Raises:
            StateError: the file cannot be written.
        """
        with self.transaction() as database:
            database.execute("DELETE FROM jobs")
            _write_facts(database, {"clean": False, "drained": []})
        self._saved, self._incomplete = {}, True


def _write_facts(database: sqlite3.Connection, facts: dict[str, Any]) -> None:
    rows = [(name, json.dumps(value)) for name, value in facts.items()]
    database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", rows)


class RecordedEntries:
    """Entries of jobs on switches, each change of which is on disk before it begins."""

    def __init__(self, entries: JobEntries, begin: Callable[[], None]) -> None:
        self._entries = entries
        self._begin = begin

    def install(self, job: Job) -> None:
        self._begin()
        self._entries.install(job)

    def remove(self, job: Job) -> None:
        self._begin()
        self._entries.remove(job)
