"""Who is still there, and how far: every rank writes a heartbeat to the torch store and reads the others'.

It works without controller and switch, and sees a stopped process (SIGSTOP) as well as a dead one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from datetime import timedelta

import torch.distributed as dist

from hostlib.errors import ENDED_EARLY, HostlibError, MissingRankError, RunError

BEAT_S = 0.25
WATCH_S = 1.5
STORE_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a rank says of itself.

    Attributes:
        submitted, completed: all-reduces through the fabric, since the start.
        failures: of the fabric, that it has noticed so far.
        left: 1 when it ended, well or not: whoever is missed, it is not this one.
    """

    beat: int = 0
    submitted: int = 0
    completed: int = 0
    failures: int = 0
    left: int = 0


class FailureDetector:
    """This rank's heartbeat, and a look at everybody else's.

    Args:
        host, port: of the torch store; the connection is the thread's own, so that nothing blocks it.
        group: names the heartbeats; no two groups of ranks may share it.
        servers: how many of them, the last, serve and do not train.
    """

    def __init__(self, host: str, port: int, group: str, rank: int, world_size: int, servers: int = 0) -> None:
        self._rank, self._world_size, self._servers = rank, world_size, servers
        self._keys = [f"alive/{group}/{number}" for number in range(world_size)]
        self._store = dist.TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
        self._mine = Heartbeat()
        self._heartbeats: list[Heartbeat | None] = [None] * world_size
        self._moved = [0.0] * world_size  # when a rank's sign was last seen to change
        self._gone = False
        self._lock = threading.Lock()  # of what is above; never held while the store is asked
        self._asking = threading.Lock()
        self._ended = threading.Event()
        self.exchange()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._gone and not self._ended.wait(BEAT_S):
            self.exchange()

    def publish(self, submitted: int | None = None, completed: int | None = None, failures: int | None = None) -> None:
        """What the next beat tells the others."""
        news = {"submitted": submitted, "completed": completed, "failures": failures}
        with self._lock:
            self._mine = replace(self._mine, **{name: value for name, value in news.items() if value is not None})

    def exchange(self) -> None:
        """A beat now, and a look at the others."""
        with self._asking:
            with self._lock:
                self._mine = mine = replace(self._mine, beat=self._mine.beat + 1)
                known = None not in self._heartbeats
            try:
                self._store.set(self._keys[self._rank], " ".join(map(str, astuple(mine))))
                # Asked for keys that are not there yet, the store would wait.
                there = self._keys if known else [key for key in self._keys if self._store.check([key])]
                values = dict(zip(there, self._store.multi_get(there), strict=True))
            except RuntimeError:
                self._gone = True
                return
            with self._lock:
                self._take([Heartbeat(*map(int, values[key].split())) if key in values else None for key in self._keys])

    def _take(self, heartbeats: list[Heartbeat | None]) -> None:
        for rank, heartbeat in enumerate(heartbeats):
            if heartbeat != self._heartbeats[rank]:
                self._moved[rank] = time.monotonic()
        self._heartbeats = heartbeats

    def heartbeats(self) -> list[Heartbeat | None]:
        """The last that was heard of every rank; None of one that never came."""
        with self._lock:
            return list(self._heartbeats)

    def silent(self) -> list[int]:
        """Other ranks that have given no heartbeat for a while."""
        with self._lock:
            now = time.monotonic()
            return [r for r in range(self._world_size) if r != self._rank and now - self._moved[r] > WATCH_S]

    def close(self) -> None:
        """Stop beating, and say so."""
        self._ended.set()
        # A thread that is inside torch when the interpreter ends takes the process down with it.
        self._thread.join(timeout=WATCH_S)
        if self._thread.is_alive():
            return
        self._mine = replace(self._mine, left=1)
        with contextlib.suppress(RuntimeError):
            self._store.set(self._keys[self._rank], " ".join(map(str, astuple(self._mine))))

    def departed(self) -> list[int]:
        """Other ranks that said that they end."""
        return [r for r, each in enumerate(self.heartbeats()) if r != self._rank and _has_left(each)]

    def wait_for_workers(self) -> None:
        """Until all that are no servers have said that they end, or are gone."""
        while not self._ended.wait(BEAT_S):
            workers = range(self._world_size - self._servers)
            if self._gone or set(workers) <= {*self.departed(), *self.silent()}:
                return

    def missing(self) -> list[int]:
        """Ranks that give no sign from now on, and did not say that they end; takes WATCH_S at most.

        Raises:
            RunError: the store itself is gone, and with it whoever hosted it.
        """
        self.exchange()  # What came before is no heartbeat now.
        begin = time.monotonic()
        others = [rank for rank in range(self._world_size) if rank != self._rank]
        while True:
            if self._gone:
                raise RunError(
                    "the torch store is gone, and with it the process that hosted it "
                    "(under torchrun: the agent or rank 0)"
                )
            with self._lock:
                missing = [r for r in others if self._moved[r] <= begin and not _has_left(self._heartbeats[r])]
            if not missing or time.monotonic() > begin + WATCH_S:
                return missing
            time.sleep(BEAT_S / 5)

    def explain(self, waited_s: float, otherwise: Callable[[], HostlibError]) -> HostlibError:
        """The error for an operation that failed: missing ranks if any are, then one that ended, else `otherwise`."""
        try:
            missing = self.missing()
        except RunError as gone:
            return gone
        if missing:
            return MissingRankError(missing, waited_s, self._world_size - self._servers)
        left = self.departed()
        # It has said itself why.
        return RunError(f"rank {left[0]} {ENDED_EARLY}") if left else otherwise()


def _has_left(heartbeat: Heartbeat | None) -> bool:
    return heartbeat is not None and bool(heartbeat.left)
