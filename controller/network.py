"""All switches of a topology as one fabric: jobs go to each in the right order, counters come from all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from controller.artifact import Artifact
from controller.errors import SwitchError
from controller.fabric import P4RuntimeFabric
from controller.job import Job
from controller.topology import Switch, Topology
from controller.tree import shares


class Network:
    """A P4Runtime session with every switch.

    Args:
        connect: opens a session with one switch.

    Raises:
        SwitchError: from `connect`; no session is left open.
    """

    def __init__(self, topology: Topology, connect: Callable[[Switch], P4RuntimeFabric]) -> None:
        self.topology = topology
        self.sessions: dict[str, P4RuntimeFabric] = {}
        try:
            for switch in topology.switches:
                self.sessions[switch.name] = connect(switch)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()

    def push(self, artifact: Artifact, anew: bool) -> bool:
        """Make every switch run the program; whether one was pushed, and the jobs of an earlier life are gone."""
        pushed = [self.sessions[switch.name].push(artifact, switch.address, anew) for switch in self.topology.switches]
        if any(pushed) and not all(pushed):
            # One switch was started anew: what the others still hold belongs to jobs that cannot go on.
            for switch in self.topology.switches:
                self.sessions[switch.name].push(artifact, switch.address, anew=True)
        return any(pushed)

    def require_up(self) -> None:
        """Raise SwitchError naming a switch that is gone."""
        for session in self.sessions.values():
            if not session.up:
                raise SwitchError(f"the switch at {session.p4rt} is gone")

    # ---- jobs: what controller.job asks of a fabric -----------------------------------------------------------

    def install(self, job: Job) -> None:
        """Parents first, so that a leaf's first sum finds its place; all switches or none."""
        told = shares(job, self.topology)
        done: list[str] = []
        try:
            for name, parts in told.items():
                self.sessions[name].install(parts)
                done.append(name)
        except SwitchError:
            for name in reversed(done):
                with contextlib.suppress(SwitchError):
                    self.sessions[name].remove(told[name])
            raise

    def remove(self, job: Job) -> None:
        """Leaves first. A switch that is gone keeps nobody from being told."""
        failed: SwitchError | None = None
        for name, parts in reversed(shares(job, self.topology).items()):
            try:
                self.sessions[name].remove(parts)
            except SwitchError as wrong:
                failed = wrong
        if failed is not None:
            raise failed

    # ---- counters ---------------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        """Per switch: name, parent, p4rt, program, up, events, drops, ports. Empty counters when it is gone."""
        return [self._describe(switch) for switch in self.topology.switches]

    def _describe(self, switch: Switch) -> dict[str, Any]:
        session = self.sessions[switch.name]
        events: dict[str, int] = {}
        drops: dict[str, int] = {}
        ports: dict[int, dict[str, int]] = {}
        up = session.up
        if up:
            try:
                events, drops = session.counts()
                ports = session.ports()
            except SwitchError:
                up = False
        return {
            "name": switch.name,
            "parent": switch.parent,
            "p4rt": switch.p4rt,
            "program": session.program,
            "up": up,
            "events": events,
            "drops": drops,
            "ports": {str(number): counts for number, counts in sorted(ports.items())},
        }
