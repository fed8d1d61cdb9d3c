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
from emulation.switch.compiler.cc import require_compiler
from emulation.switch.compiler.crc import CrcSetting
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from emulation.switch.p4runtime.server import SwitchService, serve
from emulation.switch.ports.open_port import OpenPort, open_ports
from emulation.switch.ports.port_spec import Endpoint, PortSpec
from hostlib.system.certificate_folder import CertificateFolder
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
        trace: log the processing of each packet to standard error.
        cpu_port: its output goes to the controllers, and their packet-outs enter by it; 0 for none.
        exit_when_idle_s: exit after this time without controllers and packets; None for never.
        crcs: parameters of custom CRCs, for any program.
        certificates: for P4Runtime over TLS; None speaks plain text.
        report_every_s: interval of reports of the ports' and program's counters, while there is a program; None for
            none.
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
    certificates: CertificateFolder | None = None


class _Interrupted(BaseException):
    """A signal arrived while the program was being compiled."""


class _Stopping:
    """Handler of SIGTERM and SIGINT: sets `event`, and interrupts interruptible()."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self._interruptible = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def _stop(self, number: int, frame: FrameType | None) -> None:
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
    stopping = _Stopping()
    require_compiler()  # Fail now rather than when the first controller connects.
    with ExitStack() as stack:
        ports = open_ports(config.ports, SPARE_FILES)
        for port in ports:
            stack.callback(port.close)

        def replace(new: Pipeline, old: Pipeline | None) -> None:
            if old is not None:
                old.dataplane.close()
            new.dataplane.attach(ports, config.destination)
            new.dataplane.start()

        service = SwitchService(config.device_id, replace, config.cpu_port, config.trace, config.crcs)
        stack.callback(service.close)
        if config.program is not None and config.p4info is not None:
            load = partial(_load, config.program, config.p4info, config.trace, config.crcs)
            if (pipeline := stopping.interruptible(load)) is None:
                return
            service.commit(pipeline)
        server, p4rt_port = serve(service, str(config.p4rt), config.certificates)
        stack.callback(lambda: server.stop(grace=0.2).wait())
        if config.ready_file is not None:
            stack.callback(config.ready_file.unlink, missing_ok=True)
            write_whole(config.ready_file, _ready(config, ports, p4rt_port))
        if announce is not None:
            announce(_ready(config, ports, p4rt_port))
        _wait(stopping.event, service, config, report)
        if config.report_every_s is not None:
            _report(service, config, report)


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


def _load(program: Path, p4info: Path, trace: bool, crcs: tuple[CrcSetting, ...]) -> Pipeline:
    try:
        return Pipeline(load_config(read_bytes(program), read_text(p4info)), trace, crcs)
    except (OSError, UnicodeDecodeError) as error:
        raise PortError(f"cannot read {program} and {p4info}: {error}") from error


def _wait(
    stopping: threading.Event, service: SwitchService, config: SwitchConfig, report: Callable[[dict[str, Any]], None]
) -> None:
    last_activity, idle_since = -1, time.monotonic()
    every_s = config.report_every_s or math.inf
    report_at = time.monotonic() + every_s
    while not stopping.wait(max(0.0, min(POLL_S, report_at - time.monotonic()))):
        now = time.monotonic()
        if now >= report_at:
            report_at = max(report_at + every_s, now)
            _report(service, config, report)
        running = service.pipeline
        activity = running.dataplane.activity() if running is not None else 0
        if service.streams > 0 or activity != last_activity:
            last_activity, idle_since = activity, now
        elif config.exit_when_idle_s is not None and now - idle_since > config.exit_when_idle_s:
            return


def _report(service: SwitchService, config: SwitchConfig, report: Callable[[dict[str, Any]], None]) -> None:
    running = service.pipeline
    counted = running.dataplane.statistics([spec.number for spec in config.ports]) if running is not None else None
    if counted is not None:
        report({"time_s": round(time.time(), 3), **counted})
