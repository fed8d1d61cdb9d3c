"""A local fabric: an embedded switch and a controller as child processes."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostlib.errors import FabricError, HostlibError
from hostlib.launch.hosts import Hosts
from hostlib.protocol.addresses import FABRIC_ADDRESS
from hostlib.protocol.header import ELEMENTS
from hostlib.system.network_namespace import orphaned
from hostlib.system.process import StartError, running
from hostlib.text import units

AT_THE_END = "3600s"  # before which the switch reports its counters, unless it runs for longer


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults that the embedded switch injects, per port and direction.

    Attributes:
        delay: of every frame, as `emulation switch` takes it (2ms); None for none.
        seed: of the random choices.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    delay: str | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder", "corrupt"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise HostlibError(f"--{name} must be a probability in [0, 1), not {getattr(self, name)}")
        if self.delay is not None:
            units.time_ns(self.delay, "--delay", bare="s")

    @property
    def flags(self) -> list[str]:
        """The options that request a fault."""
        return [f"--{name}" for name in ("loss", "duplicate", "reorder", "corrupt", "delay") if getattr(self, name)]

    def options(self) -> list[str]:
        """Options of `emulation switch`."""
        names = ("loss", "duplicate", "reorder", "corrupt", "seed")
        delay = ["--delay", self.delay] if self.delay else []
        return [word for name in names for word in (f"--{name}", str(getattr(self, name)))] + delay


@contextmanager
def local_fabric(
    hosts: Hosts,
    faults: Faults,
    elements: int = ELEMENTS,
    counted: Callable[[dict[str, Any]], None] | None = None,
) -> Iterator[str]:
    """Run a switch with a port for each host, and its controller, for the duration of the block; yields the
    controller's URL.

    Args:
        elements: in a packet.
        counted: called at the end with the counters of the switch (emulation.switch.dataplane), if it ended in order.

    Raises:
        FabricError: one of them did not start; with its own message.
    """
    for left in Path(tempfile.gettempdir()).glob("netfold-fabric-*"):
        if orphaned(left.name):
            shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"netfold-fabric-{os.getpid()}-")))
        ready = folder / "switch.json"
        options = ["--p4rt", "127.0.0.1:0", "--ready-file", str(ready), *faults.options(), *hosts.switch_ports()]
        options.append("--trust-dscp")  # as emulated networks' switches do
        if counted is not None:
            options += ["--stats-every", AT_THE_END]
            stack.callback(_report, ready.with_suffix(".log"), counted)
        switch = stack.enter_context(_running(hosts, "the embedded switch", ["emulation", "switch", *options], ready))
        described = {
            "name": "switch",
            "p4rt": switch["p4rt"],
            "device_id": switch["device_id"],
            "address": FABRIC_ADDRESS,
        }
        topology, state = folder / "topology.json", folder / "controller.json"
        topology.write_text(json.dumps({"switches": [{**described, **hosts.fabric(switch)}]}))
        options = ["--http", f"{hosts.control_address}:0", "--topology", str(topology), "--state-dir", str(folder)]
        options += ["--elements", str(elements)]
        start = ["controller", "start", "--foreground", "--trusted-network", *options]
        yield stack.enter_context(_running(hosts, "the controller", start, state))["http"]


def _report(log: Path, counted: Callable[[dict[str, Any]], None]) -> None:
    lines = [line for line in log.read_text().splitlines() if line.startswith("{")] if log.exists() else []
    if lines:
        counted(json.loads(lines[-1]))


@contextmanager
def _running(hosts: Hosts, what: str, arguments: list[str], ready: Path) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", *arguments]
    with ExitStack() as stack:
        try:
            process = running(command, ready, ready.with_suffix(".log"), what=what, space=hosts.space(None))
            described = stack.enter_context(process)
        except StartError as error:
            raise FabricError(str(error)) from error
        yield described
