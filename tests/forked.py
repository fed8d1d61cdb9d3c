"""Ranks of a script, with the environment that torchrun gives them, forked from a process that has loaded torch."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch.distributed as dist

from hostlib.launch.fork_server import ForkServer, fork_server
from tests.conftest import ROOT

COMMAND_VARIABLE = "NETFOLD_TEST_COMMAND"
LOADED = ("torch._dynamo", "torch.distributed.fsdp", "hostlib.pytorch.backend")


@contextmanager
def loaded() -> Iterator[ForkServer]:
    """Whoever forks them."""
    with fork_server(__name__, *LOADED, folder=ROOT) as forks:
        yield forks


class Ranks:
    """Two of them, or `count`; of subprocess.Popen what one needs of torchrun's."""

    def __init__(
        self, forks: ForkServer, folder: Path, script: Path, *arguments: str | Path, count: int = 2, **environment: str
    ) -> None:
        self._forks, self._errors = forks, folder / "errors"
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        common = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            COMMAND_VARIABLE: json.dumps([str(script), *map(str, arguments)]),
            **environment,
        }
        with self._errors.open("wb") as file:
            self._pids = [
                forks.fork(__name__, {**common, "RANK": str(rank), "LOCAL_RANK": str(rank)}, None, file.fileno())
                for rank in range(count)
            ]

    @property
    def returncode(self) -> int | None:
        """The first that is not 0, when all have ended; None while any runs."""
        ended = [self._forks.ended.get(pid) for pid in self._pids]
        return None if None in ended else next(filter(None, ended), 0)

    def poll(self) -> int | None:
        """Where one has failed, the others are ended, too."""
        self._forks.listen(0)
        if any(self._forks.ended.get(pid) for pid in self._pids):
            self.kill()
        return self.returncode

    def kill(self) -> None:
        for pid in self._pids:
            if pid not in self._forks.ended:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def communicate(self, timeout: float) -> tuple[None, str]:
        """Until all have ended; what they said on standard error."""
        give_up = time.monotonic() + timeout
        while self.poll() is None:
            assert time.monotonic() < give_up, self._errors.read_text()
            self._forks.listen(0.1)
        return None, self._errors.read_text()


def main() -> None:
    """In a process that was forked: the script, as Python would run it."""
    sys.argv = json.loads(os.environ[COMMAND_VARIABLE])
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except Exception:
        traceback.print_exc()
        raise
