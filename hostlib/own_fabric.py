"""A fabric of one's own: an embedded switch and a controller as processes that end with what started them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hostlib.errors import FabricError, HostlibError
from hostlib.hosts import FABRIC_ADDRESS, Hosts
from hostlib.namespace import orphaned
from hostlib.zygote import die_with_parent

START_S = 90.0
STOP_S = 10.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Faults:
    """What the embedded switch does to packets, per port and direction.

    Attributes:
        delay: of every frame, as `emulation switch` takes it (2ms); None for none.
        seed: of what is drawn.
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

    @property
    def given(self) -> list[str]:
        """The options that ask for something."""
        return [f"--{name}" for name in ("loss", "duplicate", "reorder", "corrupt", "delay") if getattr(self, name)]

    def options(self) -> list[str]:
        """Of `emulation switch`."""
        names = ("loss", "duplicate", "reorder", "corrupt", "seed")
        delay = ["--delay", self.delay] if self.delay else []
        return [word for name in names for word in (f"--{name}", str(getattr(self, name)))] + delay


@contextmanager
def own_fabric(hosts: Hosts, faults: Faults) -> Iterator[str]:
    """A switch with a port for each host and its controller, for as long as the block runs; the controller's URL.

    Raises:
        FabricError: one of them did not start; the message is its own.
    """
    for left in Path(tempfile.gettempdir()).glob("netfold-fabric-*"):
        if orphaned(left.name):
            shutil.rmtree(left, ignore_errors=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f"netfold-fabric-{os.getpid()}-")))
        ready = folder / "switch.json"
        options = ["--p4rt", "127.0.0.1:0", "--ready-file", str(ready), *faults.options(), *hosts.switch_ports()]
        switch = stack.enter_context(_running(hosts, "emulation", ["switch", *options], folder / "switch.log"))
        said = _wait(switch, ready, folder / "switch.log", "the embedded switch")
        described = {"name": "switch", "p4rt": said["p4rt"], "device_id": said["device_id"], "address": FABRIC_ADDRESS}
        topology = folder / "topology.json"
        topology.write_text(json.dumps({"switches": [{**described, **hosts.fabric(said)}]}))
        options = ["--http", f"{hosts.control_address}:0", "--topology", str(topology), "--state-dir", str(folder)]
        controller = stack.enter_context(
            _running(hosts, "controller", ["start", "--foreground", *options], folder / "controller.log")
        )
        yield _wait(controller, folder / "controller.json", folder / "controller.log", "the controller")["http"]


@contextmanager
def _running(hosts: Hosts, module: str, arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    space = hosts.space(None)
    enter = [] if space is None else ["ip", "netns", "exec", space]
    with log.open("wb") as said:
        child = subprocess.Popen(
            [*enter, sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait(child: subprocess.Popen[bytes], ready: Path, log: Path, what: str) -> dict[str, Any]:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up:
        if ready.exists():
            return dict(json.loads(ready.read_text()))
        if child.poll() is not None:
            lines = [line for line in log.read_text().splitlines() if line.strip()]
            reason = lines[-1].removeprefix("error: ") if lines else f"exit code {child.returncode}"
            raise FabricError(f"{what} did not start: {reason}")
        time.sleep(POLL_S)
    raise FabricError(f"{what} was not ready within {START_S:.0f} s")
