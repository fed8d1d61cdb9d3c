"""Where the cables between switches are: every port of every switch is asked where it leads, as cables.py asks a few."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from controller.errors import ControllerError, SwitchError
from controller.switches.cables import answer, question
from controller.switches.own_entries import OwnEntries
from controller.switches.program import Artifact
from controller.switches.session import P4RuntimeSession
from controller.topology import End, Switch, Topology
from hostlib.protocol.addresses import FABRIC_ADDRESS, fabric_address
from hostlib.protocol.constants import NETFOLD_UDP_PORT

ROUNDS, ROUND_S = 4, 0.5  # most ports lead to no switch, and never answer


@dataclass(frozen=True, slots=True)
class Found:
    """A cable between two switches, or one direction of it.

    Attributes:
        one, other: its ends.
        both_ways: whether packets get through in both directions.
    """

    one: End
    other: End
    both_ways: bool

    def __str__(self) -> str:
        way = "" if self.both_ways else ", and nothing comes back"
        return f"{self.one} leads to {self.other}{way}"


@contextmanager
def listening(
    sessions: Mapping[str, P4RuntimeSession], artifact: Artifact, cpu_port: int, ports: Sequence[int], take_over: bool
) -> Iterator[None]:
    """Have switches answer on all these ports, and forget that afterwards.

    Args:
        sessions: of switches, by name.
        take_over: also of switches that run the program already; what jobs they have ends.

    Raises:
        SwitchError: a switch already runs a program, and is not to be taken over; or it did not take this one.
    """
    asked = [port for port in ports if port != cpu_port]
    changed: list[P4RuntimeSession] = []
    try:
        for name, session in sessions.items():
            if not session.push(artifact, OwnEntries(FABRIC_ADDRESS, cables=asked, cpu_port=cpu_port), anew=take_over):
                raise SwitchError(
                    f"{name} at {session.p4rt} runs {artifact.name} already, and may have jobs: end them, then give "
                    "--take-over"
                )
            changed.append(session)
        yield
    finally:
        for session in changed:
            if session.up:  # otherwise any host could go on sending packets to the next controller
                session.reconcile((), OwnEntries(FABRIC_ADDRESS))


def ask_all(sessions: Mapping[str, P4RuntimeSession], elements: int, ports: Sequence[int]) -> dict[End, End]:
    """Where each port leads, of those that lead to a switch. Takes `ROUNDS` times `ROUND_S`.

    Args:
        sessions: of switches that listen.
        elements: of a packet.
    """
    ends = [End(name, port) for name in sessions for port in ports]
    asked = secrets.randbits(32)
    found: dict[End, End] = {}
    for _ in range(ROUNDS):
        for number, end in enumerate(ends):
            if end not in found:
                sessions[end.switch].send(question(asked, number, end.port, elements))
        until = time.monotonic() + ROUND_S
        while time.monotonic() < until:
            time.sleep(ROUND_S / 50)
            for name, session in sessions.items():
                for frame in session.received():
                    header = answer(frame)
                    if header is not None and header.epoch == asked and header.generation < len(ends):
                        found[ends[header.generation]] = End(name, header.rank)
    return {end: found[end] for end in ends if end in found}


def cables(found: Mapping[End, End]) -> list[Found]:
    """Both directions together, in the order in which they were asked.

    Args:
        found: where each end leads.
    """
    once: dict[frozenset[End], Found] = {}
    for sender, receiver in found.items():
        both = found.get(receiver) == sender
        once.setdefault(frozenset((sender, receiver)), Found(sender, receiver, both))
    return list(once.values())


def tree(switches: Sequence[Switch], root: str, found: Sequence[Found]) -> tuple[Topology, list[Found]]:
    """A topology over these cables, and the cables that are not in it.

    Each switch is as near to the root as can be. Not in it are cables that carry packets in one direction alone, that
    lead back to their own switch, or that are another way to a switch.

    Args:
        switches: without parents; their addresses are replaced.

    Raises:
        ControllerError: a switch cannot be reached from the root.
    """
    known = {switch.name: switch for switch in switches}
    placed = [replace(known[root], address=fabric_address(0))]
    left = list(found)
    for above in placed:  # which grows
        for cable in found:
            near, far = (cable.one, cable.other) if cable.one.switch == above.name else (cable.other, cable.one)
            is_new = far.switch not in {switch.name for switch in placed}
            if cable.both_ways and near.switch == above.name and is_new:
                below = replace(known[far.switch], address=fabric_address(len(placed)))
                placed.append(replace(below, parent=above.name, uplink=far.port, downlink=near.port))
                left.remove(cable)
    missing = known.keys() - {switch.name for switch in placed}
    if missing:
        raise ControllerError(
            f"no cable leads from {root} to {', '.join(sorted(missing))}: are they plugged in, at ports that "
            "--cable-ports has, and do all switches have this --cpu-port?"
        )
    return Topology(tuple(placed)), left


def with_hosts(topology: Topology, ports: Sequence[int]) -> Topology:
    """The same, with these ports for hosts on every switch that has none below it; those with cables are left out."""
    placed = []
    for switch in topology.switches:
        taken = {*topology.trunks(switch), switch.cpu_port}
        free = () if topology.children(switch.name) else [port for port in ports if port not in taken]
        placed.append(replace(switch, ports={port: f"{switch.address}:{NETFOLD_UDP_PORT}" for port in free}))
    return Topology(tuple(placed))
