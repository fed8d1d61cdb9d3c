"""The embedded switch as a process: ports, P4Runtime server and packet loop."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from emulation.errors import PortError
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import require_compiler
from emulation.switch.compiler.crc import CrcSetting
from emulation.switch.dataplane import MOST_PRIORITIES, Dataplane
from emulation.switch.p4runtime.pipeline import Pipeline, compiled, load_config
from emulation.switch.p4runtime.server import SwitchService, serve
from emulation.switch.ports.capture import captures
from emulation.switch.ports.open_port import OpenPort, open_ports
from emulation.switch.ports.port_spec import Endpoint, PortSpec
from emulation.switch.tls import Tls
from hostlib.system.process import write_whole
from hostlib.system.user_file import read_bytes, read_text

POLL_S = 0.2
SPARE_FILES = 64  # files that gRPC needs: it hangs if it cannot open them
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SwitchConfig:
    """Options of a switch.

    Attributes:
        destination: destination address in rebuilt headers of UDP ports; None for each port's own address.
        p4info: without it a program runs from the start, and controllers find none until they set one.
        trace: log the processing of each packet to standard error.
        cpu_port: its output goes to the controllers, and their packet-outs enter by it; 0 for none.
        exit_when_idle_s: exit after this time without controllers and packets; None for never.
        crcs: parameters of custom CRCs, for any program.
        tls: of P4Runtime; None speaks plain text.
        captures: folder for each port's frames in files; see ports/capture.py.
        priorities, trust_dscp: queues of a port with a rate, and which of them a frame joins; see Dataplane.attach.
        report_every_s: interval of reports of the ports' and program's counters, while there is a program; None for
            none.

    Raises:
        PortError: a port is the controllers' and a link at once.
    """

    p4rt: Endpoint
    ports: list[PortSpec]
    device_id: int = 1
    program: Path | None = None
    p4info: Path | None = None
    destination: Endpoint | None = None
    ready_file: Path | None = None
    exit_when_idle_s: float | None = None
    cpu_port: int = 0
    trace: bool = False
    crcs: tuple[CrcSetting, ...] = ()
    report_every_s: float | None = None
    tls: Tls | None = None
    captures: Path | None = None
    priorities: int = MOST_PRIORITIES
    trust_dscp: bool = False

    def __post_init__(self) -> None:
        if self.cpu_port and any(spec.number == self.cpu_port for spec in self.ports):
            raise PortError(f"port {self.cpu_port} cannot be the controllers' and a link at once")


class _Interrupted(BaseException):
    """A signal arrived while the program was being compiled."""


class Stopping:
    """Handler of SIGTERM and SIGINT: sets `event`, and interrupts interruptible()."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._interruptible = self._signalled = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        # The next signal may come in the middle of this, and would wait for ever for the event's lock.
        if not self._signalled:
            self._signalled = True
            self.event.set()
        if self._interruptible:
            self._interruptible = False
            raise _Interrupted

    def interruptible(self, work: Callable[[], T]) -> T | None:
        """Return the result of `work`, or None if interrupted; `work` takes long and leaves nothing behind."""
        with suppress(_Interrupted):
            self._interruptible = True
            try:
                return None if self.event.is_set() else work()
            finally:
                self._interruptible = False
        return None


class _Running:
    """The program whose packets are processed, if there is one.

    Args:
        attach: gives a program the ports. Raises PortError: it cannot have them.
    """

    def __init__(self, attach: Callable[[Dataplane], None]) -> None:
        self._attach = attach
        self._dataplane: Dataplane | None = None

    def replace(self, new: Dataplane) -> None:
        """Run this program instead. Raises PortError: it cannot have the ports; then none runs."""
        self.close()
        self._attach(new)
        new.start()
        self._dataplane = new

    def close(self) -> None:
        if self._dataplane is not None:
            self._dataplane.close()
            self._dataplane = None

    def activity(self) -> int:
        """A number that changes while packets arrive."""
        running = self._dataplane
        return 0 if running is None else running.activity()

    def report(self, config: SwitchConfig, report: Callable[[dict[str, Any]], None]) -> None:
        """Report the counters, if a program runs."""
        running = self._dataplane
        counted = None if running is None else running.statistics([spec.number for spec in config.ports])
        if counted is not None:
            report({"time_s": round(time.time(), 3), **counted})


