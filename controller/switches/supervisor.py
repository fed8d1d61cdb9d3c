"""Supervise the switches: detect a dead, stalled or inconsistent one, and recover the fabric.

Recovery covers everything: every switch gets the program again, and running jobs are over. Jobs start in a new epoch,
so no state of the old one needs to be known.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from controller.errors import ControllerError, DeposedError, ElectionError, SwitchError
from controller.events.event_log import Kind
from controller.http.service import Service
from controller.repeated_warning import RepeatedWarning
from controller.switches.embedded import Switches
from controller.switches.fleet import RECONNECT_TIMEOUT_S, SwitchFleet, SwitchState

PROBE_EVERY_S = 0.25
RETRY_EVERY_S = 1.0
SILENT_S = 5.0  # A switch that is silent for this long counts as dead.
STOP_S = 15.0

log = logging.getLogger(__name__)


class Supervisor:
    """A thread that supervises the switches.

    Args:
        switches: those that the controller started are killed and restarted; it waits for the others.
        network: the sessions. No other thread opens, closes or pushes while this one runs.
        service: its lock is held to end jobs and to publish changes, never while waiting for a switch.
        changed: called when a process was started.
        require: called before it acts; raises a StateError if this controller may not act any more.
    """

    def __init__(
        self,
        switches: Switches,
        network: SwitchFleet,
        elements: int,
        service: Service,
        changed: Callable[[], None],
        require: Callable[[], None] = lambda: None,
    ) -> None:
        self._switches = switches
        self._require = require
        self._network = network
        self._elements = elements
        self._service = service
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="supervisor", daemon=True)
        switches.changed = changed

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; closes the sessions if it is waiting for a switch."""
        self._ended.set()
        self._thread.join(2 * RECONNECT_TIMEOUT_S)
        give_up = time.monotonic() + STOP_S
        while self._thread.is_alive() and time.monotonic() < give_up:
            self._network.close()
            self._thread.join(0.1)

    def _run(self) -> None:
        warning = RepeatedWarning(log)
        pause_s = PROBE_EVERY_S
        while not self._ended.wait(pause_s):
            pause_s = PROBE_EVERY_S
            try:
                self.look()
            except DeposedError:
                continue  # It ends soon.
            except ControllerError as error:
                if not self._ended.is_set():
                    warning(error)
                pause_s = RETRY_EVERY_S
            except Exception:
                # Catch everything: an unsupervised fabric would be worse.
                log.exception("supervision of the switches failed; trying again")
                pause_s = RETRY_EVERY_S

    def look(self) -> None:
        """Probe all switches once, and recover the fabric if one needs it.

        Raises:
            SwitchError: it cannot be recovered yet.
            StateError: another controller is the primary.
        """
        self._require()
        self._network.probe()
        for name, line in self._network.lines.items():
            lost = self._dead(name, line) or not line.session.up
            if lost:
                # End writes whose threads may hold the service's lock.
                line.session.close()
            if lost or (line.session.dirty and line.answers):
                if not line.failed and not self._ended.is_set():
                    log.warning("the switch %s at %s failed: jobs at work end", name, line.session.p4rt)
                    text = f"the switch {name} at {line.session.p4rt} failed: jobs at work end"
                    self._service.events.append("switch-down", text, switch=name)
                line.failed = True
        if any(line.failed for line in self._network.lines.values()):
            self._suspend()
            self._bring_back()
        self._look_at_cables()

    def _look_at_cables(self) -> None:
        watch = self._network.cables
        for before, now in watch.look() if watch is not None else ():
            if now.wrong or before.wrong:
                kind: Kind = "cable-wrong" if now.wrong else "cable-right"
                log.warning("%s", now)
                self._service.events.append(kind, str(now), switch=now.sender.switch)

    def _dead(self, name: str, line: SwitchState) -> bool:
        process = self._switches.processes.get(name)
        return (process is not None and not process.alive) or self._network.clock() - line.answered_s > SILENT_S

    def _suspend(self) -> None:
        if self._network.suspended is None:
            gone = ", ".join(name for name, line in self._network.lines.items() if line.failed)
            self._network.suspended = f"the switch {gone} failed and is not back yet: try again later"
            with self._service.changing(f"the switch {gone} failed") as jobs:
                jobs.abandon()

    def _bring_back(self) -> None:
        network, switches = self._network, self._switches
        for name, line in network.lines.items():
            if line.failed:
                self._renew(name, line)
        network.topology = switches.topology
        for name, line in network.lines.items():
            if not line.session.up:
                self._require_going_on()
                self._reconnect(name, line)
        self._require_going_on()
        network.push(self._elements, anew=True)
        with self._service.changing() as jobs:
            self._service.endpoints.clear()
            self._service.endpoints.update(network.topology.endpoints)
            for name, line in network.lines.items():
                if line.failed:
                    text = f"the switch {name} at {line.session.p4rt} is back"
                    self._service.events.append("switch-up", text, switch=name)
                line.restarts += line.failed
                line.failed = False
            network.suspended = None
            jobs.changed()
        log.warning("all switches are back")

    def _reconnect(self, name: str, line: SwitchState) -> None:
        """Open a new session. If another controller has a switch that this one started, the switch is restarted."""
        try:
            self._network.reconnect(name)
        except ElectionError as error:
            if name not in self._switches.processes:
                raise
            log.warning("%s; it is restarted", error)
            self._restart(name, line)
            raise SwitchError(f"the switch {name} is restarted, because it had another controller") from error

    def _renew(self, name: str, line: SwitchState) -> None:
        """Restart a dead switch if the controller started it."""
        if name in self._switches.processes and self._dead(name, line):
            self._restart(name, line)

    def _restart(self, name: str, line: SwitchState) -> None:
        self._require_going_on()
        before = self._switches.topology
        self._switches.restart(name, self._ended)
        if self._switches.topology != before:
            # All switches have been replaced.
            for other in self._network.lines.values():
                other.session.close()
                other.failed, other.answered_s = True, self._network.clock()
        line.answered_s = self._network.clock()

    def _require_going_on(self) -> None:
        if self._ended.is_set():
            raise SwitchError("the controller is ending")
        self._require()
