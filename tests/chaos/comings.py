"""Jobs that come and go: `python -m tests.chaos.comings --jobs 300 --minutes 15`.

Some train, and end with the weights that they have alone. Of some only one rank ever comes. Of others the ranks are
processes, which are killed while they train: all of them, or one, and then the other one's error has to name it. What
dead ranks had is free after their leases. Meanwhile strangers try to join each job, and to beat, leave and end it, also
with tokens of other ranks, other jobs, other tenants and earlier lives of the job. Never is more wanted than the fabric
has, so nothing may be refused; afterwards nothing may be left, here or in the switches.
"""

from __future__ import annotations

import contextlib
import os
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
from unittest import mock

import click
import httpx
import numpy as np

from controller.state_file import State
from hostlib._engine import Engine
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import join
from hostlib.system.http_client import TOKEN, bearer
from tests.chaos.killed_jobs import Forks, KilledJob, forks
from tests.chaos.member import Membership
from tests.chaos.strangers import Tokens, missing_rank, trouble
from tests.chaos.switch_entries import entries_of
from tests.conftest import Fabric, controller, running_fabric

RACKS, PORTS = 2, 32  # ports of both racks together
NAMES = 40  # of jobs: each comes back, in another life
KINDS = ("trains", "killed", "trains", "incomplete", "trains", "one killed", "trains", "trains", "incomplete", "trains")
LEASE_S = 40  # time enough for strangers, who come while it runs, on a busy machine
SLOTS = 16  # of each job: more jobs than there are ports for
SEEDS, STEPS, ELEMENTS = 4, 8, 4096
DEADLINE_S = 60.0
MORE_FILES, MORE_THREADS = 8, 40  # a server's pool of threads grows to 40, and stays