def run_switch(
    config: SwitchConfig,
    report: Callable[[dict[str, Any]], None] = lambda counted: None,
    announce: Callable[[dict[str, Any]], None] | None = None,
) -> None:
    """Run until SIGTERM or SIGINT, or until it has been idle for long enough.

    Args:
        report: called every `report_every_s` and at the end with Dataplane.statistics and `time_s`, seconds since the
            epoch.
        announce: called once everything listens, with what the ready file says.

    Raises:
        EmulationError: it could not start; nothing is left open.
    """
    stopping = Stopping()
    require_compiler()  # Fail now rather than when the first controller connects.
    with ExitStack() as stack:
        ports = open_ports(config.ports, SPARE_FILES)
        for port in ports:
            stack.callback(port.close)
        files = captures(config.captures, ports)
        for each in files:
            stack.callback(each.close)
        queues = config.priorities, config.trust_dscp
        running = _Running(lambda new: new.attach(ports, config.destination, files, *queues))
        stack.callback(running.close)
        service = SwitchService(
            config.device_id,
            lambda new, old: running.replace(new.dataplane),
            config.cpu_port,
            partial(Pipeline, trace=config.trace, crcs=config.crcs),
        )
        stack.callback(service.close)
        if config.program is not None:
            load = partial(_load, config.program, config.p4info, config.trace, config.crcs)
            if (loaded := stopping.interruptible(load)) is None:
                return
            if isinstance(loaded, Pipeline):
                service.commit(loaded)
            else:
                loaded.cpu_port(config.cpu_port)
                running.replace(loaded)
        server, p4rt_port = serve(service, str(config.p4rt), config.tls)
        stack.callback(lambda: server.stop(grace=0.2).wait())
        if config.ready_file is not None:
            stack.callback(config.ready_file.unlink, missing_ok=True)
            write_whole(config.ready_file, _ready(config, ports, p4rt_port))
        if announce is not None:
            announce(_ready(config, ports, p4rt_port))
        _wait(stopping.event, service, running, config, report)
        if config.report_every_s is not None:
            running.report(config, report)


def _ready(config: SwitchConfig, ports: Sequence[OpenPort], p4rt_port: int) -> dict[str, Any]:
    """The contents of the ready file."""
    listed = {
        name: {str(port.number): str(port.endpoint) for port in ports if name == port.spec.place.LISTED}
        for name in ("ports", "wires")
    }
    return {
        "pid": os.getpid(),
        "p4rt": f"{config.p4rt.address}:{p4rt_port}",
        "device_id": config.device_id,
        **listed,
        "program": str(config.program) if config.program else None,
    }


def _load(program: Path, p4info: Path | None, trace: bool, crcs: tuple[CrcSetting, ...]) -> Pipeline | Dataplane:
    """A program from its files; without P4Info, nothing that a controller could write to."""
    try:
        if p4info is None:
            return compiled(Program(read_bytes(program)), trace, crcs)
        return Pipeline(load_config(read_bytes(program), read_text(p4info)), trace, crcs)
    except (OSError, UnicodeDecodeError) as error:
        raise PortError(f"cannot read {program}{'' if p4info is None else f' and {p4info}'}: {error}") from error


def _wait(
    stopping: threading.Event,
    service: SwitchService,
    running: _Running,
    config: SwitchConfig,
    report: Callable[[dict[str, Any]], None],
) -> None:
    last_activity, idle_since = -1, time.monotonic()
    every_s = config.report_every_s or math.inf
    report_at = time.monotonic() + every_s
    while not stopping.wait(max(0.0, min(POLL_S, report_at - time.monotonic()))):
        now = time.monotonic()
        if now >= report_at:
            report_at = max(report_at + every_s, now)
            running.report(config, report)
        activity = running.activity()
        if service.streams > 0 or activity != last_activity:
            last_activity, idle_since = activity, now
        elif config.exit_when_idle_s is not None and now - idle_since > config.exit_when_idle_s:
            return
