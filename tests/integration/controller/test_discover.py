"""`controller discover` finds the cables between real switches, and writes a topology that a controller starts with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from controller.commands.discover import discover
from controller.errors import ControllerError
from controller.switches.cables import question
from controller.switches.discovery import Found, cables, tree, with_hosts
from controller.switches.own_entries import OwnEntries
from controller.switches.program import load_artifact
from controller.switches.session import P4RuntimeSession
from controller.topology import End, Switch, Topology
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.system.interfaces import unused_udp_ports
from tests.emulation.p4runtime import Switch as Running
from tests.emulation.p4runtime import switch

HERE, CPU_PORT = "127.0.0.1", 500
Wire = tuple[tuple[str, int], tuple[str, int]]


@contextmanager
def switches(*wires: Wire, names: tuple[str, ...] = ("root", "a", "b")) -> Iterator[dict[str, Running]]:
    """Switches without a program, with these cables."""
    ends = iter(unused_udp_ports(HERE, 2 * len(wires)))
    ports: dict[str, list[str]] = {name: [] for name in names}
    for one, other in wires:
        here, there = next(ends), next(ends)
        ports[one[0]].append(f"{one[1]}=wire:{HERE}:{here},{HERE}:{there}")
        ports[other[0]].append(f"{other[1]}=wire:{HERE}:{there},{HERE}:{here}")
    with ExitStack() as stack:
        yield {name: stack.enter_context(switch(None, *ports[name], cpu_port=CPU_PORT)) for name in names}


def run(running: dict[str, Running], *options: str) -> Result:
    named = [f"{name}={each.address}" for name, each in running.items()]
    common = ["--cpu-port", str(CPU_PORT), "--cable-ports", "1-20", "--elements", "64"]
    return CliRunner().invoke(discover, [*named, *common, *options])


def lets_through(running: Running, port: int) -> bool:
    """Whether a question that comes in at a port gets to the controller."""
    session = P4RuntimeSession(running.address, 1)
    try:
        session.push(load_artifact(64), OwnEntries(FABRIC_ADDRESS))
        unknown = session.counts()[1]["no_route"]
        running.process(port, question(1, 0, port, 64))
        return session.counts()[1]["no_route"] == unknown
    finally:
        session.close()


def test_cables_become_a_topology(tmp_path: Path) -> None:
    """One leaf below another, a second cable beside the first, one that leads back, and one that leads nowhere."""
    path = tmp_path / "topology.json"
    wires: list[Wire] = [
        (("root", 3), ("b", 9)),
        (("b", 4), ("a", 7)),
        (("b", 5), ("a", 8)),
        (("root", 11), ("root", 12)),
    ]
    with switches(*wires) as running:
        result = run(running, "--host-ports", "1-3,7", "--output", str(path))
        assert result.exit_code == 0, result.output
        assert result.output.splitlines()[:-1] == [
            "port 3 of root leads to port 9 of b",
            "port 11 of root leads to port 12 of root; it is not used",
            "port 7 of a leads to port 4 of b",
            "port 8 of a leads to port 5 of b; it is not used",
        ]
        topology = Topology.read(path)
        assert [(s.name, s.parent, s.uplink, s.downlink) for s in topology.switches] == [
            ("root", None, 0, 0),
            ("b", "root", 9, 3),
            ("a", "b", 7, 4),
        ]
        assert topology.root.address == FABRIC_ADDRESS
        assert {s.name: sorted(s.ports) for s in topology.switches} == {"root": [], "b": [], "a": [1, 2, 3]}
        assert not lets_through(running["a"], 7), "no packet gets to the next controller"
        again = run(running)
        assert again.exit_code != 0 and "runs netfold-v1model-64 already, and may have jobs" in str(again.exception)
        assert run(running, "--take-over").exit_code == 0


def test_what_is_found_is_what_a_controller_starts_with() -> None:
    with switches((("root", 3), ("a", 9)), (("root", 4), ("b", 9))) as running:
        described = json.loads(run(running, "--json").output)
        assert [cable["both_ways"] for cable in described["cables"]] == [True, True]
        assert described["unused"] == []
        topology = Topology.of_json(described["switches"])
        artifact = load_artifact(64)
        for each in topology.switches:
            session = P4RuntimeSession(each.p4rt, 1)
            assert not session.push(artifact, OwnEntries.of(each, topology)), "it runs the program"
            session.reconcile((), OwnEntries.of(each, topology))
            session.close()


def test_a_switch_that_no_cable_leads_to_is_named() -> None:
    with switches((("root", 3), ("a", 9))) as running:
        result = run(running)
        assert isinstance(result.exception, ControllerError)
        assert str(result.exception).startswith("no cable leads from root to b: are they plugged in")


def test_a_switch_with_a_controller_is_left_alone() -> None:
    with switches((("root", 3), ("a", 9)), names=("root", "a")) as running:
        session = P4RuntimeSession(running["a"].address, 1)
        result = run(running)
        assert "has another controller as its primary" in str(result.exception)
        assert session.up
        session.close()


def _ends(*pairs: tuple[str, str]) -> dict[End, End]:
    return {_end(one): _end(other) for one, other in pairs}


def _end(text: str) -> End:
    return End(text[0], int(text[1:]))


ALL = tuple(Switch(name, f"{name}:1", 1, "", {}, cpu_port=CPU_PORT) for name in "rab")


def test_one_direction_is_no_way_to_a_switch() -> None:
    found = cables(_ends(("r1", "a1"), ("a1", "r1"), ("r2", "b1")))
    assert found == [Found(_end("r1"), _end("a1"), True), Found(_end("r2"), _end("b1"), False)]
    assert str(found[1]) == "port 2 of r leads to port 1 of b, and nothing comes back"
    with pytest.raises(ControllerError, match="no cable leads from r to b"):
        tree(ALL, "r", found)


def test_a_ring_of_switches_becomes_a_tree() -> None:
    found = cables(_ends(("r1", "a1"), ("a1", "r1"), ("a2", "b2"), ("b2", "a2"), ("b1", "r2"), ("r2", "b1")))
    topology, left = tree(ALL, "r", found)
    assert {each.name: each.parent for each in topology.switches} == {"r": None, "a": "r", "b": "r"}
    assert left == [Found(_end("a2"), _end("b2"), True)]
    ports = with_hosts(topology, [1, 2, 3, CPU_PORT]).switch("a").ports
    assert ports == {2: f"{topology.switch('a').address}:4793", 3: f"{topology.switch('a').address}:4793"}
    assert with_hosts(topology, ()) == replace(topology)
