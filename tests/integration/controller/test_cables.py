"""Cables between switches are checked by packets: where they lead, whether anything gets through, and what was not checked."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from controller.switches.cables import EVERY_S, ROUND_S, Cable, CableWatch, answer, question
from controller.switches.fleet import SwitchFleet
from controller.switches.session import MOST_UNREAD, P4RuntimeSession
from controller.topology import End, Switch, Topology
from hostlib.system.interfaces import unused_udp_ports
from tests.emulation.p4runtime import Switch as Running
from tests.emulation.p4runtime import switch

HERE, CPU_PORT, UPLINK, DOWNLINKS = "127.0.0.1", 500, 9, (10, 11)
ELEMENTS = 64
ENOUGH_S = 30.0
STATES = {End("a", UPLINK), End("b", UPLINK), *(End("root", port) for port in DOWNLINKS)}


@contextmanager
def fabric(
    wiring: dict[str, int | None], cpu_ports: dict[str, int | None]
) -> Iterator[tuple[SwitchFleet, list[Running]]]:
    """A root with two leaves, as processes of this one; the topology says that a is at port 10 and b at 11.

    Args:
        wiring: leaf -> port of the root that its uplink really leads to; None: it leads nowhere.
    """
    ends = iter(unused_udp_ports(HERE, 8))
    uppers = {port: (next(ends), next(ends)) for port in DOWNLINKS}  # the root's end, and the other one
    root = [f"{port}=wire:{HERE}:{upper},{HERE}:{lower}" for port, (upper, lower) in uppers.items()]
    with ExitStack() as stack:
        running = [stack.enter_context(switch(None, *root, cpu_port=CPU_PORT))]
        for port in wiring.values():
            upper, lower = (next(ends), next(ends)) if port is None else uppers[port]
            wire = f"{UPLINK}=wire:{HERE}:{lower},{HERE}:{upper}"
            running.append(stack.enter_context(switch(None, wire, cpu_port=CPU_PORT)))
        leaves = {"a": DOWNLINKS[0], "b": DOWNLINKS[1]}
        topology = Topology(
            tuple(
                Switch(
                    name,
                    each.address,
                    1,
                    f"10.0.0.{n}",
                    {},
                    "root" if name in leaves else None,
                    UPLINK if name in leaves else 0,
                    leaves.get(name, 0),
                    cpu_port=cpu_ports.get(name, CPU_PORT),
                )
                for n, (name, each) in enumerate(zip(("root", "a", "b"), running, strict=True), 1)
            )
        )
        fleet = SwitchFleet(topology, lambda to, patience_s: P4RuntimeSession(to.p4rt, 1), time.monotonic)
        stack.callback(fleet.close)
        fleet.push(ELEMENTS, anew=True)
        yield fleet, running


def checked(fleet: SwitchFleet) -> dict[End, Cable]:
    """Every cable after a check of all, by sender."""
    watch = fleet.cables
    assert watch is not None
    give_up = time.monotonic() + ENOUGH_S
    while not watch.look():
        assert time.monotonic() < give_up
        time.sleep(0.01)
    return {cable.sender: cable for cable in watch.cables}


def test_right_cables_are_found_right() -> None:
    with fabric({"a": 10, "b": 11}, {}) as (fleet, _):
        cables = checked(fleet)
        assert cables.keys() == STATES
        assert {cable.state for cable in cables.values()} == {"right"}
        assert all(cable.found == cable.receiver for cable in cables.values())
        assert str(cables[End("a", UPLINK)]) == "port 9 of a leads to port 10 of root"


def test_crossed_cables_are_named_with_where_they_lead() -> None:
    with fabric({"a": 11, "b": 10}, {}) as (fleet, _):
        cables = checked(fleet)
        assert {cable.state for cable in cables.values()} == {"crossed"}
        assert str(cables[End("a", UPLINK)]) == "port 9 of a leads to port 11 of root, not to port 10 of root"
        assert cables[End("root", 10)].found == End("b", UPLINK)
        assert all(described["text"] for described in fleet.describe_cables())


def test_a_cable_that_leads_nowhere_is_silent() -> None:
    with fabric({"a": 10, "b": None}, {}) as (fleet, _):
        cables = checked(fleet)
        assert {sender: cable.state for sender, cable in cables.items()} == {
            End("a", UPLINK): "right",
            End("root", 10): "right",
            End("b", UPLINK): "silent",
            End("root", 11): "silent",
        }
        assert cables[End("b", UPLINK)].found is None
        assert str(cables[End("b", UPLINK)]) == "nothing from port 9 of b comes in at port 11 of root"


def test_without_a_cpu_port_a_cable_stays_unchecked() -> None:
    with fabric({"a": 10, "b": 11}, {"b": None}) as (fleet, _):
        cables = checked(fleet)
        assert cables[End("a", UPLINK)].state == cables[End("root", 10)].state == "right"
        assert cables[End("b", UPLINK)].state == cables[End("root", 11)].state == "unchecked"


def test_nobody_but_a_cable_reaches_the_controller() -> None:
    """What looks like an answer, from a port without a cable or of an earlier check, is not believed."""
    with fabric({"a": 10, "b": 11}, {}) as (fleet, running):
        checked(fleet)
        root = fleet.lines["root"].session
        forged = question(1, 0, 1, ELEMENTS)
        for port in (1, DOWNLINKS[0]):  # a host's, and a cable's
            running[0].process(port, forged)

        def heard() -> list[int]:
            """The ports that the forged questions came in at; what the check asked twice may still be answered."""
            headers = [answer(each) for each in root.received()]
            return [each.rank for each in headers if each is not None and each.epoch == 1]

        came: list[int] = []
        give_up = time.monotonic() + ENOUGH_S
        while not came:
            assert time.monotonic() < give_up
            came += heard()
        assert came + heard() == [DOWNLINKS[0]]


def test_an_answer_to_an_earlier_question_is_not_believed() -> None:
    watch, sessions = _watch([0.0])
    watch.look()
    right, number = answer(sessions["a"].sent[0]), 0
    assert right is not None
    sessions["root"].came.append(question(right.epoch + 1, number, 77, ELEMENTS))
    watch.look()
    assert len(sessions["a"].sent) == 2, "asked again"
    sessions["root"].came.append(question(right.epoch, number, 10, ELEMENTS))
    sessions["a"].came.append(question(right.epoch, 1, UPLINK, ELEMENTS))
    assert [now.state for _, now in watch.look()] == ["right", "right"]


def test_a_flood_of_packets_is_bounded() -> None:
    with fabric({"a": 10, "b": 11}, {}) as (fleet, _):
        session = fleet.lines["root"].session
        waiting = session._client.stream_in_q["packet"]
        for _ in range(2 * MOST_UNREAD):
            session.send(question(1, 0, DOWNLINKS[0], ELEMENTS))
        other = fleet.lines["a"].session._client.stream_in_q["packet"]
        give_up = time.monotonic() + ENOUGH_S
        while other.qsize() < MOST_UNREAD:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        assert other.qsize() == MOST_UNREAD and waiting.qsize() == 0
        assert {cable.state for cable in checked(fleet).values()} == {"right"}, "and the check goes on"


class _Fake:
    """A session that keeps what it is to send, and has received what it is told."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.came: list[bytes] = []

    def send(self, frame: bytes) -> None:
        self.sent.append(frame)

    def received(self) -> list[bytes]:
        came, self.came = self.came, []
        return came


