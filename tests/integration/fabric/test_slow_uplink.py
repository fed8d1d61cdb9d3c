"""A tree whose cables to the root are far slower than its leaves: ranks must not fill them with questions."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from tests.conftest import running_fabric
from tests.integration.fabric.test_tree import join_all, reduce_all
from tests.switch_processes import free_ports, in_topology, run_switch

ELEMENTS, VALUES, RANKS_PER_LEAF, LEAVES = 64, 1500, 2, 2
UPLINK = 40
# A frame of 64 elements takes some 11 ms, and the queue keeps what is sent again in vain.
SLOW = "bandwidth=250kbit,queue=100000"


def test_ranks_do_not_fill_a_slow_uplink_with_questions(tmp_path: Path) -> None:
    ends = free_ports(2 * LEAVES, socket.SOCK_DGRAM)
    upper, lower = ends[:LEAVES], ends[LEAVES:]
    with ExitStack() as stack:

        def switch(name: str, address: str, *ports: str, **where: Any) -> dict[str, Any]:
            _, started = run_switch(stack, tmp_path, name, address, *ports)
            return in_topology(name, started, address, **where)

        wires = [f"{n + 1}=wire:127.0.0.1:{upper[n]},127.0.0.1:{lower[n]},{SLOW}" for n in range(LEAVES)]
        switches = [switch("root", "10.255.255.254", *wires)]
        for n in range(LEAVES):
            uplink = f"{UPLINK}=wire:127.0.0.1:{lower[n]},127.0.0.1:{upper[n]},{SLOW}"
            hosts = [f"{port + 1}=udp:127.0.0.1:0" for port in range(RANKS_PER_LEAF)]
            where = {"parent": "root", "uplink": UPLINK, "downlink": n + 1}
            switches.append(switch(f"leaf{n}", f"10.255.255.{n + 1}", *hosts, uplink, **where))
        topology = tmp_path / "topology.json"
        topology.write_text(json.dumps({"switches": switches}))
        options = ("--topology", topology, "--elements", str(ELEMENTS))
        fabric = stack.enter_context(running_fabric(tmp_path / "state", *map(str, options)))
        ranks = join_all(fabric, "slow", LEAVES * RANKS_PER_LEAF, stack)
        assert {session.place.levels for _, session in ranks} == {LEAVES}
        sums = 3 * ranks[0][1].place.tensor_cut.positions(VALUES, "int32")
        for number in range(3):
            tensors = [np.arange(VALUES, dtype=np.int32) * (rank + number) for rank in range(len(ranks))]
            total = np.sum(tensors, axis=0, dtype=np.int32)
            assert all(np.array_equal(got, total) for got in reduce_all(ranks, tensors))
        root, *leaves = fabric.status()["switches"]
    assert root["events"]["completed"] == sums
    again = sum(leaf["events"]["up_again"] for leaf in leaves)
    print(
        f"{sums} sums; sent up again: {again}; asked again by ranks: "
        f"{[engine.stats()['retransmits'] for engine, _ in ranks]}"
    )
    assert again < 3 * LEAVES * sums
