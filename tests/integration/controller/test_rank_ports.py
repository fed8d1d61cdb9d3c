"""Ranks prove that they are at their switch ports: by real switches, right and wrong topologies, and links that lose packets."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostlib._engine import Engine, Multicaster, Server
from hostlib.errors import JoinError
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import FabricSession, join
from hostlib.fabric.port_check import WrongPortError
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.protocol.constants import NETFOLD_UDP_PORT
from hostlib.protocol.slots import LARGEST_POOLS
from hostlib.system.process import start_and_wait_ready
from tests.conftest import ROOT, Fabric, running_fabric

HERE, DEADLINE_S, ELEMENTS, SLOTS = "127.0.0.1", 30.0, 64, 16


def joined(http: str, rank: int, ranks: int, lanes: int = 1, job: str = "demo") -> tuple[Engine, FabricSession]:
    engine = Engine(HERE, [0] * lanes)
    sockets = [partial(engine.echo, lane) for lane in range(lanes)]
    where = (HERE, engine.ports)
    return engine, join(http, job, rank, ranks, *where, DEADLINE_S, lambda: engine.position, SLOTS, sockets=sockets)


def all_joined(http: str, ranks: int, lanes: int = 1) -> list[tuple[Engine, FabricSession]]:
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda rank: joined(http, rank, ranks, lanes), range(ranks)))


def members(fabric: Fabric) -> list[dict[str, Any]]:
    return [rank for job in fabric.status()["jobs"] for rank in job["ranks"]]


def require_right(fabric: Fabric, count: int) -> None:
    """The controller hears of it by a heartbeat, which nobody waits for."""
    give_up = time.monotonic() + DEADLINE_S
    while Counter(member["port"] for member in members(fabric)) != {"right": count}:
        assert time.monotonic() < give_up, members(fabric)
        time.sleep(0.02)


def port_events(fabric: Fabric) -> list[str]:
    events = fabric.call("GET", "/v1/events?most=1000")[1]["events"]
    return [event["text"] for event in events if event["kind"].startswith("port-")]


@contextmanager
def fabric_of(tmp_path: Path, believed: Sequence[int], *options: str) -> Iterator[Fabric]:
    """A switch with a port for each rank, and a topology file that may be wrong.

    Args:
        believed: where the topology has the endpoints of port 1, 2, ...
        options: of the switch.
    """
    ready = tmp_path / "switch.json"
    command = [sys.executable, "-m", "emulation", "switch", "--p4rt", f"{HERE}:0", "--ready-file", str(ready)]
    command += ["--ports", str(len(believed)), "--udp-destination", f"{FABRIC_ADDRESS}:{NETFOLD_UDP_PORT}", *options]
    child, described = start_and_wait_ready(command, ready, tmp_path / "switch.log", what="the switch", folder=ROOT)
    try:
        ports = {port: described["ports"][str(n)] for n, port in enumerate(believed, 1)}
        same = {key: described[key] for key in ("p4rt", "device_id")}
        path = tmp_path / "topology.json"
        path.write_text(
            json.dumps({"switches": [{**same, "name": "leaf1", "address": FABRIC_ADDRESS, "ports": ports}]})
        )
        with running_fabric(tmp_path / "state", "--topology", str(path), "--elements", str(ELEMENTS)) as fabric:
            yield fabric
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(("options", "lanes"), [((), 1), ((), LARGEST_POOLS), (("--racks", "2", "--ports", "2"), 1)])
def test_ranks_that_are_there_are_found_right(
    start_fabric: Callable[..., Fabric], options: tuple[str, ...], lanes: int
) -> None:
    fabric = start_fabric(*options, "--elements", str(ELEMENTS))
    ranks = all_joined(fabric.http, 4, lanes)
    assert all(None not in session.echoes for _, session in ranks if session.echoes is not None)
    require_right(fabric, 4)
    if options:
        assert Counter(member["switch"] for member in members(fabric)) == {"leaf0": 2, "leaf1": 2}
    status = fabric.status()
    assert sum(status["drops"].values()) == 0 and port_events(fabric) == []
    for _, session in ranks:
        session.leave()


def test_a_server_and_ranks_that_send_chunks_are_checked_too(fabric: Fabric) -> None:
    server, others = Server(HERE), [Multicaster(HERE) for _ in range(2)]

    def one(rank: int, world: str) -> FabricSession:
        peers = world == "peers"
        end = server if rank == 2 else others[rank]
        ports = [end.port] * (2 if peers else 1)
        who = None if rank == 2 else rank
        return join(
            fabric.http,
            world,
            who,
            2,
            HERE,
            ports,
            DEADLINE_S,
            lambda: 0,
            SLOTS,
            world,
            sockets=[end.echo] * len(ports),
        )

    for world, count in (("peers", 2), ("chunk", 3), ("server", 3)):
        with ThreadPoolExecutor(count) as pool:
            sessions = list(pool.map(lambda rank, world=world: one(rank, world), range(count)))
        require_right(fabric, count)
        for session in sessions:
            session.leave()


def test_probes_that_get_lost_are_repeated(tmp_path: Path) -> None:
    with fabric_of(tmp_path, (1, 2, 3, 4), "--loss", "0.5", "--seed", "5") as fabric:
        ranks = all_joined(fabric.http, 4, 2)
        require_right(fabric, 4)
        assert port_events(fabric) == []
        for _, session in ranks:
            session.leave()


def test_hosts_whose_ports_are_swapped_are_named_and_refused(tmp_path: Path) -> None:
    with fabric_of(tmp_path, (2, 1, 3)) as fabric:

        def refused(rank: int) -> tuple[int, str] | None:
            try:
                joined(fabric.http, rank, 3)
            except WrongPortError as error:
                return rank, str(error)
            else:
                return None

        began = time.monotonic()
        with ThreadPoolExecutor(3) as pool:
            found = [each for each in pool.map(refused, range(3)) if each is not None]
        took_s = time.monotonic() - began
        rows = {member["rank"]: member for member in members(fabric)}
        assert sorted(rows[rank]["switch_port"] for rank, _ in found) == [1, 2]
        for rank, text in found:
            row = rows[rank]
            assert text == (
                f"rank {rank} is not at port {row['switch_port']} of leaf1, where the topology has it: nothing sent there "
                f"reaches {row['address']}, or comes from it"
            )
            assert (row["port"], row["state"]) == ("silent", "left")
        assert Counter(row["port"] for row in rows.values()) == {"silent": 2, "right": 1}
        assert {rows[rank]["port_text"] for rank, _ in found} == set(port_events(fabric))
        assert fabric.status()["drops"]["source"] > 10
        assert 3.0 < took_s < 20.0
        print(f"refused after {took_s:.1f} s")


def test_who_does_not_take_part_stays_unchecked_and_works(tmp_path: Path) -> None:
    with fabric_of(tmp_path, (1, 2)) as fabric:
        engines = [Engine(HERE) for _ in range(2)]

        def one(rank: int) -> FabricSession:
            where = (HERE, engines[rank].ports)
            session = join(fabric.http, "demo", rank, 2, *where, DEADLINE_S, lambda: 0, SLOTS)
            configure(engines[rank], session.place)
            return session

        with ThreadPoolExecutor(2) as pool:
            sessions = list(pool.map(one, range(2)))
            tensors = [np.arange(1000, dtype=np.int32) for _ in range(2)]
            list(pool.map(lambda rank: engines[rank].allreduce(tensors[rank], False, DEADLINE_S), range(2)))
        assert all(np.array_equal(tensor, 2 * np.arange(1000)) for tensor in tensors)
        assert {member["port"] for member in members(fabric)} == {"unchecked"}
        for session in sessions:
            session.leave()


def test_who_knows_no_number_is_refused_once_and_the_others_stay_right(fabric: Fabric) -> None:
    """A rank that lies about its port, over HTTP: it has joined, but has sent nothing."""
    body = {"world_size": 2, "address": HERE, "udp_ports": [5000], "slots": SLOTS}
    for rank in range(2):
        assert fabric.call("POST", f"/v1/jobs/liar/ranks/{rank}", body)[0] == 200
    path = "/v1/jobs/liar/ranks/1/heartbeat"
    assert fabric.call("POST", path, {"echoes": [1]})[1]["port"] == "silent"
    assert fabric.call("POST", path, {"echoes": [2]})[1]["port"] == "silent"
    assert fabric.call("GET", "/v1/jobs/liar")[1]["ranks"][0]["port"] == "unchecked"
    for rank in range(2):
        fabric.call("DELETE", f"/v1/jobs/liar/ranks/{rank}")


def test_a_refused_rank_has_left_its_job(tmp_path: Path) -> None:
    with fabric_of(tmp_path, (2,)) as fabric:
        with pytest.raises(JoinError, match="rank 0 is not at port 2 of leaf1"):
            joined(fabric.http, 0, 1)
        assert fabric.status()["jobs"] == []
        assert len(port_events(fabric)) == 1
