"""Hosts on real interfaces: a rank gets the port that its host is plugged into, and finds the fabric by ARP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hostlib._engine import Engine
from hostlib.errors import JoinError
from hostlib.fabric.aggregation import configure
from hostlib.fabric.job_client import FabricSession, join
from hostlib.fabric.port_check import WrongPortError
from hostlib.system.network_namespace import inside, veths
from tests.conftest import ROOT, Fabric, running_fabric
from tests.iproute import ip

FABRIC = "10.255.255.254"
HOSTS = {1: "10.0.0.1", 2: "10.0.0.2"}
DEADLINE_S = 20.0


def plug_hosts(space: str) -> None:
    """Each interface h1, h2 as a host of its own: what it sends leaves by it, as on two machines."""
    for number, address in HOSTS.items():
        interface, table = f"h{number}", str(100 + number)
        # A veth would pass several datagrams on as one packet, which a wire never carries.
        ip("-n", space, "link", "set", interface, "arp", "on", "gso_max_segs", "1")
        ip("-n", space, "addr", "add", f"{address}/32", "dev", interface)
        ip("-n", space, "rule", "add", "from", address, "lookup", table)
        ip("-n", space, "route", "add", FABRIC, "dev", interface, "table", table, "src", address)


def start_switch(ready: Path, stack: ExitStack) -> dict[str, Any]:
    ports = [word for number in HOSTS for word in ("--port", f"{number}=s{number}")]
    command = [sys.executable, "-m", "emulation", "switch", "--p4rt", "127.0.0.1:0", "--ready-file", str(ready), *ports]
    child = subprocess.Popen(command, cwd=ROOT)
    stack.callback(child.wait)
    stack.callback(child.kill)
    give_up = time.monotonic() + 20
    while not ready.exists():
        assert child.poll() is None and time.monotonic() < give_up
        time.sleep(0.02)
    return json.loads(ready.read_text())


def joined(http: str, rank: int, address: str) -> tuple[Engine, FabricSession]:
    engine = Engine(address)
    where = (engine.address, engine.ports)
    sockets = [partial(engine.echo, 0)]
    session = join(http, "hosts", rank, 2, *where, DEADLINE_S, lambda: engine.position, sockets=sockets)
    configure(engine, session.place)
    return engine, session


@contextmanager
def plugged(tmp_path: Path, believed: dict[int, str]) -> Iterator[tuple[str, Fabric]]:
    """A namespace with two hosts, and a controller there that believes them to be at these ports of its switch."""
    with ExitStack() as stack:
        space = stack.enter_context(veths(2, "test"))
        plug_hosts(space)
        switch = inside(space, lambda: start_switch(tmp_path / "ready.json", stack))
        described = {
            "name": "switch",
            "p4rt": switch["p4rt"],
            "device_id": switch["device_id"],
            "address": FABRIC,
            "ports": dict.fromkeys(HOSTS, f"{FABRIC}:4793"),
            "hosts": believed,
        }
        topology = tmp_path / "topology.json"
        topology.write_text(json.dumps({"switches": [described]}))
        fabric = running_fabric(tmp_path / "state", "--topology", str(topology), "--elements", "64")
        running = inside(space, fabric.__enter__)
        stack.callback(inside, space, lambda: fabric.__exit__(None, None, None))
        yield space, running


@pytest.mark.root
def test_ranks_on_real_interfaces_sum_over_the_ports_of_their_hosts(tmp_path: Path) -> None:
    with plugged(tmp_path, HOSTS) as (space, running):
        # Rank 0 is on the second host.
        with ThreadPoolExecutor(2) as pool:
            addresses = [HOSTS[2], HOSTS[1]]
            ranks = list(pool.map(lambda r: inside(space, lambda: joined(running.http, r, addresses[r])), range(2)))
            assert [session.place.switch_port for _, session in ranks] == [2, 1]
            assert all(session.echoes for _, session in ranks), "both have proved their ports"
            tensors = [np.arange(5000, dtype=np.int32) * (rank + 1) for rank in range(2)]
            list(pool.map(lambda r: ranks[r][0].allreduce(tensors[r], False, DEADLINE_S), range(2)))
        assert all(np.array_equal(tensor, np.arange(5000) * 3) for tensor in tensors)
        status = inside(space, running.status)
        assert status["events"]["completed"] == 1 + -(-5000 // 64)
        with pytest.raises(JoinError, match=r"no switch port has the host 127.0.0.1; hosts: 10.0.0.1, 10.0.0.2"):
            inside(space, lambda: join(running.http, "other", 0, 1, "127.0.0.1", [5000], DEADLINE_S, lambda: 0))
        for _, session in ranks:
            inside(space, session.leave)


@pytest.mark.root
def test_hosts_that_are_plugged_in_the_other_way_round_are_named(tmp_path: Path) -> None:
    with plugged(tmp_path, {1: HOSTS[2], 2: HOSTS[1]}) as (space, running):

        def refused(rank: int) -> str:
            with pytest.raises(WrongPortError) as error:
                joined(running.http, rank, HOSTS[rank + 1])
            return str(error.value)

        with ThreadPoolExecutor(2) as pool:
            lines = list(pool.map(lambda rank: inside(space, lambda: refused(rank)), range(2)))
        for rank, line in enumerate(lines):
            assert line.startswith(
                f"rank {rank} is not at port {2 - rank} of switch, where the topology has it: nothing sent there reaches "
                f"{HOSTS[rank + 1]}:"
            )
        status = inside(space, running.status)
        assert status["drops"]["source"] > 0 and status["jobs"] == []