@dataclass
class Supply:
    """What is free of the fabric's ports and of the jobs' names, as those who use the fabric know."""

    ports: int = PORTS
    names: list[str] = field(default_factory=lambda: [f"job{number}" for number in range(NAMES)])
    changed: threading.Condition = field(default_factory=threading.Condition)

    @contextlib.contextmanager
    def held(self, ports: int) -> Iterator[str]:
        """So many ports, and the name that has been free for longest."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.ports >= ports, 10 * DEADLINE_S)
            self.ports -= ports
            name = self.names.pop(0)
        try:
            yield name
        finally:
            with self.changed:
                self.ports += ports
                self.names.append(name)
                self.changed.notify_all()


@dataclass
class Campaign:
    """A fabric, and who uses it.

    Attributes:
        client: of its controller.
        tenant: the token with which jobs come.
        attempts: how many requests strangers have made.
    """

    fabric: Fabric
    client: httpx.Client
    forks: Forks
    tenant: str
    tokens: Tokens
    attempts: int = 0

    def trouble(self, job: str, ranks: int, **how: Any) -> None:
        """What strangers try at all ranks of a job, or those that `how` says; all of it is refused."""
        self._count(trouble(self.client, job, how.pop("came", range(ranks)), ranks, SLOTS, self.tokens, **how))

    def _count(self, attempts: int) -> None:
        with self.tokens.lock:
            self.attempts += attempts

    def train(self, job: str, ranks: int, seed: int, meanwhile: Callable[[], None] = lambda: None) -> bytes:
        """A job's weights, which all its ranks have; `meanwhile` happens while they are there."""
        tokens: dict[int, str] = {}
        begun, done = threading.Barrier(ranks + 1), threading.Barrier(ranks + 1)

        def one(rank: int) -> bytes:
            engine = Engine("127.0.0.1")
            where = engine.address, engine.ports
            session = join(self.fabric.http, job, rank, ranks, *where, DEADLINE_S, lambda: engine.position, SLOTS)
            try:
                tokens[rank] = session.token
                configure(engine, session.place)
                weights = np.random.default_rng(seed).standard_normal(ELEMENTS).astype(np.float32)
                begun.wait(DEADLINE_S)
                for step in range(STEPS):
                    gradient = np.tanh(weights * np.float32(rank + 1) + np.float32(step))
                    engine.allreduce(gradient, False, DEADLINE_S)
                    weights -= np.float32(0.1 / ranks) * gradient
                done.wait(DEADLINE_S)
                return weights.tobytes()
            except BaseException:
                begun.abort()
                done.abort()
                raise
            finally:
                engine.halt()
                session.leave()

        with ThreadPoolExecutor(ranks) as pool:
            trained = [pool.submit(one, rank) for rank in range(ranks)]
            with contextlib.suppress(threading.BrokenBarrierError):  # what broke it is a rank's error
                begun.wait(2 * DEADLINE_S)
                try:
                    self.tokens.add(job, tokens)
                    meanwhile()
                except BaseException:
                    done.abort()
                    raise
                done.wait(2 * DEADLINE_S)
        errors = [error for rank in trained if (error := rank.exception()) is not None]
        for error in sorted(errors, key=lambda each: isinstance(each, threading.BrokenBarrierError)):
            raise error
        (weights,) = {rank.result() for rank in trained}
        return weights

    def killed(self, number: int, job: str, victims: tuple[int, ...]) -> None:
        """Two processes train until those ranks are killed; a rank that is left ends with an error that names them."""
        wanted = Membership(self.fabric.http, job, SLOTS, ELEMENTS, number)
        with contextlib.closing(KilledJob(self.forks, number, self.tenant, wanted)) as playing:
            playing.wait_for_step(STEPS)
            self.tokens.add(job, playing.tokens)
            self.trouble(job, 2)
            playing.wait_for_step(2 * STEPS)
            for rank in victims:
                playing.kill(rank)
            if len(victims) == 1:
                playing.require_named(victims[0])
            else:
                self.trouble(job, 2, most=1)  # to take the places of the dead, before their leases are over
        self.wait_for_end(job)

    def incomplete(self, job: str) -> None:
        """One rank of two joins, waits for a while, and is never heard of again."""
        body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000], "slots": SLOTS}
        path = f"/v1/jobs/{job}/ranks/0"
        reply = self.client.post(path, json=body, headers=bearer(self.tenant))
        assert reply.status_code == 200, reply.text
        own = reply.json()["token"]
        self.tokens.add(job, {0: own})

        def wait() -> None:
            polled = self.client.get(path, headers=bearer(own))
            assert polled.json().get("state") == "waiting", polled.text

        self._count(missing_rank(self.client, job, 1, 2, SLOTS, self.tokens, wait))
        self.trouble(job, 2, came=[0], between=wait)
        self.wait_for_end(job)

    def wait_for_end(self, job: str) -> None:
        """Until the leases of a job without living ranks are over."""
        give_up = time.monotonic() + 4 * LEASE_S
        while self.client.get(f"/v1/jobs/{job}").status_code != 404:
            assert time.monotonic() < give_up, f"job {job} is still there"
            time.sleep(0.2)


def files_and_threads(fabric: Fabric) -> tuple[int, int]:
    """Of the controller's process."""
    state = State.read(fabric.state_dir)
    assert state is not None
    process = Path(f"/proc/{state.controller.pid}")
    return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


