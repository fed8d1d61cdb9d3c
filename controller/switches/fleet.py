"""All switches of a topology as one fabric: installs jobs on them in order, and collects their counters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from controller.errors import SwitchError
from controller.jobs.job import Job
from controller.jobs.split_by_switch import shares
from controller.switches.cables import CableWatch
from controller.switches.own_entries import OwnEntries
from controller.switches.program import load_artifact
from controller.switches.session import P4RuntimeSession, Probe
from controller.topology import Switch, Topology

RECONNECT_TIMEOUT_S = 1.0
NOTICE_S = 2.5  # A switch that has been silent for this long counts as not answering.
JUST_NOW_S = 1.0  # it is asked four times a second
AWAY_S = 3.0  # After no probes for this long (a stopped or busy controller), silence means nothing.


@dataclass(slots=True)
class SwitchState:
    """A switch and its P4Runtime session.

    Attributes:
        answered_s: when it last answered a probe, on the fleet's clock.
        answers: whether that was less than NOTICE_S ago.
        asked: the probe in progress.
        failed: it must be restarted, or reconnected.
        restarts: how often that was done.
    """

    session: P4RuntimeSession
    answered_s: float
    answers: bool = True
    asked: Probe | None = None
    failed: bool = False
    restarts: int = 0

    @property
    def up(self) -> bool:
        return self.answers and not self.failed and self.session.up


class SwitchFleet:
    """P4Runtime sessions with all switches.

    Args:
        connect: opens a session with one switch, within a number of seconds [default: the session's own].
        clock: monotonic seconds.

    Attributes:
        clock: monotonic seconds.
        cables: whether those between switches are right; None before the first push.
        suspended: why no rank may join while switches are being recovered; None while all are at work. In the meantime
            only the recovery writes to switches.

    Raises:
        SwitchError: from `connect`; no session is left open.
    """

    def __init__(
        self,
        topology: Topology,
        connect: Callable[[Switch, float | None], P4RuntimeSession],
        clock: Callable[[], float],
    ) -> None:
        self.topology = topology
        self.suspended: str | None = None
        self.cables: CableWatch | None = None
        self.lines: dict[str, SwitchState] = {}
        self._connect = connect
        self.clock = clock
        self._probed_s = clock()
        try:
            for switch in topology.switches:
                self.lines[switch.name] = SwitchState(connect(switch, None), clock())
        except BaseException:
            self.close()
            raise

    @property
    def clean(self) -> bool:
        """Whether the switches have the entries of the current jobs, and no others."""
        return self.suspended is None and not any(line.session.dirty for line in self.lines.values())

    def close(self) -> None:
        for line in self.lines.values():
            line.session.close()

    def reconnect(self, name: str) -> None:
        """Open a new session with one switch.

        Raises:
            SwitchError: see P4RuntimeSession.
        """
        line = self.lines[name]
        line.session.close()
        line.session = self._connect(self.topology.switch(name), RECONNECT_TIMEOUT_S)
        line.answered_s, line.answers, line.asked = self.clock(), True, None

    def probe(self) -> None:
        """Collect the results of earlier probes, and send new ones; does not block."""
        now = self.clock()
        away_s, self._probed_s = now - self._probed_s, now
        for line in self.lines.values():
            if away_s > AWAY_S:
                line.answered_s += away_s
            if line.asked is None or line.asked.done():
                if line.session.answered(line.asked):
                    line.answered_s = now
                line.asked = line.session.probe()
            line.answers = now - line.answered_s < NOTICE_S
            if not line.answers:
                line.session.interrupt()

    def push(self, elements: int, anew: bool) -> bool:
        """Make every switch run the program for so many elements per packet; returns whether one was pushed, which
        ends the jobs of an earlier controller.

        Raises:
            ArtifactError: there is no such program for a switch.
        """
        pushed = [self._push(switch, elements, anew) for switch in self.topology.switches]
        if any(pushed) and not all(pushed):
            # One switch has been restarted: the other switches' entries belong to jobs that cannot go on.
            for switch in self.topology.switches:
                self._push(switch, elements, anew=True)
        self.cables = CableWatch(self.topology, self.session_of, elements, self.clock)
        return any(pushed)

    def _push(self, switch: Switch, elements: int, anew: bool) -> bool:
        line = self.lines[switch.name]
        pushed = line.session.push(
            load_artifact(elements, target=switch.kind), OwnEntries.of(switch, self.topology), anew
        )
        line.answered_s = self.clock()
        return pushed

    def reconcile(self, jobs: Iterable[Job]) -> None:
        """Make every switch have the entries of these jobs, as far as they are ready, and no others.

        Raises:
            SwitchError: a switch refused that, or is gone; others may have been reconciled.
        """
        by_job = [shares(job, self.topology) for job in jobs if job.state == "ready"]
        for switch in self.topology.switches:
            here = [parts[switch.name] for parts in by_job if switch.name in parts]
            self.lines[switch.name].session.reconcile(here, OwnEntries.of(switch, self.topology))

    def session_of(self, name: str) -> P4RuntimeSession | None:
        """The session with a switch that is up; None if it is down."""
        line = self.lines[name]
        return line.session if self.suspended is None and line.up else None

    def answers(self, name: str) -> bool:
        """Whether a switch has answered a probe just now."""
        line = self.lines.get(name)
        return line is not None and line.up and self.clock() - line.answered_s < JUST_NOW_S

    def require_up(self) -> None:
        """Raise SwitchError naming a switch that is gone."""
        if self.suspended is not None:
            raise SwitchError(self.suspended)
        for line in self.lines.values():
            if not line.up:
                raise SwitchError(f"the switch at {line.session.p4rt} is gone, or does not answer: try again later")

    # ---- jobs: JobEntries (controller/jobs/job.py) ---------------------------------------------------------------------

    def install(self, job: Job) -> None:
        """Install a job's entries, parents first, so that a leaf's first sum finds its slot; all switches or none."""
        self.require_up()
        by_switch = shares(job, self.topology)
        done: list[str] = []
        try:
            for name, parts in by_switch.items():
                self.lines[name].session.install(parts)
                done.append(name)
        except SwitchError:
            for name in reversed(done):
                self._remove(name, by_switch[name])
            raise

    def remove(self, job: Job) -> None:
        """Remove a job's entries, leaves first. A switch on which that fails is dirty, and will be restarted."""
        for name, parts in reversed(shares(job, self.topology).items()):
            self._remove(name, parts)

    def _remove(self, name: str, parts: list[Any]) -> None:
        line = self.lines[name]
        if self.suspended is not None or not line.up:
            line.session.dirty = True
            return
        with contextlib.suppress(SwitchError):  # The session is marked dirty.
            line.session.remove(parts)

    # ---- counters ---------------------------------------------------------------------------------------------

    def describe(self) -> list[dict[str, Any]]:
        """Per switch: name, parent, p4rt, program, up, restarts, events, drops, ports. Counters of a dead switch are
        empty.
        """
        return [self._describe(switch) for switch in self.topology.switches]

    def describe_cables(self) -> list[dict[str, Any]]:
        """Per direction of each cable between switches: sender, receiver, state, found, text."""
        return [] if self.cables is None else [{**asdict(c), "text": str(c)} for c in self.cables.cables]

    def _describe(self, switch: Switch) -> dict[str, Any]:
        line = self.lines[switch.name]
        events: dict[str, int] = {}
        drops: dict[str, int] = {}
        ports: dict[int, dict[str, int]] = {}
        up = line.up
        if up:
            try:
                events, drops = line.session.counts()
                ports = line.session.ports()
            except SwitchError:
                # It counts as not answering until it answers a probe.
                up = line.answers = False
                line.answered_s = min(line.answered_s, self.clock() - NOTICE_S)
        return {
            "name": switch.name,
            "parent": switch.parent,
            "p4rt": switch.p4rt,
            "program": line.session.program,
            "up": up,
            "restarts": line.restarts,
            "events": events,
            "drops": drops,
            "ports": {str(number): counts for number, counts in sorted(ports.items())},
        }
