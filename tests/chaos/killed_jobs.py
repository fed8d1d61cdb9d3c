"""Jobs whose ranks are processes of their own, that train until they are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch.distributed as dist

from hostlib.launch.fork_server import ForkServer, fork_server
from hostlib.system.http_client import TOKEN
from tests.chaos.member import DEADLINE_S, Membership
from tests.conftest import ROOT

MEMBER = "tests.chaos.member"
OPTIONS = "NETFOLD_RANK_OPTIONS"
START_S = 60.0
NAMED_S = DEADLINE_S + 26.0  # on a busy machine; docs/failures.md has the figure of an idle one
LOOK_S = 0.05
MISSING = re.compile(r"rank (\d+) is missing")


@dataclass
class Forks:
    """A fork server that several threads use."""

    server: ForkServer
    folder: Path
    lock: threading.Lock = field(default_factory=threading.Lock)

    def fork(self, rank: int, environment: dict[str, str], output: Path) -> int:
        with self.lock, output.with_suffix(".err").open("wb") as errors, output.open("wb") as out:
            return self.server.fork(MEMBER, environment, None, errors.fileno(), out.fileno(), f"rank {rank}")

    def ended(self, pid: int) -> int | None:
        """Its exit status, if it has ended."""
        with self.lock:
            self.server.listen(0)
            return self.server.ended.get(pid)


@contextmanager
def forks(folder: Path) -> Iterator[Forks]:
    """Ranks' processes end with it."""
    with fork_server(MEMBER, folder=ROOT) as server:
        yield Forks(server, folder)


class KilledJob:
    """Ranks that train through the fabric, each in a process of its own.

    Attributes:
        tokens: by rank, once they have trained.
    """

    def __init__(self, made: Forks, number: int, tenant: str, wanted: Membership, ranks: int = 2) -> None:
        self._forks = made
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self._outputs = [made.folder / f"job{number}-rank{rank}.out" for rank in range(ranks)]
        common = {
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            TOKEN: tenant,
            OPTIONS: wanted.as_json(),
        }
        self._pids = [made.fork(rank, {**common, "RANK": str(rank)}, path) for rank, path in enumerate(self._outputs)]
        self.tokens: dict[int, str] = {}

    @property
    def pids(self) -> list[int]:
        return list(self._pids)

    def steps(self) -> list[int]:
        """How many each rank has trained."""
        return [
            max((event.get("step", 0) for event in self._events(rank)), default=0) for rank in range(len(self._pids))
        ]

    def wait_for_step(self, step: int) -> None:
        """Until every rank has trained so many steps."""
        give_up = time.monotonic() + START_S
        for rank, pid in enumerate(self._pids):
            while (events := self._events(rank))[-1:] == [] or events[-1].get("step", 0) < step:
                assert self._forks.ended(pid) is None, f"rank {rank} ended before step {step}: {self._error(rank)}"
                assert time.monotonic() < give_up, f"rank {rank} was not at step {step} within {START_S:.0f} s"
                time.sleep(LOOK_S)
            self.tokens[rank] = events[0]["token"]

    def kill(self, rank: int) -> None:
        """With SIGKILL."""
        os.kill(self._pids[rank], signal.SIGKILL)
        assert self._status(rank, 10) == -signal.SIGKILL

    def require_named(self, missing: int) -> None:
        """Every rank but the killed one ends by itself, with one line that names that one."""
        for rank in set(range(len(self._pids))) - {missing}:
            status, said = self._status(rank, NAMED_S), self._error(rank)
            found = MISSING.search(said)
            assert status == 1 and len(said.splitlines()) == 1 and found, f"rank {rank} ended with {status}: {said}"
            assert int(found[1]) == missing, f"rank {rank} names another one than {missing}: {said}"

    def close(self) -> None:
        """Nobody of it is left, whatever became of it."""
        for rank, pid in enumerate(self._pids):
            if self._forks.ended(pid) is None:
                self.kill(rank)

    def _status(self, rank: int, within_s: float) -> int:
        give_up = time.monotonic() + within_s
        while (status := self._forks.ended(self._pids[rank])) is None:
            assert time.monotonic() < give_up, f"rank {rank} had not ended {within_s:.0f} s later: {self._error(rank)}"
            time.sleep(LOOK_S)
        return status

    def _events(self, rank: int) -> list[dict[str, Any]]:
        *lines, _ = self._outputs[rank].read_text().split("\n")
        return [json.loads(line) for line in lines]

    def _error(self, rank: int) -> str:
        return self._outputs[rank].with_suffix(".err").read_text().strip()