def _watch(seconds: list[float]) -> tuple[CableWatch, dict[str, _Fake]]:
    switches = (
        Switch("root", "x:1", 1, "10.0.0.1", {}, cpu_port=CPU_PORT),
        Switch("a", "x:2", 1, "10.0.0.2", {}, "root", UPLINK, 10, cpu_port=CPU_PORT),
    )
    sessions = {name: _Fake() for name in ("root", "a")}
    return CableWatch(Topology(switches), lambda name: sessions[name], ELEMENTS, lambda: seconds[0]), sessions  # type: ignore[arg-type, return-value]


def test_a_question_is_asked_until_it_is_answered_and_a_pause_judges_nothing() -> None:
    seconds = [0.0]
    watch, sessions = _watch(seconds)
    for _ in range(4):
        assert watch.look() == []
        seconds[0] += 0.25
    assert len(sessions["a"].sent) == len(sessions["root"].sent) == 4
    seconds[0] += 10 * ROUND_S  # The controller was stopped: what came meanwhile may be lost.
    assert watch.look() == [] and watch.cables[0].state == "unchecked"
    while not (changed := watch.look()):
        seconds[0] += 0.25
    assert [now.state for _, now in changed] == ["silent", "silent"]
    sent = len(sessions["a"].sent)
    seconds[0] += EVERY_S / 5
    assert watch.look() == [] and len(sessions["a"].sent) == sent


@pytest.mark.parametrize("frame", [b"", b"x" * 60, question(1, 2, 3, ELEMENTS)[:50]])
def test_other_frames_are_no_answers(frame: bytes) -> None:
    assert answer(question(1, 2, 3, ELEMENTS)) is not None
    assert answer(frame) is None
