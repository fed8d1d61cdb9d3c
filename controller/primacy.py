"""Which controller of a state directory is its primary.

The database has an epoch of primacy, and who has it. Each claim makes the epoch one more, and every transaction of a
primary checks that it is still its own: one that was stopped and comes back writes nothing any more. The primary
touches a file again and again. Who waits claims when the primary's process is gone, or the file has been left alone for
too long; never by clocks of two processes, so setting one does no harm.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.errors import DeposedError, StateError
from controller.lease_clock import LeaseClock
from controller.repeated_warning import RepeatedWarning
from controller.state_file import running
from controller.state_store import StateStore
from hostlib.system.process import Process

TOUCHED = "controller.lock"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BEAT_S = 0.25
SILENCE_S, SHORTEST_SILENCE_S = 5.0, 1.0
AWAY_S = 1.0  # of a longer pause between two looks, only this counts: the one that looks was stopped, too

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the primacy.

    Attributes:
        boot: when processes are known by their numbers; they are others after the next.
    """

    epoch: int
    process: Process
    boot: str
    http: str

    @property
    def here(self) -> bool:
        """Whether its process is one of this boot, where it can be told from others."""
        return self.boot == _boot()

    @property
    def dead(self) -> bool:
        return self.here and not self.process.alive


class Primacy:
    """This process's part in it. Threads may share it.

    Args:
        folder: the state directory, which must exist.
        silence_s: how long the primary's file may be left alone.
        clock: monotonic seconds.

    Attributes:
        epoch: of its own primacy, or its last; 0 if it never had any.
        lost: set when somebody else has claimed it.

    Raises:
        StateError: the database cannot be opened.
    """

    def __init__(self, folder: Path, silence_s: float = SILENCE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.epoch = 0
        self.lost = threading.Event()
        self._silence_s = silence_s
        # Two connections: one that waits for another process's change does not keep the other from reading.
        self._store, self._reading = StateStore(folder), threading.Lock()
        self._changes, self._changing = StateStore(folder), threading.Lock()
        self._path = folder / TOUCHED
        self._clock = LeaseClock(clock, AWAY_S)
        self._sign: tuple[int, int] = (0, 0)
        self._seen_s = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._when_lost: Callable[[], None] = lambda: None

    def close(self) -> None:
        """Give it up, if it is this process's."""
        self.release()
        self._store.close()
        self._changes.close()

    # ---- who waits --------------------------------------------------------------------------------------------

    def holder(self) -> Holder | None:
        """Who is primary, as far as is recorded; None if nobody is.

        Raises:
            StateError: the database cannot be read.
        """
        rows = self._read("SELECT epoch, pid, start_time, boot, http FROM primacy WHERE pid IS NOT NULL")
        return next((Holder(epoch, Process(pid, start), boot, http) for epoch, pid, start, boot, http in rows), None)

    def free(self) -> bool:
        """Whether it may be claimed: nobody has it, or its holder's process is gone, or silent. To be called often.

        Raises:
            StateError: the database cannot be read.
        """
        self._clock.tick()
        holder = self.holder()
        if holder is None or holder.dead:
            return True
        sign = (holder.epoch, self._touched())
        if sign != self._sign:
            self._sign, self._seen_s = sign, self._clock()
        return self._clock() - self._seen_s > self._silence_s

    def require_free(self) -> None:
        """Check that nobody is primary; of a process of another boot that takes as long as it may be silent.

        Raises:
            StateError: somebody is, or the database cannot be read.
        """
        first = self._touched()
        while not self.free():
            holder = self.holder()
            if holder is not None and (holder.here or self._touched() != first):
                raise running(holder.process.pid, holder.http)
            time.sleep(BEAT_S)

    def claim(self, http: str) -> bool:
        """Become the primary if it is free; returns whether that was so. A silent one that keeps the database locked is
        killed.

        Raises:
            StateError: the database cannot be written.
        """
        seen = self._epoch()
        if not self.free():
            return False
        here = Process.of(os.getpid())
        assert here is not None
        try:
            with self._changing, self._changes.transaction() as database:
                if any(epoch != seen for (epoch,) in database.execute("SELECT epoch FROM primacy").fetchall()):
                    return False  # Another one was faster.
                database.execute(
                    "INSERT OR REPLACE INTO primacy VALUES (1, ?, ?, ?, ?, ?)",
                    (seen + 1, here.pid, here.start_time, _boot(), http),
                )
        except StateError as error:
            if "database is locked" in str(error):
                self._end_silent()
            raise
        self.epoch = seen + 1
        self.lost.clear()
        self._ended.clear()
        self._touch()
        self._thread = threading.Thread(target=self._beat, name="primacy", daemon=True)
        self._thread.start()
        return True

    def _end_silent(self) -> None:
        """Kill a primary that was stopped within a transaction: nobody could write until it continues."""
        holder = self.holder()
        if holder is not None and holder.here and holder.process.alive and self.free():
            log.warning(
                "the primary (pid %d) is silent, and keeps the database locked: it is killed", holder.process.pid
            )
            os.kill(holder.process.pid, signal.SIGKILL)

    # ---- the primary ------------------------------------------------------------------------------------------

    def require(self) -> None:
        """Check that this is the primary.

        Raises:
            DeposedError: it is not any more.
            StateError: the database cannot be read.
        """
        if self._epoch() != self.epoch:
            raise DeposedError(self.primary())

    def primary(self) -> str:
        """The address of whoever is primary; empty if nobody is.

        Raises:
            StateError: the database cannot be read.
        """
        holder = self.holder()
        return "" if holder is None else holder.http

    @contextmanager
    def fenced(self) -> Iterator[None]:
        """Nobody else becomes the primary within the block, which is to be short.

        Raises:
            DeposedError: somebody else is already.
            StateError: the database cannot be written.
        """
        with self._changing, self._changes.transaction():
            self.require()
            yield

    @property
    def held(self) -> bool:
        """Whether this is the primary, as far as is known."""
        try:
            self.require()
        except StateError:
            return False
        return True

    def when_lost(self, act: Callable[[], None]) -> None:
        """Have a thread call this as soon as somebody else is the primary; at once if that has happened already."""
        self._when_lost = act
        if self.lost.is_set():
            act()

    def release(self) -> None:
        """Give it up, so that another one need not wait; it may be claimed again later."""
        self._ended.set()
        if self._thread is None:
            return
        self._thread.join()
        self._thread, self._when_lost = None, lambda: None
        try:
            with self._changing, self._changes.transaction() as database:
                database.execute("UPDATE primacy SET pid = NULL, http = '' WHERE epoch = ?", (self.epoch,))
        except StateError as error:
            log.warning("%s; others notice only that this process is gone", error)

    def _beat(self) -> None:
        warning = RepeatedWarning(log)
        while not self._ended.wait(BEAT_S):
            try:
                if self._epoch() != self.epoch:
                    self.lost.set()
                    self._when_lost()
                    return
                self._touch()
                warning.over()
            except StateError as error:
                warning(error)

    # ---- elections at switches --------------------------------------------------------------------------------

    def former(self, switch: str) -> int | None:
        """The election id with which a controller of this state directory was last primary at a switch.

        Raises:
            StateError: the database cannot be read.
        """
        return next((int(text) for (text,) in self._read("SELECT id FROM elections WHERE switch = ?", switch)), None)

    def won(self, switch: str, election_id: int) -> None:
        """Record such an election id for who comes after.

        Raises:
            StateError: the database cannot be written.
        """
        with self._changing, self._changes.transaction() as database:
            database.execute("INSERT OR REPLACE INTO elections VALUES (?, ?)", (switch, str(election_id)))

    # ---- both files -------------------------------------------------------------------------------------------

    def _read(self, query: str, *values: object) -> list[Any]:
        with self._reading:
            return self._store.read(query, *values)

    def _epoch(self) -> int:
        return next((int(epoch) for (epoch,) in self._read("SELECT epoch FROM primacy")), 0)

    def _touched(self) -> int:
        try:
            return self._path.stat().st_mtime_ns
        except OSError:
            return 0

    def _touch(self) -> None:
        """Its time is all that counts, which can be written on a full disk, too."""
        try:
            self._path.touch(0o600)
        except OSError as error:
            raise StateError(f"{self._path} cannot be written: {error.strerror or error}") from error


def _boot() -> str:
    return BOOT_ID.read_text().strip()
