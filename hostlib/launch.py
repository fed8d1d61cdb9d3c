"""Start the ranks of a run, watch over them, and leave nothing behind."""

from __future__ import annotations

import ctypes
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hostlib.errors import RunError
from hostlib.hosts import Hosts, LocalHosts
from hostlib.join import require_controller
from hostlib.options import TrainOptions
from hostlib.strategy import choose

PR_SET_PDEATHSIG = 1
OPTIONS_VARIABLE = "NETFOLD_RANK_OPTIONS"
LAST_LINES = 20

Event = dict[str, Any]


@dataclass(slots=True)
class Child:
    """One rank's or server's process, and the last lines it said on standard error."""

    name: str
    process: subprocess.Popen[bytes]
    said: deque[str]
    listeners: list[threading.Thread]

    def fate(self) -> str | None:
        """Why it ended other than well; None while it runs or after it ended well."""
        code = self.process.poll()
        if code is None or code == 0:
            return None
        if code < 0:
            return f"{self.name} (pid {self.process.pid}) was killed by {signal.Signals(-code).name}"
        for thread in self.listeners:
            thread.join(timeout=2)
        lines = [line for line in self.said if line.strip()]
        ours = [line for line in lines if line.startswith("error: ")]
        message = (ours or lines or [f"exit code {code}"])[-1].removeprefix("error: ")
        return f"{self.name}: {message}"


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """In a new child: get this signal when the parent dies, however it dies.

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)


def launch(options: TrainOptions, report: Callable[[Event], None]) -> dict[str, Any]:
    """Run all ranks of a training run as processes on this machine; the result that rank 0 reports.

    Args:
        report: called with rank 0's events ({"event": "step", ...}) as they come.

    Raises:
        RunError: a rank failed or died; the others have been stopped.
        JoinError: the mechanism needs a controller and none answers.
    """
    world_size = options.world_size or 4
    options = replace(options, world_size=world_size)
    if options.transport == "mpi":
        raise RunError(
            f"--transport mpi is for mpirun: mpirun -n {world_size} python -m hostlib.train --transport mpi ..."
        )
    choice = choose(options.mechanism)
    if choice.mechanism.needs_fabric:
        require_controller(options.controller)
    return run_ranks("hostlib.train", lambda rank: options.to_json(), world_size, LocalHosts(), report, choice.servers)


def run_ranks(
    module: str,
    options: Callable[[int], str],
    world_size: int,
    hosts: Hosts,
    report: Callable[[Event], None],
    servers: int = 0,
) -> dict[str, Any]:
    """Run a module once for each rank, on its host; the result that one of them reports.

    The module finds its surroundings as under torchrun, and its options in OPTIONS_VARIABLE. What it writes to standard
    output is events, one JSON object per line; {"event": "result", "result": {...}} is the last.

    Args:
        options: what each rank is told.
        report: called with the events, but for the result, as they come.
        servers: so many processes more, the last, which serve and are no ranks.

    Raises:
        RunError: a rank failed or died; the others have been stopped.
    """
    store = hosts.store()
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    children: list[Child] = []
    try:
        for rank in range(world_size + servers):
            told = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(world_size + servers),
                "MASTER_ADDR": store.host,
                "MASTER_PORT": str(store.port),
                "OMP_NUM_THREADS": "1",
                OPTIONS_VARIABLE: options(rank),
            }
            name = f"rank {rank}" if rank < world_size else f"server {rank - world_size}"
            children.append(_start(rank, name, module, hosts, told, events))
        return _watch(children, events, report)
    finally:
        _stop(children)
        del store


def _start(
    rank: int, name: str, module: str, hosts: Hosts, told: dict[str, str], events: queue.SimpleQueue[Event]
) -> Child:
    process = subprocess.Popen(
        [*hosts.prefix(rank), sys.executable, "-m", module],
        env={**os.environ, **hosts.environment(rank), **told},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=die_with_parent,
        start_new_session=True,
    )
    said: deque[str] = deque(maxlen=LAST_LINES)
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout, process.stderr

    def listen() -> None:
        for line in out:
            try:
                events.put({**json.loads(line), "rank": rank})
            except ValueError:
                said.append(line.decode(errors="replace").rstrip())

    def overhear() -> None:
        for line in err:
            said.append(line.decode(errors="replace").rstrip())

    listeners = [threading.Thread(target=listen, daemon=True), threading.Thread(target=overhear, daemon=True)]
    for thread in listeners:
        thread.start()
    return Child(name, process, said, listeners)


def _watch(children: list[Child], events: queue.SimpleQueue[Event], report: Callable[[Event], None]) -> dict[str, Any]:
    result: dict[str, Any] | None = None
    while True:
        try:
            event = events.get(timeout=0.1)
        except queue.Empty:
            event = {}
        if event.get("event") == "result":
            result = event["result"]
        elif event:
            report(event)
        failed = [child for child in children if child.fate() is not None]
        if failed:
            # One that was killed explains all the others' errors; give it a moment to show.
            time.sleep(0.3)
            fates = [(child.process.returncode >= 0, child.fate()) for child in children if child.fate() is not None]
            raise RunError(f"{min(fates)[1]}; the other ranks were stopped")
        if all(child.process.poll() == 0 for child in children):
            for child in children:
                for thread in child.listeners:
                    thread.join(timeout=5)
            while not events.empty():
                event = events.get()
                if event.get("event") == "result":
                    result = event["result"]
            if result is None:
                raise RunError("the ranks ended without a result")
            return result


def _stop(children: list[Child]) -> None:
    for child in children:
        if child.process.poll() is None:
            child.process.terminate()
    give_up = time.monotonic() + 3
    for child in children:
        try:
            child.process.wait(max(0.0, give_up - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        for thread in child.listeners:
            thread.join(timeout=2)
        for pipe in (child.process.stdout, child.process.stderr):
            if pipe is not None:
                pipe.close()
