"""Whether a rank is at its switch port: what its echoes show, who may say so, and when their absence is believed."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

from controller.commands.doctor import _ports
from controller.jobs.job import Job, Rank
from controller.jobs.job_table import JobTable
from controller.jobs.port_check import SILENT_S, port_numbers
from controller.jobs.split_by_switch import shares
from controller.topology import Switch, Topology
from hostlib.protocol import constants
from hostlib.protocol.slots import ECHO_SLOT
from tests.unit.controller.memory_api import Api, memory_api
from tests.unit.controller.test_entry import Verdict, ask, names

__all__ = ["names"]  # a fixture

RIGHT, UNCHECKED, SILENT = ((200, {"state": "ready", "port": port}) for port in ("right", "unchecked", "silent"))
NOTHING = {"echoes": [None]}


@pytest.fixture
def api() -> Api:
    api = memory_api()
    api.join(0)
    api.join(1)
    return api


def numbers(api: Api, rank: int) -> list[int]:
    job, member = api.service.jobs.member("demo", rank)
    return port_numbers(job, member)


def beat(api: Api, rank: int, **body: Any) -> tuple[int, Any]:
    return api.call("POST", f"/v1/jobs/demo/ranks/{rank}/heartbeat", body)


def row(api: Api, rank: int) -> dict[str, Any]:
    return dict(api.call("GET", "/v1/jobs/demo")[1]["ranks"][rank])


def port_events(api: Api) -> list[tuple[str, int, str]]:
    events = api.call("GET", "/v1/events?most=1000")[1]["events"]
    return [(each["kind"], each["rank"], each["text"]) for each in events if each["kind"].startswith("port-")]


def test_who_says_the_number_is_at_the_port(api: Api) -> None:
    assert beat(api, 1) == UNCHECKED
    assert row(api, 1)["port_text"] == "rank 1 of job demo is at port 2 of switch; that was not checked"
    assert beat(api, 1, echoes=numbers(api, 1)) == RIGHT
    assert row(api, 1)["port_text"] == "rank 1 of job demo is at port 2 of switch"
    assert row(api, 0)["port"] == "unchecked", "another rank's is not concluded from it"
    assert port_events(api) == [], "what is right is no news"


def test_silence_is_believed_when_it_lasts_and_told_once(api: Api) -> None:
    assert beat(api, 1, **NOTHING) == UNCHECKED
    api.seconds = SILENT_S - 0.1
    assert beat(api, 1, **NOTHING) == UNCHECKED
    api.seconds = SILENT_S
    assert beat(api, 1, **NOTHING) == beat(api, 1, **NOTHING) == SILENT
    text = (
        "rank 1 of job demo is not at port 2 of switch, where the topology has it: nothing sent there reaches "
        "127.0.0.1:5001, or comes from it"
    )
    assert port_events(api) == [("port-wrong", 1, text)] and row(api, 1)["port_text"] == text
    assert beat(api, 1, echoes=numbers(api, 1)) == RIGHT, "it has been plugged in"
    assert [kind for kind, _, _ in port_events(api)] == ["port-wrong", "port-right"]
    api.seconds += 2 * SILENT_S
    assert beat(api, 1, **NOTHING) == beat(api, 1) == RIGHT, "what is proved stays proved"


def test_silence_of_a_switch_that_is_gone_means_nothing(api: Api) -> None:
    beat(api, 1, **NOTHING)
    api.switch.up = False
    api.seconds = 2 * SILENT_S
    assert beat(api, 1, **NOTHING) == UNCHECKED
    api.switch.up = True
    api.seconds += SILENT_S
    assert beat(api, 1, **NOTHING) == UNCHECKED, "the wait begins again"
    api.seconds += SILENT_S
    assert beat(api, 1, **NOTHING) == SILENT


def test_a_number_can_be_guessed_once(api: Api) -> None:
    (right,) = numbers(api, 1)
    assert beat(api, 1, echoes=[right ^ 1]) == beat(api, 1, echoes=[right]) == SILENT
    ((kind, rank, text),) = port_events(api)
    assert (kind, rank) == ("port-wrong", 1) and "has not sent what it claims to have received" in text


def test_a_stranger_changes_nothing(api: Api) -> None:
    (own,), (other,) = numbers(api, 0), numbers(api, 1)
    assert own != other
    path = "/v1/jobs/demo/ranks/1/heartbeat"
    for token in (None, "a-stranger-s", api.tokens["/v1/jobs/demo/ranks/0"]):
        for echoes in ([other], [other ^ 1], [None]):
            assert api.answer("POST", path, {"echoes": echoes}, token).status_code in (401, 403)
            api.seconds += SILENT_S
    assert row(api, 1)["port"] == "unchecked" and port_events(api) == []
    assert beat(api, 1, echoes=[other]) == RIGHT


@pytest.mark.parametrize("echoes", [[], [None, None], [1 << 16], [-1], ["x"], [None] * 33])
def test_other_echoes_than_one_for_each_udp_port_are_refused(api: Api, echoes: list[Any]) -> None:
    code, answer = beat(api, 1, echoes=echoes)
    assert code == 422 and list(answer) == ["detail"]
    assert row(api, 1)["port"] == "unchecked"


def test_a_job_that_waits_is_not_judged() -> None:
    api = memory_api()
    api.join(0)
    assert beat(api, 0, echoes=numbers(api, 0)) == (200, {"state": "waiting", "port": "unchecked"})


def test_a_rank_that_comes_back_with_another_udp_port_is_checked_anew(api: Api) -> None:
    before = numbers(api, 1)
    assert beat(api, 1, echoes=before) == RIGHT
    body = {"world_size": 2, "address": "127.0.0.1", "udp_ports": [6001]}
    assert api.call("POST", "/v1/jobs/demo/ranks/1", body)[0] == 200
    assert numbers(api, 1) != before and row(api, 1)["port"] == "unchecked"


def test_a_controller_that_takes_over_knows_the_numbers(api: Api) -> None:
    beat(api, 0, echoes=numbers(api, 0))
    dumped = api.service.jobs.dump()
    later = JobTable(api.switch, api.service.jobs._topology, lambda: 0.0, lambda: 0.0)
    later.restore(dumped)
    job, member = later.member("demo", 1)
    assert port_numbers(job, member) == numbers(api, 1)
    assert later.member("demo", 0)[1].port == "right"


def test_doctor_and_metrics_name_it(api: Api) -> None:
    beat(api, 0, echoes=numbers(api, 0))
    beat(api, 1, **NOTHING)
    api.seconds = SILENT_S
    beat(api, 1, **NOTHING)
    (found,) = _ports(api.call("GET", "/v1/status")[1]["jobs"][0])
    assert (found.state, found.found) == ("fail", row(api, 1)["port_text"]) and found.remedy
    metrics = api.read("/metrics")
    assert 'netfold_rank_port_right{job_name="demo",rank="0"} 1.0' in metrics
    assert 'netfold_rank_port_right{job_name="demo",rank="1"} 0.0' in metrics


# ---- what the switches are told --------------------------------------------------------------------------------------

TREE = Topology(
    (
        Switch("root", "x:1", 1, "10.9.0.1", {}),
        Switch("a", "x:2", 1, "10.9.0.2", {1: "10.9.0.2:4793", 2: "10.9.0.2:4793"}, "root", 9, 1),
        Switch("b", "x:3", 1, "10.9.0.3", {1: "10.9.0.3:4793"}, "root", 9, 2),
    )
)


def _job(policy: str, pools: int) -> Job:
    from controller.jobs.job import Pool

    placed = (("a", 1), ("a", 2), ("b", 1))
    ports = [[7000 + 10 * rank + (0 if policy == "peers" else pool) for pool in range(pools)] for rank in range(3)]
    ranks = {
        rank: Rank(rank, f"10.0.0.{rank}", ports[rank], 0xAA00 + rank, switch, port, [1] * pools, 0.0, 0.0)
        for rank, (switch, port) in enumerate(placed)
    }
    return Job(
        "demo",
        7,
        99,
        3,
        policy,
        [Pool(64 * n, 64, n + 1) for n in range(pools)],
        64,
        pools,
        "ready",
        ranks,
        leaves={"a": [1] * pools, "b": [1] * pools},
    )


@pytest.mark.parametrize(("policy", "pools"), [("sum", 1), ("sum", 2), ("peers", 3)])
def test_the_switch_sends_an_echo_only_to_who_is_there(names: Any, policy: str, pools: int) -> None:
    job = _job(policy, pools)
    by_switch = shares(job, TREE)
    assert all(share.echoes == () for share in by_switch.get("root", []))
    for member in job.ranks.values():
        entities = names.job(by_switch[member.switch]) + names.echoes(by_switch[member.switch])
        for udp_port, number in zip(member.udp_ports, port_numbers(job, member), strict=True):
            question = {
                "ingress_port": member.switch_port,
                "src_addr": int(IPv4Address(member.address)),
                "src_port": udp_port,
                "operation": constants.OPERATION_NACK,
                "job": 7,
                "epoch": 99,
                "rank": member.rank,
                "slot": ECHO_SLOT,
            }
            back = {"port": member.switch_port, "mac": 0xAA00 + member.rank, "address": question["src_addr"]}
            assert ask(names, entities, **question) == Verdict("ask", {**back, "udp_port": udp_port, "rank": number})
            source = Verdict("refuse", {"reason": constants.DROP_SOURCE})
            for wrong in ({"ingress_port": 5}, {"src_addr": 1}, {"src_port": 1}):
                assert ask(names, entities, **{**question, **wrong}) == source
            for wrong in (
                {"operation": constants.OPERATION_CHUNK},
                {"slot": ECHO_SLOT - 1},
                {"epoch": 98},
                {"rank": 9},
            ):
                verdict = ask(names, entities, **{**question, **wrong})
                assert verdict is not None and verdict.action == "refuse"
