"""The address that the HTTP API listens on."""

from __future__ import annotations

from controller.errors import ControllerError


def parse_listen_address(http: str) -> tuple[str, int]:
    """Parse ADDRESS:PORT.

    Raises:
        ControllerError: the text is not of that form.
    """
    address, _, port = http.rpartition(":")
    if not address or not (port.isdecimal() and port.isascii()) or int(port) > 65535:
        raise ControllerError(f"--http {http!r} is not ADDRESS:PORT (as in 127.0.0.1:9339)")
    return address, int(port)
