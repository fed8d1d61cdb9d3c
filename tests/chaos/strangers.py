"""What strangers try with a job, and with which tokens: no answer may be what they want, and nothing may change."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import httpx

from hostlib.system.http_client import bearer

POSITION = 123_456_789  # by which a stranger's heartbeat would be known
UDP_PORT = 9
REFUSED = (401, 403)
NOT_THERE = 404  # of a life of the job that is over


@dataclass
class Tokens:
    """Every rank's token that there has been, by job and rank; those of a name's latest life are the last ones.

    Attributes:
        tenants: of tenants to which the jobs do not belong.
    """

    tenants: tuple[str, ...]
    by_job: dict[str, list[dict[int, str]]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, job: str, life: dict[int, str]) -> None:
        with self.lock:
            self.by_job[job].append(life)

    def of_strangers(self, job: str, rank: int) -> dict[str, str | None]:
        """What it is -> a token that is valid, or was, but not for this rank of this life of the job; None for none."""
        found: dict[str, str | None] = {"nothing": None, "one that nobody has": "a-stranger-s"}
        found |= {f"another tenant's {number}": token for number, token in enumerate(self.tenants)}
        with self.lock:
            *earlier, now = self.by_job[job] or [{}]
            found |= {f"that of rank {other}": token for other, token in now.items() if other != rank}
            for life in earlier[-1:]:
                found |= {f"that of rank {other} of an earlier life": token for other, token in life.items()}
            others = [lives[-1] for name, lives in self.by_job.items() if name != job and lives]
            for life in others[-2:]:
                found |= {f"that of rank {other} of another job": token for other, token in life.items()}
        return found


@dataclass(frozen=True)
class Attempt:
    """A request that only a rank, or the operator, may make."""

    method: str
    path: str
    body: dict[str, Any] | None
    refused: tuple[int, ...] = REFUSED


def attempts(job: str, rank: int, world_size: int, slots: int) -> Iterator[Attempt]:
    """At a rank, first to join in its place."""
    own = f"/v1/jobs/{job}/ranks/{rank}"
    joining = {"world_size": world_size, "address": "127.0.0.1", "udp_ports": [UDP_PORT], "slots": slots}
    # 409: has joined, from elsewhere. 503: it may have died, before its job was complete.
    yield Attempt("POST", own, joining, (*REFUSED, 409, 503))
    yield Attempt("POST", own, {**joining, "nonce": "0" * 32, "queue": True, "priority": 1000}, (*REFUSED, 409, 503))
    yield Attempt("POST", f"/v1/jobs/{job}/server", {**joining, "policy": "server"}, (*REFUSED, 409))
    yield Attempt("GET", own, None)
    yield Attempt("POST", f"{own}/heartbeat", {"position": POSITION})
    yield Attempt("POST", f"{own}/heartbeat?epoch=1", {"position": POSITION}, (NOT_THERE,))
    yield Attempt("DELETE", own, None)
    yield Attempt("DELETE", f"{own}?epoch=1", None, (NOT_THERE,))
    yield Attempt("DELETE", f"/v1/jobs/{job}", None)
    yield Attempt("POST", "/v1/switches/root/drain", None)


def trouble(
    client: httpx.Client,
    job: str,
    ranks: Iterable[int],
    world_size: int,
    slots: int,
    tokens: Tokens,
    most: int | None = None,
    between: Callable[[], None] = lambda: None,
) -> int:
    """Try everything with everything at ranks that have joined; returns how many attempts there were.

    Args:
        client: of the controller.
        most: how many kinds of attempts, the first of which are to join.
        between: called before each of them.

    Raises:
        AssertionError: something was accepted, or has changed.
    """
    before, count = _described(client, job), 0
    for rank in ranks:
        known = tokens.of_strangers(job, rank)
        for attempt in islice(attempts(job, rank, world_size, slots), most):
            between()
            for what, token in known.items():
                reply = client.request(attempt.method, attempt.path, json=attempt.body, headers=bearer(token))
                said = f"{attempt.method} {attempt.path} with {what} as its token: {reply.status_code} {reply.text}"
                assert reply.status_code in attempt.refused, f"a stranger's {said}"
                count += 1
    now = _described(client, job)
    assert now == before, f"strangers have changed job {job} from {before} to {now}"
    return count


def missing_rank(
    client: httpx.Client, job: str, rank: int, world_size: int, slots: int, tokens: Tokens, between: Callable[[], None]
) -> int:
    """Try to join as a rank that is still missing; returns how many attempts there were."""
    attempt, known = next(attempts(job, rank, world_size, slots)), tokens.of_strangers(job, rank)
    for what, token in known.items():
        between()
        reply = client.post(attempt.path, json=attempt.body, headers=bearer(token))
        said = f"{reply.status_code} {reply.text}"
        assert reply.status_code == 403, f"a stranger comes as rank {rank} of {job} with {what} as its token: {said}"
    return len(known)


def _described(client: httpx.Client, job: str) -> dict[str, Any]:
    """The job as everybody sees it, but for times, and positions of ranks that go on."""
    reply = client.get(f"/v1/jobs/{job}")
    assert reply.status_code == 200, reply.text
    found = dict(reply.json())
    for rank in found["ranks"]:
        assert rank["position"] < POSITION, f"job {job} has a stranger's heartbeat"
        assert rank["port"] != "silent", f"job {job} has a stranger's echo"
        for changes in ("last_heartbeat_s", "last_progress_s", "position", "port", "port_text"):
            del rank[changes]
        rank["state"] = rank["state"].replace("lost", "joined")  # by its silence, not by what strangers do
    return found
