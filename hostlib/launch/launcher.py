"""Start the ranks of a run, watch them, and leave nothing behind.

Ranks are forked from one process that has already imported what they need (hostlib/launch/fork_server.py).
"""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from hostlib.errors import ENDED_EARLY, HostlibError, RunError, from_json
from hostlib.launch.fork_server import ForkServer, fork_server
from hostlib.launch.hosts import Hosts

OPTIONS_VARIABLE = "NETFOLD_RANK_OPTIONS"
STORE = "hostlib.transport.rendezvous"
BESIDES = (STORE, "hostlib.launch.rank_main")  # what every rank needs, imported once for all
LAST_LINES = 20
LOOK_S = 0.1
STOP_S, GONE_S = 3.0, 5.0

Event = dict[str, Any]


@dataclass(slots=True)
class Child:
    """A rank's or server's process, and the last lines it wrote to standard error."""

    name: str
    pid: int
    forks: ForkServer
    last_lines: deque[str]
    listeners: list[threading.Thread]

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs, negative: the signal that killed it."""
        return self.forks.ended.get(self.pid)

    def fate(self) -> str | None:
        """Why it failed; None while it runs or after it ended well."""
        status = self.status
        if status is None or status == 0:
            return None
        if status < 0:
            return f"{self.name} (pid {self.pid}) was killed by {signal.Signals(-status).name}"
        self.hear_out(within_s=2)
        lines = [line for line in self.last_lines if line.strip()]
        ours = [line for line in lines if line.startswith("error: ")]
        message = (ours or lines or [f"exit code {status}"])[-1].removeprefix("error: ")
        return f"{self.name}: {message}"

    def hear_out(self, within_s: float) -> None:
        """Read what is left of its standard error."""
        for thread in self.listeners:
            thread.join(within_s)

    def kill(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


def run_ranks(
    module: str,
    options: Callable[[int], str],
    world_size: int,
    hosts: Hosts,
    report: Callable[[Event], None],
    servers: int = 0,
    forks: ForkServer | None = None,
) -> dict[str, Any]:
    """Run a module's `main()` once for each rank, on the rank's host; returns the result that one of them reports.

    Ranks get the environment that torchrun would set, and their options in OPTIONS_VARIABLE. They write events to
    standard output, one JSON object per line; {"event": "result", "result": {...}} is the last.

    Args:
        options: rank -> its options.
        report: called with each event but the result.
        servers: number of additional processes, the last ones, which serve and are not ranks.
        forks: the fork server to use; None for a new one.

    Raises:
        RunError: a rank died; the others have been stopped.
        HostlibError: a rank's own error, as MissingRankError; the others have been stopped.
    """
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    children: list[Child] = []
    with (
        nullcontext(forks) if forks is not None else fork_server(*BESIDES, module) as forks,
        _store(forks, hosts) as port,
    ):
        try:
            for rank in range(world_size + servers):
                environment = {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(world_size + servers),
                    "MASTER_ADDR": hosts.control_address,
                    "MASTER_PORT": str(port),
                    OPTIONS_VARIABLE: options(rank),
                    **hosts.environment(rank),
                }
                name = f"rank {rank}" if rank < world_size else f"server {rank - world_size}"
                children.append(
                    _start(forks, name, module, hosts.space(rank), environment, partial(_put, events, rank))
                )
            return _watch(forks, children, events, report)
        finally:
            _stop(forks, children)


@contextmanager
def _store(forks: ForkServer, hosts: Hosts) -> Iterator[int]:
    """Run a torch store that all ranks can reach, in its own process, for the duration of the block; yields its port.

    Raises:
        RunError: it could not be opened.
    """
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as reader:
        try:
            pid = forks.fork(
                STORE, {"MASTER_ADDR": hosts.control_address}, hosts.space(None), writing, writing, "store"
            )
        finally:
            os.close(writing)
        try:
            line = reader.readline().decode().strip()
            if not line.isdigit():
                raise RunError(f"no torch store at {hosts.control_address}: {line.removeprefix('error: ')}")
            yield int(line)
        finally:
            _stop(forks, [Child("store", pid, forks, deque(), [])])


def _put(events: queue.SimpleQueue[Event], rank: int, event: Event) -> None:
    events.put({**event, "rank": rank})


def _start(
    forks: ForkServer,
    name: str,
    module: str,
    space: str | None,
    environment: dict[str, str],
    tell: Callable[[Event], None],
) -> Child:
    out, output = os.pipe()
    err, errors = os.pipe()
    try:
        pid = forks.fork(module, environment, space, errors, output, name)
    finally:
        os.close(output)
        os.close(errors)
    last_lines: deque[str] = deque(maxlen=LAST_LINES)

    def listen() -> None:
        with os.fdopen(out, "rb") as lines:
            for line in lines:
                try:
                    tell(json.loads(line))
                except ValueError:
                    last_lines.append(line.decode(errors="replace").rstrip())

    def overhear() -> None:
        with os.fdopen(err, "rb") as lines:
            for line in lines:
                last_lines.append(line.decode(errors="replace").rstrip())

    listeners = [threading.Thread(target=listen, daemon=True), threading.Thread(target=overhear, daemon=True)]
    for thread in listeners:
        thread.start()
    return Child(name, pid, forks, last_lines, listeners)


def _watch(
    forks: ForkServer, children: list[Child], events: queue.SimpleQueue[Event], report: Callable[[Event], None]
) -> dict[str, Any]:
    result: dict[str, Any] | None = None
    errors: dict[int, Any] = {}

    def take(event: Event) -> None:
        nonlocal result
        if event.get("event") == "result":
            result = event["result"]
        elif event.get("event") == "failed":
            errors[event["rank"]] = event.get("error")
        else:
            report(event)

    while True:
        with suppress(queue.Empty):
            take(events.get(timeout=LOOK_S))
        forks.listen(0)
        if any(child.fate() is not None for child in children):
            # A killed rank explains the other ranks' errors; wait a moment for its exit status.
            _listen(forks, children, within_s=0.3)
            fates = [
                ((child.status or 0) >= 0, fate.endswith(ENDED_EARLY), fate, rank)
                for rank, child in enumerate(children)
                if (fate := child.fate()) is not None
            ]
            *_, fate, rank = min(fates)
            while not events.empty():
                take(events.get())
            raise _same_error(errors.get(rank), f"{fate}; the other ranks were stopped")
        if all(child.status == 0 for child in children):
            for child in children:
                child.hear_out(within_s=5)
            while not events.empty():
                take(events.get())
            if result is None:
                raise RunError("the ranks ended without a result")
            return result


def _same_error(record: Any, line: str) -> HostlibError:
    """Rebuild a rank's error, with its type and fields, under the launcher's message."""
    try:
        return from_json(record).restated(line)
    except ValueError:  # It was killed, or failed with an error that is not netfold's.
        return RunError(line)


def _listen(forks: ForkServer, children: list[Child], within_s: float) -> None:
    """Collect the children's exit statuses until all have ended."""
    give_up = time.monotonic() + within_s
    while time.monotonic() < give_up and any(child.status is None for child in children):
        forks.listen(LOOK_S)


def _stop(forks: ForkServer, children: list[Child]) -> None:
    with suppress(RunError):  # The fork server is gone, and its children with it.
        for number, patience_s in ((signal.SIGTERM, STOP_S), (signal.SIGKILL, GONE_S)):
            for child in children:
                if child.status is None:
                    child.kill(number)
                    child.kill(signal.SIGCONT)  # A stopped process (SIGSTOP) only ends by SIGKILL.
            _listen(forks, children, patience_s)
    for child in children:
        child.hear_out(within_s=2)
