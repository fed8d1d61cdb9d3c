"""Running as a systemd service: the unit file, and telling systemd how far the controller is."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from pathlib import Path

UNIT = Path(__file__).with_name("netfold-controller.service")


def unit(config: Path) -> str:
    """The unit file of a controller with this configuration, of the Python that runs now."""
    command = [sys.executable, "-m", "controller", "run", "--config", str(config.absolute())]
    # systemd expands % and $ in commands.
    line = shlex.join(command).replace("%", "%%").replace("$", "$$")
    return UNIT.read_text().replace("{command}", line)


def notify(message: str) -> None:
    """Tell systemd, if it started this process with Type=notify.

    Source: sd_notify(3), "Standalone Implementations".
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.connect(address.replace("@", "\0", 1) if address[0] == "@" else address)
        to.sendall(message.encode())
