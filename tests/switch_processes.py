"""Switches and controllers that a test starts by itself, one by one, and wires between them."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hostlib.protocol import constants
from hostlib.system.process import start


def free_ports(count: int, kind: socket.SocketKind) -> list[int]:
    """Numbers of ports of loopback that nobody has."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket(socket.AF_INET, kind)) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def run_process(
    stack: ExitStack, folder: Path, name: str, words: list[str], ready: Path
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start `python -m WORDS`, which ends with the stack; the process, and its ready file's contents."""
    starting = start([sys.executable, "-m", *words], ready, folder / f"{name}.log", what=name)
    stack.callback(starting.child.wait)
    stack.callback(starting.child.terminate)
    return starting.child, dict(starting.wait())


def run_switch(
    stack: ExitStack,
    folder: Path,
    name: str,
    address: str,
    *ports: str,
    kind: str = "switch",
    p4rt: str = "127.0.0.1:0",
) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    """Start `emulation KIND` with ports as its --port takes them; see run_process."""
    ready = folder / f"{name}.json"
    words = ["emulation", kind, "--p4rt", p4rt, "--ready-file", str(ready)]
    words += ["--udp-destination", f"{address}:{constants.NETFOLD_UDP_PORT}"]
    return run_process(stack, folder, name, [*words, *(word for port in ports for word in ("--port", port))], ready)


def in_topology(name: str, started: dict[str, Any], address: str, **more: Any) -> dict[str, Any]:
    """A switch's entry in a topology file, by what its ready file says."""
    known = {key: value for key, value in started.items() if key in ("p4rt", "device_id", "target", "ports")}
    return {"name": name, "address": address, **known, **more}
