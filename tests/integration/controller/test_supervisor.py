"""What makes a switch be started anew, over P4Runtime servers in this process and a clock that is set by hand."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from controller.errors import SwitchError
from controller.http.service import Service
from controller.jobs.job import Job, Joining
from controller.jobs.job_table import JobTable
from controller.switches.embedded import Switches
from controller.switches.fleet import NOTICE_S, SwitchFleet
from controller.switches.session import RPC_TIMEOUT_S, P4RuntimeSession
from controller.switches.supervisor import SILENT_S, Supervisor
from controller.topology import Switch, Topology
from hostlib.protocol import constants
from tests.integration.controller.memory_switch import Running

OWN_ENTRIES = 5  # each switch's address and MAC, and where its own and the others' addresses are heard


@dataclass
class World:
    """A root with two leaves, and everything that looks after them."""

    seconds: float = 1000.0
    epochs: float = 1_700_000_000.0
    switches: dict[str, Running] = field(default_factory=lambda: {name: Running() for name in ("root", "a", "b")})
    written: list[dict[str, Any]] = field(default_factory=list)
    macs: bool = False
    own: bool = True

    def __post_init__(self) -> None:
        self.network = SwitchFleet(self.topology(), self.connect, lambda: self.seconds)
        self.network.push(64, anew=True)
        self.jobs = JobTable(
            self.network,
            self.network.topology,
            lambda: self.seconds,
            lambda: self.epochs,
            lambda dump: self.written.append({**dump, "clean": self.network.clean}),
        )
        service = Service(
            "1",
            "external",
            64,
            constants.SLOTS,
            self.jobs,
            self.network,
            {},
            lambda: self.seconds,
        )
        self.service = service
        owned = Switches(Path(), self.network.topology)
        self.supervisor = Supervisor(owned, self.network, 64, service, lambda: None)

    def topology(self) -> Topology:
        root, a, b = (
            Switch(
                name,
                running.address,
                1,
                f"10.0.0.{n}",
                {1: f"127.0.0.1:{n}"},
                macs={1: f"02:00:00:00:00:0{n}"} if self.macs else {},
            )
            for n, (name, running) in enumerate(self.switches.items(), 1)
        )
        below = [replace(s, parent="root", uplink=9, downlink=10 + n) for n, s in enumerate((a, b))]
        return Topology((root, *below))

    def connect(self, switch: Switch, patience_s: float | None) -> P4RuntimeSession:
        self.epochs += 1
        return P4RuntimeSession(switch.p4rt, 1, 0.5, take_over=self.own)

    def stop(self, name: str) -> None:
        """A switch dies, and its session has heard of it."""
        self.switches[name].stop()
        session = self.network.lines[name].session
        give_up = time.monotonic() + 10
        while session.up and time.monotonic() < give_up:
            time.sleep(0.005)
        assert not session.up

    def look(self) -> None:
        """As the supervisor does again and again, with the answers to its probes at hand."""
        self.network.probe()
        for line in self.network.lines.values():
            if line.asked is not None:
                line.asked.exception(10)
        self.supervisor.look()

    def join(self, name: str = "demo") -> Job:
        with self.service.changing() as jobs:
            return [
                jobs.join(name, Joining(rank, 2, "127.0.0.1", (5000 + rank,), nonce=f"{rank:032x}"))
                for rank in range(2)
            ][-1]

    def pushes(self) -> list[int]:
        return [running.switch.pushes for running in self.switches.values()]

    def entries(self) -> list[int]:
        return [len(running.switch.entities) for running in self.switches.values()]

    def close(self) -> None:
        self.network.close()
        for running in self.switches.values():
            running.stop()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_what_is_well_is_left_alone(world: World) -> None:
    job = world.join()
    world.seconds += SILENT_S - 1
    world.look()
    world.seconds += SILENT_S - 1
    world.look()
    assert (world.pushes(), job.state, world.network.clean) == ([1, 1, 1], "ready", True)
    assert all(line["up"] and line["restarts"] == 0 for line in world.network.describe())


def test_a_controller_that_was_stopped_itself_does_not_blame_the_switches(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(P4RuntimeSession, "answered", lambda session, probe: False)  # not yet
    world.join()
    world.supervisor.look()
    world.seconds += 10 * SILENT_S
    world.supervisor.look()
    assert (world.pushes(), list(world.jobs.jobs)) == ([1, 1, 1], ["demo"])


def test_who_waits_for_a_switch_that_stalls_is_told_as_soon_as_that_is_noticed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.switches["a"].switch.hung.set()
    monkeypatch.setattr(P4RuntimeSession, "answered", lambda session, probe: False)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(world.join)
        session = world.network.lines["a"].session
        while session._writing is None or session._writing.done():
            assert not joining.done()
            time.sleep(0.01)
        started = time.monotonic()
        world.seconds += NOTICE_S
        world.network.probe()
        with pytest.raises(SwitchError, match="did not answer in time"):
            joining.result(10)
        assert time.monotonic() - started < RPC_TIMEOUT_S / 2
    world.switches["a"].switch.hung.clear()
    # Nobody knows whether that entry arrived.
    assert not world.network.clean


def test_an_entry_that_could_not_be_removed_makes_everything_anew(world: World) -> None:
    world.join()
    other = world.jobs.join("other", Joining(0, 1, "127.0.0.1", (6000,)))
    world.switches["a"].switch.refuse_write = 0
    for rank in range(2):
        with world.service.changing() as jobs:
            jobs.leave("demo", rank)
    assert not world.network.clean and world.written[-1]["clean"] is False
    assert world.entries()[1] > OWN_ENTRIES and other.state == "ready"
    world.look()
    assert (world.pushes(), world.entries()) == ([2, 2, 2], [OWN_ENTRIES] * 3)
    assert world.jobs.jobs == {} and world.network.clean
    assert world.written[-1]["clean"] is True and world.written[-1]["jobs"] == []
    assert [line["restarts"] for line in world.network.describe()] == [0, 1, 0]
    assert world.join().state == "ready"


def test_the_ways_to_hosts_come_back_with_a_switch() -> None:
    world = World(macs=True)
    try:
        assert world.entries() == [OWN_ENTRIES + 3] * 3
        before = world.switches["b"].switch.entities
        world.stop("b")
        world.switches["b"] = Running()
        world.supervisor._switches.topology = world.topology()
        world.look()
        assert world.pushes() == [2, 2, 1]
        assert world.entries() == [OWN_ENTRIES + 3] * 3
        assert world.switches["b"].switch.entities == before
    finally:
        world.close()


def test_a_refused_installation_that_is_taken_back_is_nothing_to_worry_about(world: World) -> None:
    world.switches["b"].switch.refuse_write = 3
    with pytest.raises(SwitchError, match="the table is full"):
        world.join()
    assert (world.entries(), world.network.clean) == ([OWN_ENTRIES] * 3, True)
    world.look()
    assert world.pushes() == [1, 1, 1]


def test_while_a_switch_is_away_nobody_joins_and_nobody_else_suffers(world: World) -> None:
    world.join()
    world.stop("b")
    for _ in range(2):
        with pytest.raises(SwitchError, match="no switch answers P4Runtime at"):
            world.look()
    assert world.jobs.jobs == {} and world.written[-1]["clean"] is False
    with pytest.raises(SwitchError, match="the switch b failed and is not back yet: try again later"):
        world.network.require_up()
    with pytest.raises(SwitchError, match="is not back yet"):
        world.join()
    assert [line["up"] for line in world.network.describe()] == [True, True, False]
    # It comes back at another address, say: the topology is what the switches are now.
    world.switches["b"] = Running()
    world.supervisor._switches.topology = world.topology()
    world.look()
    assert world.pushes() == [2, 2, 1]
    assert [line["restarts"] for line in world.network.describe()] == [0, 0, 1]
    assert [(event.kind, event.switch) for event in world.service.events.last(9)] == [
        ("job-waiting", None),
        ("job-ready", None),
        ("switch-down", "b"),
        ("job-ended", None),
        ("job-waiting", None),  # the rank that came meanwhile, before the one that was refused
        ("switch-up", "b"),
    ]
    assert world.service.events.history(1)[0].why == "the switch b failed"
    assert world.service.endpoints == {("root", 1): "127.0.0.1:1", ("a", 1): "127.0.0.1:2", ("b", 1): "127.0.0.1:3"}
    assert world.join().state == "ready"


def test_a_switch_that_is_silent_for_long_is_connected_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.join()
    first = world.network.lines["a"].session
    monkeypatch.setattr(P4RuntimeSession, "answered", lambda session, probe: session is not first)
    world.look()
    assert all(line["up"] for line in world.network.describe())
    world.seconds += NOTICE_S
    world.look()
    assert [line["up"] for line in world.network.describe()] == [True, False, True]
    assert list(world.jobs.jobs) == ["demo"]
    world.seconds += SILENT_S - NOTICE_S + 0.1
    world.look()
    assert world.network.lines["a"].session is not first
    assert (world.pushes(), world.jobs.jobs) == ([2, 2, 2], {})
