"""Only its owner speaks for a rank, and only the operator ends jobs and drains switches."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.errors import RequestError, SwitchError
from controller.http.body_limit import MOST_BYTES
from controller.jobs.job import Job, Joining
from controller.jobs.quota import Quota
from controller.jobs.rank_token import rank_token
from controller.rates import Rates
from controller.state_store import StateStore
from controller.tenants import Tenants
from tests.unit.controller.memory_api import Api, memory_api
from tests.unit.controller.test_job import World

NONCE, OTHER = "a" * 32, "b" * 32


@pytest.fixture
def api() -> Api:
    return memory_api()


@pytest.mark.parametrize("ready", [False, True])
def test_a_stranger_changes_nothing(api: Api, ready: bool) -> None:
    api.join(0)
    if ready:
        api.join(1)
    foreign = api.join(0, world_size=1, job="own")[1]["token"]
    api.seconds = 1.0
    before = api.service.jobs.dump()
    body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [9999]}
    path = "/v1/jobs/demo/ranks/0"
    for method, where, sent in (
        ("GET", path, None),
        ("POST", f"{path}/heartbeat", {"position": 5}),
        ("DELETE", path, None),
        ("DELETE", "/v1/jobs/demo", None),
        ("POST", "/v1/switches/switch/drain", None),
    ):
        for token, code in ((None, 401), (foreign, 403), ("nonsense", 403)):
            reply = api.answer(method, where, sent, token)
            assert (reply.status_code, list(reply.json())) == (code, ["detail"]), (method, where)
            assert (code == 401) == ("WWW-Authenticate" in reply.headers)
    assert api.answer("DELETE", path, None, api.service.operator).status_code == 403, "not even the operator"
    for sent in (body, {**body, "nonce": OTHER}):
        reply = api.answer("POST", path, sent, foreign)
        assert reply.status_code == (409 if ready else 503)
        assert ("Retry-After" in reply.headers) == (not ready)
    assert api.service.jobs.dump() == before


def test_no_page_tells_what_only_members_know(api: Api) -> None:
    place = [api.join(rank, nonce=NONCE)[1] for rank in (0, 1)][-1]
    job = api.service.jobs.jobs["demo"]
    told = [place["secret"], place["token"], job.key, NONCE, api.service.operator, f'"epoch":{place["epoch"]}']
    for path in ("/v1/status", "/v1/jobs", "/v1/jobs/demo", "/v1/slots", "/v1/history"):
        text = api.answer("GET", path).text
        assert not [word for word in told if word in text]
    assert not [word for word in told[:-1] if word in repr(job)]
    assert place["token"] not in str(api.service.jobs.dump())


def test_a_join_is_repeated_with_its_nonce(api: Api) -> None:
    first = api.join(0, nonce=NONCE)[1]
    body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000], "nonce": NONCE}
    assert api.answer("POST", "/v1/jobs/demo/ranks/0", body).json() == first
    assert api.answer("POST", "/v1/jobs/demo/ranks/0", {**body, "nonce": "x"}).status_code == 422


def test_each_rank_and_each_life_of_a_job_has_a_token_of_its_own(api: Api) -> None:
    tokens = {api.join(rank, nonce=NONCE)[1]["token"] for rank in (0, 1)}
    api.call("DELETE", "/v1/jobs/demo")
    tokens |= {api.join(rank, nonce=NONCE)[1]["token"] for rank in (0, 1)}
    assert len(tokens) == 4


def join(world: World, rank: int, port: int, nonce: str, token: str | None = None) -> Job:
    return world.table.join("demo", Joining(rank, 2, "127.0.0.1", (port,), nonce=nonce, token=token))


def test_a_rank_that_died_before_its_job_was_complete_is_replaced_when_it_is_silent() -> None:
    world = World()
    token = rank_token(join(world, 0, 5000, NONCE), world.table.jobs["demo"].ranks[0])
    with pytest.raises(RequestError, match="has already joined; should it have died, try again in 2 s") as refused:
        join(world, 0, 6000, OTHER)
    assert (refused.value.status, refused.value.retry_after_s) == (503, 2)
    world.clock.seconds += 2
    job = join(world, 0, 6000, OTHER)
    assert (job.ranks[0].udp_ports, job.ranks[0].switch_port) == ([6000], 1)
    with pytest.raises(RequestError, match="not the token of rank 0"):
        world.table.owned("demo", 0, token)


def test_a_rank_that_gives_up_just_as_its_job_becomes_ready_may_come_back() -> None:
    """A rank that was stopped for a while: the others have their places, and wait for it."""
    world = World()
    for rank in (0, 1):
        job = join(world, rank, 5000 + rank, NONCE)
    world.table.leave("demo", 1)
    assert (job.state, job.ranks[1].state) == ("ready", "left")
    assert join(world, 1, 5001, NONCE) is job
    assert job.ranks[1].state == "joined"
    world.table.leave("demo", 0)
    assert "demo" in world.table.jobs
    with pytest.raises(RequestError, match="has already joined"):
        join(world, 1, 5001, OTHER)


def test_a_rank_that_crashed_and_comes_back_gets_its_place() -> None:
    world = World()
    for rank in (0, 1):
        job = join(world, rank, 5000 + rank, NONCE)
    before = job.ranks[1].switch_port
    token = rank_token(job, job.ranks[1])
    with pytest.raises(RequestError, match="if it was you, send your token") as refused:
        join(world, 1, 7001, OTHER)
    assert refused.value.status == 409
    world.clock.seconds += 31
    world.table.heartbeat("demo", 0, 1)
    world.table.expire()
    assert job.ranks[1].state == "lost"
    assert join(world, 1, 7001, OTHER, token) is job
    back = job.ranks[1]
    assert (back.state, back.switch_port, back.udp_ports) == ("joined", before, [7001])
    assert world.fabric.installed == ["demo"] and rank_token(job, back) == token


@pytest.mark.parametrize("fails", ["install", "remove"])
def test_a_place_that_cannot_be_moved_stays(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for rank in (0, 1):
        job = join(world, rank, 5000 + rank, NONCE)
    works: Callable[[Any], None] = getattr(world.fabric, fails)
    calls = iter([SwitchError("the switch is gone")])

    def once(job: Job) -> None:
        if (error := next(calls, None)) is not None:
            raise error
        works(job)

    monkeypatch.setattr(world.fabric, fails, once)
    with pytest.raises(SwitchError):
        join(world, 1, 7001, NONCE)
    assert job.ranks[1].udp_ports == [5001] and job.state == "ready"


# ---- tenants ----


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    with contextlib.closing(StateStore(tmp_path)) as store:
        yield Tenants(store)


def test_a_token_names_a_tenant_until_it_is_revoked(tenants: Tenants, tmp_path: Path) -> None:
    first, second = (tenants.create("blue", Quota(ports=ports)) for ports in (4, 8))
    other = tenants.create("green", Quota())
    assert [tenants.tenant_of(token) for token in (first, second, other, "nonsense")] == ["blue", "blue", "green", None]
    assert (tenants.quota("blue"), tenants.quota("nobody")) == (Quota(ports=8), Quota())
    assert all(first.encode() not in path.read_bytes() for path in tmp_path.iterdir()), "only its hash is kept"
    listed = tenants.tokens()
    assert [token.tenant for token in listed] == ["blue", "blue", "green"]
    tenants.revoke(listed[0].id)
    assert [tenants.tenant_of(token) for token in (first, second)] == [None, "blue"]
    with pytest.raises(RequestError, match=f"there is no token {listed[0].id}; tokens: {listed[1].id}, ") as refused:
        tenants.revoke(listed[0].id)
    assert refused.value.status == 404


def test_where_a_tenants_token_is_needed_nobody_joins_without(api: Api, tenants: Tenants) -> None:
    api.service.token_required, api.service.tenant_of = True, tenants.tenant_of
    blue, green = (tenants.create(tenant, Quota()) for tenant in ("blue", "green"))
    path, body = "/v1/jobs/demo/ranks/0", {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000]}
    for token, code, says in ((None, 401, "NETFOLD_CONTROLLER_TOKEN"), ("nonsense", 403, "no tenant's token")):
        reply = api.answer("POST", path, body, token)
        assert (reply.status_code, says in reply.json()["detail"]) == (code, True)
    own = api.answer("POST", path, body, blue).json()["token"]
    assert api.call("GET", "/v1/jobs/demo")[1]["tenant"] == "blue"
    reply = api.answer("POST", "/v1/jobs/demo/ranks/1", body, green)
    assert (reply.status_code, reply.json()["detail"]) == (
        403,
        "job demo is another tenant's: choose another name",
    )
    assert api.answer("POST", path, body, own).status_code == 200, "who comes back shows the rank's token"
    assert api.answer("GET", path, None, blue).status_code == 403, "a tenant is no rank"


def test_a_tenant_that_asks_too_often_is_told_to_wait_and_others_are_not() -> None:
    clock = iter([5.0, 5.1, 5.9, 5.9, 6.0])
    rates = Rates(2, lambda: next(clock))
    rates.require("tenant blue")
    rates.require("tenant blue")
    with pytest.raises(RequestError, match="tenant blue sends more than 2 requests a second") as refused:
        rates.require("tenant blue")
    assert (refused.value.status, refused.value.retry_after_s) == (429, 1)
    rates.require("tenant green")
    rates.require("tenant blue")


def test_who_proves_who_it_is_counts_as_a_client_of_its_own(
    api: Api, tenants: Tenants, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(Rates, "require", lambda rates, who: counted.append(who))
    api.service.token_required, api.service.tenant_of = True, tenants.tenant_of
    path, body = "/v1/jobs/demo/ranks/0", {"world_size": 2, "address": "127.0.0.1", "udp_ports": [5000]}
    own = api.answer("POST", path, body, tenants.create("blue", Quota())).json()["token"]
    assert counted == ["127.0.0.1", "tenant blue"]
    counted.clear()
    assert api.answer("GET", path, None, own).status_code == 200
    assert api.answer("POST", f"{path}/heartbeat", {"position": 1}, own).status_code == 200
    assert counted == ["rank 0 of job demo"] * 2
    counted.clear()
    assert api.answer("DELETE", "/v1/jobs/nobodys", None, api.service.operator).status_code == 404
    assert counted == ["the operator"]
    counted.clear()
    for wrong in (None, "", own[:-1], "a" * 64):
        assert api.answer("POST", f"{path}/heartbeat", {"position": 1}, wrong).status_code in (401, 403)
    assert api.answer("POST", "/v1/jobs/demo/ranks/1/heartbeat", {"position": 1}, own).status_code == 404
    assert api.answer("POST", "/v1/jobs/demo/server/heartbeat", {"position": 1}, own).status_code == 404
    assert set(counted) == {"127.0.0.1"}


# ---- bodies ----


@pytest.mark.parametrize("path", ["/v1/jobs/demo/ranks/0", "/v1/jobs/demo/ranks/0/heartbeat", "/v1/nowhere"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_large_body_is_refused_before_it_is_read(api: Api, path: str, declared: bool) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b" " * (MOST_BYTES // 2)

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api.app), base_url="http://here") as client:
            return await client.post(path, content=b" " * (MOST_BYTES + 1) if declared else parts())

    reply = asyncio.run(ask())
    if not declared and path == "/v1/nowhere":
        assert reply.status_code == 404  # its body is not read either
        return
    assert (reply.status_code, reply.json()) == (413, {"detail": "the body is too large: at most 64 KiB"})
    assert reply.headers["connection"] == "close"