@contextlib.contextmanager
def campaign(directory: Path) -> Iterator[Campaign]:
    """A fabric for it. Meanwhile this process, and those that it forks, join as the tenant `own`."""
    options = (
        "--elements",
        "64",
        "--racks",
        str(RACKS),
        "--ports",
        str(PORTS // RACKS),
        "--lease",
        f"{LEASE_S}s",
    )
    with running_fabric(directory / "state", *options) as fabric, forks(directory) as made:
        own, other = (
            controller("token", "create", tenant, "--state-dir", fabric.state_dir).stdout.strip()
            for tenant in ("own", "other")
        )
        # A controller ends idle connections after 5 s, and one that is used again just then is reset.
        # Threads share it, and one may close as idle what another is just going to send by.
        client = httpx.Client(
            base_url=fabric.http, timeout=DEADLINE_S, limits=httpx.Limits(max_keepalive_connections=0)
        )
        with client, mock.patch.dict(os.environ, {TOKEN: own}):
            yield Campaign(fabric, client, made, own, Tokens((other,)))


def come_and_go(directory: Path, jobs: int, seconds: float, seed: int) -> tuple[Counter[str], int]:
    """Play it; how many jobs of each kind there were, and how many attempts of strangers."""
    chance = random.Random(seed)
    plans = sorted((chance.uniform(0, seconds), number) for number in range(jobs))
    with campaign(directory) as playing, ThreadPoolExecutor(PORTS // 2) as pool:
        entries = entries_of(playing.fabric)
        alone = [playing.train(f"alone{number}", 2, number) for number in range(SEEDS)]
        playing.train("all-ports", PORTS, 0, lambda: require_seen(playing.fabric, entries))
        before, supply, began = files_and_threads(playing.fabric), Supply(), time.monotonic()

        def play(at_s: float, number: int) -> str:
            time.sleep(max(0.0, began + at_s - time.monotonic()))
            kind = KINDS[number % len(KINDS)]
            with supply.held(2) as job:
                if kind == "trains":
                    own = number % SEEDS
                    weights = playing.train(job, 2, own, lambda: playing.trouble(job, 2))
                    assert weights == alone[own], f"the weights of {job} are not what they are alone"
                elif kind == "incomplete":
                    playing.incomplete(job)
                else:
                    playing.killed(number, job, (0, 1) if kind == "killed" else (number // len(KINDS) % 2,))
            return kind

        played = Counter(pool.map(lambda plan: play(*plan), plans))
        require_nothing_left(playing, *before)
        require_entries(playing.fabric, entries)
    return played, playing.attempts


def require_nothing_left(playing: Campaign, files: int, threads: int) -> None:
    """No job, slot, port, row, file or thread is left, and there is room for a job that takes every port."""
    fabric = playing.fabric
    assert fabric.call("GET", "/v1/jobs")[1] == {"jobs": []}
    assert fabric.call("GET", "/v1/slots")[1]["used"] == 0
    with contextlib.closing(sqlite3.connect(f"file:{fabric.state_dir}/state.db?mode=ro", uri=True)) as database:
        assert database.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    time.sleep(6)  # uvicorn ends idle connections after 5 s
    now_files, now_threads = files_and_threads(fabric)
    assert now_files <= files + MORE_FILES, f"{now_files} open files, {files} before"
    assert now_threads <= threads + MORE_THREADS, f"{now_threads} threads, {threads} before"
    playing.train("all-ports", PORTS, 0)


def require_seen(fabric: Fabric, before: dict[str, Counter[str]]) -> None:
    """While a job takes every port, each switch has its entries and its group beside those that it had before."""
    for switch, now in entries_of(fabric).items():
        more = now - before[switch]
        for kind in ("membership ", "replicas ", "packet_replication_engine_entry"):
            assert any(entry.startswith(kind) for entry in more), f"{switch} shows no {kind} of a job"
        assert not before[switch] - now


def require_entries(fabric: Fabric, before: dict[str, Counter[str]]) -> None:
    """Every switch has the entries and groups that it had before the first job, when none was any job's."""
    assert {switch["restarts"] for switch in fabric.status()["switches"]} == {0}
    assert len(before) == 1 + RACKS
    for switch, now in entries_of(fabric).items():
        assert now == before[switch], f"{switch} has kept {now - before[switch]}, and lost {before[switch] - now}"
        assert not any("multicast_group_entry" in entry for entry in now), f"{switch} has a multicast group"


@click.command()
@click.option("--jobs", type=click.IntRange(1), default=300, show_default=True)
@click.option("--minutes", type=click.FloatRange(0, min_open=True), default=15.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(jobs: int, minutes: float, seed: int) -> None:
    """Let jobs come and go; any refusal, difference or leak is an error."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        played, attempts = come_and_go(Path(directory), jobs, 60 * minutes, seed)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(played.items()))
    click.echo(
        f"{jobs} jobs in {time.monotonic() - began:.0f} s ({kinds}), {attempts} attempts of strangers: nothing refused "
        "but those, nothing left here or in the switches, weights as alone"
    )


if __name__ == "__main__":
    main()
