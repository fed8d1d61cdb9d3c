"""Running as a systemd service: the unit file, and telling systemd how far the controller is."""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
from pathlib import Path

UNIT = Path(__file__).with_name("netfold-controller.service")


CREDENTIALS = "CREDENTIALS_DIRECTORY"
CERTIFICATE_FILES = ("ca.pem", "server.pem", "server.key", "client.pem", "client.key")


def unit(config: Path, certificates: Path | None = None) -> str:
    """The unit file of a controller with this configuration, of the Python that runs now.

    Args:
        certificates: folder of those that the configuration names. Its keys are their owner's alone, and the service has
            a user of its own: systemd reads them for it (systemd.exec(5), LoadCredential).
    """
    command = [sys.executable, "-m", "controller", "run", "--config", str(config.absolute())]
    # systemd expands % and $ in commands.
    line = shlex.join(command).replace("%", "%%").replace("$", "$$")
    folder = None if certificates is None else str(certificates.absolute()).replace("%", "%%")
    loaded = "" if folder is None else "".join(f"LoadCredential={name}:{folder}/{name}\n" for name in CERTIFICATE_FILES)
    return UNIT.read_text().replace("{command}", line).replace("{credentials}\n", loaded)


def credentials() -> Path | None:
    """The folder in which systemd has put the certificates that the unit names; None if it names none."""
    folder = Path(os.environ.get(CREDENTIALS, ""))
    return folder if folder.is_absolute() and (folder / CERTIFICATE_FILES[0]).is_file() else None


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
