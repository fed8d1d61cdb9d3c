"""Jobs that come and go: `python -m tests.chaos.comings --jobs 300 --minutes 15`.

Some train, and end with the weights that they have alone. Of some only one rank ever comes, and some crash: their places
are free after their leases. Strangers try to join each job, and to beat, leave and end it. Never is more wanted than the
fabric has, so nothing may be refused; afterwards nothing may be left.
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx
import numpy as np

from controller.jobs.job_table import SHORTEST_LEASE_S
from controller.state_file import State
from hostlib._engine import Engine
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import join
from tests.conftest import Fabric, running_fabric

PORTS = 16
KINDS = ("trains", "trains", "trains", "incomplete", "crashes")
SLOTS = 16  # of 512: as many jobs as there are ports for
SEEDS, STEPS, ELEMENTS = 4, 8, 4096
DEADLINE_S = 60.0
MORE_FILES, MORE_THREADS = 8, 40  # a server's pool of threads grows to 40, and stays


@dataclass
class Ports:
    """How many are free, as those who use the fabric know."""

    free: int = PORTS
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextlib.contextmanager
    def held(self, count: int) -> Iterator[None]:
        with self.changed:
            assert self.changed.wait_for(lambda: self.free >= count, 10 * DEADLINE_S)
            self.free -= count
        try:
            yield
        finally:
            with self.changed:
                self.free += count
                self.changed.notify_all()


def train(fabric: Fabric, job: str, ranks: int, seed: int, meanwhile: Callable[[], None] = lambda: None) -> bytes:
    """A job's weights, which all its ranks have."""
    begun = threading.Barrier(ranks, action=meanwhile)

    def one(rank: int) -> bytes:
        engine = Engine("127.0.0.1")
        where = engine.address, engine.ports
        session = join(fabric.http, job, rank, ranks, *where, DEADLINE_S, lambda: engine.position, SLOTS)
        try:
            configure(engine, session.place)
            weights = np.random.default_rng(seed).standard_normal(ELEMENTS).astype(np.float32)
            begun.wait(DEADLINE_S)
            for step in range(STEPS):
                gradient = np.tanh(weights * np.float32(rank + 1) + np.float32(step))
                engine.allreduce(gradient, False, DEADLINE_S)
                weights -= np.float32(0.1 / ranks) * gradient
            return weights.tobytes()
        finally:
            engine.halt()
            session.leave()

    with ThreadPoolExecutor(ranks) as pool:
        (weights,) = set(pool.map(one, range(ranks)))
    return weights


def trouble(fabric: Fabric, job: str) -> None:
    """What a stranger tries; all of it is refused."""
    url = f"{fabric.http}/v1/jobs/{job}"
    tokens: list[dict[str, str]] = [{}, {"Authorization": "Bearer a-stranger-s"}]
    body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [9], "slots": SLOTS}
    attempts: list[tuple[str, str, dict[str, Any] | None]] = [
        ("POST", "/ranks/0", body),
        ("POST", "/ranks/0/heartbeat", {"position": 1}),
    ]
    attempts += [("DELETE", "/ranks/0", None), ("DELETE", "", None)]
    for method, path, sent in attempts:
        for headers in tokens:
            reply = httpx.request(method, url + path, json=sent, headers=headers, timeout=DEADLINE_S)
            assert reply.status_code in (401, 403, 409, 503), f"a stranger's {method} {path}: {reply.text}"


def vanish(fabric: Fabric, job: str, come: int) -> None:
    """Ranks that join, and are never heard of again, until their places are free."""
    for rank in range(come):
        body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000 + rank], "slots": SLOTS}
        code, answer = fabric.call("POST", f"/v1/jobs/{job}/ranks/{rank}", body)
        assert code == 200, answer
    trouble(fabric, job)
    give_up = time.monotonic() + 4 * SHORTEST_LEASE_S
    while fabric.call("GET", f"/v1/jobs/{job}")[0] != 404:
        assert time.monotonic() < give_up, f"job {job} is still there"
        time.sleep(0.2)


def files_and_threads(fabric: Fabric) -> tuple[int, int]:
    """Of the controller's process."""
    state = State.read(fabric.state_dir)
    assert state is not None
    process = Path(f"/proc/{state.controller.pid}")
    return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


def come_and_go(directory: Path, jobs: int, seconds: float, seed: int) -> Counter[str]:
    """Play it; how many of each kind there were."""
    chance = random.Random(seed)
    plans = [(KINDS[number % len(KINDS)], chance.uniform(0, seconds)) for number in range(jobs)]
    options = ("--elements", "64", "--ports", str(PORTS), "--lease", f"{SHORTEST_LEASE_S}s")
    with running_fabric(directory, *options) as fabric, ThreadPoolExecutor(PORTS) as pool:
        alone = [train(fabric, f"alone{number}", 2, number) for number in range(SEEDS)]
        files, threads = files_and_threads(fabric)
        ports, began = Ports(), time.monotonic()

        def play(number: int, kind: str, at_s: float) -> str:
            time.sleep(max(0.0, began + at_s - time.monotonic()))
            job = f"job{number}"
            with ports.held(2):
                if kind == "trains":
                    own = number % SEEDS
                    weights = train(fabric, job, 2, own, lambda: trouble(fabric, job))
                    assert weights == alone[own], f"the weights of {job} are not what they are alone"
                else:
                    vanish(fabric, job, 1 if kind == "incomplete" else 2)
            return kind

        ordered = sorted(enumerate(plans), key=lambda plan: plan[1][1])
        played = Counter(pool.map(lambda plan: play(plan[0], *plan[1]), ordered))
        require_nothing_left(fabric, files, threads)
    return played


def require_nothing_left(fabric: Fabric, files: int, threads: int) -> None:
    """No job, slot, port, row, file or thread is left, and there is room for a job that takes every port."""
    assert fabric.call("GET", "/v1/jobs")[1] == {"jobs": []}
    assert fabric.call("GET", "/v1/slots")[1]["used"] == 0
    with contextlib.closing(sqlite3.connect(f"file:{fabric.state_dir}/state.db?mode=ro", uri=True)) as database:
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    time.sleep(6)  # uvicorn ends idle connections after 5 s
    now_files, now_threads = files_and_threads(fabric)
    assert now_files <= files + MORE_FILES, f"{now_files} open files, {files} before"
    assert now_threads <= threads + MORE_THREADS, f"{now_threads} threads, {threads} before"
    train(fabric, "all-ports", PORTS, 0)


@click.command()
@click.option("--jobs", type=click.IntRange(1), default=300, show_default=True)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(jobs: int, minutes: float, seed: int) -> None:
    """Let jobs come and go; any refusal, difference or leak is an error."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        played = come_and_go(Path(directory), jobs, 60 * minutes, seed)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(played.items()))
    click.echo(
        f"{jobs} jobs in {time.monotonic() - began:.0f} s ({kinds}): nothing refused, nothing left, weights as alone"
    )


if __name__ == "__main__":
    main()
