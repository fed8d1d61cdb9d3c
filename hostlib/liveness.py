"""Who is still there: every rank bumps a counter in the torch store, and whoever waits too long compares counters.

It works without controller and switch, and sees a stopped process (SIGSTOP) as well as a dead one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from hostlib.errors import HostlibError, MissingRankError, RunError

BEAT_S = 0.25
WATCH_S = 1.5
STORE_TIMEOUT = timedelta(seconds=10)


class Liveness:
    """This rank's sign of life, and a look at everybody else's.

    Args:
        host, port: of the torch store; the connection is the thread's own, so that nothing blocks it.
        group: names the counters; no two groups of ranks may share it.
    """

    def __init__(self, host: str, port: int, group: str, rank: int, world_size: int) -> None:
        self._group, self._rank, self._world_size = group, rank, world_size
        self._connect = lambda: dist.TCPStore(
            host, port, is_master=False, timeout=STORE_TIMEOUT, wait_for_workers=False
        )
        self._watch = self._connect()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="liveness", daemon=True)
        self._thread.start()

    def _key(self, rank: int) -> str:
        return f"alive/{self._group}/{rank}"

    def _beat(self) -> None:
        try:
            store = self._connect()
            while not self._ended.wait(BEAT_S):
                store.add(self._key(self._rank), 1)
        except RuntimeError:
            return  # The store's host is gone; the next operation of the main thread says so.

    def close(self) -> None:
        """Stop bumping."""
        self._ended.set()

    def missing(self) -> list[int]:
        """Ranks whose counter does not move; takes WATCH_S.

        Raises:
            RunError: the store itself is gone, and with it whoever hosted it.
        """
        try:
            before = [self._watch.add(self._key(rank), 0) for rank in range(self._world_size)]
            time.sleep(WATCH_S)
            after = [self._watch.add(self._key(rank), 0) for rank in range(self._world_size)]
        except RuntimeError as wrong:
            raise RunError(
                "the torch store is gone, and with it the process that hosted it (under torchrun: the agent or rank 0)"
            ) from wrong
        return [rank for rank in range(self._world_size) if before[rank] == after[rank] and rank != self._rank]

    def explain(self, waited_s: float, otherwise: Callable[[], HostlibError]) -> HostlibError:
        """The error for an operation that failed: missing ranks if any are, else `otherwise`."""
        try:
            missing = self.missing()
        except RunError as gone:
            return gone
        return MissingRankError(missing, waited_s) if missing else otherwise()
