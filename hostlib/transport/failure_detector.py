"""Failure detection: every rank writes a heartbeat to the torch store and reads the others' heartbeats.

It needs neither controller nor switch, and detects a stopped process (SIGSTOP) as well as a dead one.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hostlib.errors import ENDED_EARLY, HostlibError, MissingRankError, RunError
from hostlib.transport.waits import BEAT_S, SILENCE_S

STORE_TIMEOUT = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A rank's heartbeat.

    Attributes:
        submitted, completed: all-reduces through the fabric, since the start.
        failures: of the fabric, that the rank has noticed so far.
        left: 1 once it has ended, well or not, so that it does not count as missing.
        ready: epoch of the job in which the rank would return to the fabric; 0 for none.
        begun: messages of each stream that the rank had begun when it saw that all are ready; empty before.
    """

    beat: int = 0
    submitted: int = 0
    completed: int = 0
    failures: int = 0
    left: int = 0
    ready: int = 0
    begun: tuple[int, ...] = ()

    def as_text(self) -> str:
        *numbers, begun = astuple(self)
        return " ".join(map(str, (*numbers, *begun)))

    @classmethod
    def of_text(cls, text: bytes) -> Heartbeat:
        beat, submitted, completed, failures, left, ready, *begun = map(int, text.split())
        return cls(beat, submitted, completed, failures, left, ready, tuple(begun))


class FailureDetector:
    """Sends this rank's heartbeat and watches the other ranks'.

    Args:
        host, port: of the torch store; the thread has its own connection, so that nothing blocks it.
        group: prefix of the heartbeats' keys; unique to each group of ranks.
        servers: how many of them, the last ones, serve and do not train.
        run: the detector of all ranks of the run, which explains failures of a group that is a part of them.
        silence_s: a rank that gave no sign of life for so long counts as missing.
    """

    def __init__(
        self,
        host: str,
        port: int,
        group: str,
        rank: int,
        world_size: int,
        servers: int = 0,
        run: FailureDetector | None = None,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.silence_s = silence_s
        self._rank, self._world_size, self._servers, self._of_run = rank, world_size, servers, run
        self._keys = [f"alive/{group}/{number}" for number in range(world_size)]
        self._store = dist.TCPStore(host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False)
        self._mine = Heartbeat()
        self._heartbeats: list[Heartbeat | None] = [None] * world_size
        self._moved = [0.0] * world_size  # when a change in each rank's heartbeat was last seen
        self._gone = False
        self._lock = threading.Lock()  # guards the fields above; never held during a request to the store
        self._asking = threading.Lock()
        self._ended = threading.Event()
        self.exchange()
        self._thread = threading.Thread(target=self._run, name="liveness", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._gone and not self._ended.wait(BEAT_S):
            self.exchange()

    def publish(
        self,
        submitted: int | None = None,
        completed: int | None = None,
        failures: int | None = None,
        ready: int | None = None,
        begun: tuple[int, ...] | None = None,
    ) -> None:
        """Update what the next heartbeat tells the others."""
        news: dict[str, Any] = {"submitted": submitted, "completed": completed, "failures": failures}
        news |= {"ready": ready, "begun": begun}
        with self._lock:
            self._mine = replace(self._mine, **{name: value for name, value in news.items() if value is not None})

    def exchange(self) -> None:
        """Send a heartbeat and read the others' now."""
        with self._asking:
            with self._lock:
                self._mine = mine = replace(self._mine, beat=self._mine.beat + 1)
                known = None not in self._heartbeats
            try:
                self._store.set(self._keys[self._rank], mine.as_text())
                # The store would block on keys that do not exist yet.
                there = self._keys if known else [key for key in self._keys if self._store.check([key])]
                values = dict(zip(there, self._store.multi_get(there), strict=True))
            except RuntimeError:
                self._gone = True
                return
            with self._lock:
                self._take([Heartbeat.of_text(values[key]) if key in values else None for key in self._keys])

    def _take(self, heartbeats: list[Heartbeat | None]) -> None:
        for rank, heartbeat in enumerate(heartbeats):
            if heartbeat != self._heartbeats[rank]:
                self._moved[rank] = time.monotonic()
        self._heartbeats = heartbeats

    def heartbeats(self) -> list[Heartbeat | None]:
        """The last heartbeat of every rank; None for a rank without one."""
        with self._lock:
            return list(self._heartbeats)

    def silent(self) -> list[int]:
        """Other ranks without a recent heartbeat."""
        with self._lock:
            now = time.monotonic()
            return [r for r in range(self._world_size) if r != self._rank and now - self._moved[r] > self.silence_s]

    def close(self) -> None:
        """Stop the heartbeats, and announce that this rank has left."""
        self._ended.set()
        # A thread inside torch at interpreter exit crashes the process.
        self._thread.join(timeout=SILENCE_S)
        if self._thread.is_alive():
            return
        self._mine = replace(self._mine, left=1)
        with contextlib.suppress(RuntimeError):
            self._store.set(self._keys[self._rank], self._mine.as_text())

    def departed(self) -> list[int]:
        """Other ranks that have announced that they ended."""
        return [r for r, each in enumerate(self.heartbeats()) if r != self._rank and _has_left(each)]

    def wait_for_workers(self) -> None:
        """Wait until all workers have left or are missing."""
        while not self._ended.wait(BEAT_S):
            workers = range(self._world_size - self._servers)
            if self._gone or set(workers) <= {*self.departed(), *self.silent()}:
                return

    def missing(self) -> list[int]:
        """Ranks that send no heartbeat from now on and have not left; takes at most `silence_s`.

        Raises:
            RunError: the store itself is gone, with the process that hosted it.
        """
        self.exchange()  # Earlier heartbeats do not count.
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
            if not missing or time.monotonic() > begin + self.silence_s:
                return missing
            time.sleep(BEAT_S / 5)

    def explain(self, waited_s: float, otherwise: Callable[[], HostlibError]) -> HostlibError:
        """Error for a failed operation: missing ranks if there are any, then a rank that ended, else `otherwise`."""
        if self._of_run is not None:
            return self._of_run.explain(waited_s, otherwise)
        try:
            missing = self.missing()
        except RunError as gone:
            return gone
        if missing:
            return MissingRankError(missing, waited_s, self._world_size - self._servers)
        left = self.departed()
        # It reports the cause itself.
        return RunError(f"rank {left[0]} {ENDED_EARLY}") if left else otherwise()


def _has_left(heartbeat: Heartbeat | None) -> bool:
    return heartbeat is not None and bool(heartbeat.left)
