"""Wires to other switches, on UDP sockets: datagrams are whole Ethernet frames (runtime/ports/wire.h)."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from emulation.errors import PortError
from emulation.switch.ports.port_sockets import reason, udp_socket
from emulation.switch.ports.port_spec import Endpoint, Kind

UNKNOWN = Endpoint("0.0.0.0", 0)


@dataclass(frozen=True, slots=True)
class Wire:
    """One end of a wire.

    Attributes:
        bind: of this end; port 0: any.
        peer: the other end; None for whoever sends first.
    """

    LISTED: ClassVar[str | None] = "wires"
    bind: Endpoint
    peer: Endpoint | None = None

    @classmethod
    def parse(cls, ends: Sequence[str], options: Mapping[str, str]) -> Wire:
        return cls(*map(Endpoint.parse, ends))

    def open(self) -> OpenWire:
        sock = udp_socket(self.bind)
        if self.peer is not None:
            try:
                sock.sendto(b"", (self.peer.address, self.peer.port))  # So that it knows where this end is.
            except OSError as error:
                sock.close()
                raise PortError(f"cannot reach the other end {self.peer}: {reason(error)}") from error
        return OpenWire(sock, self.peer)


@dataclass(frozen=True, slots=True)
class OpenWire:
    """A bound end."""

    socket: socket.socket
    peer: Endpoint | None

    def attach(self, library: ctypes.CDLL, port: Sequence[Any], destination: Endpoint | None) -> int:
        return int(library.nf_wire_port(*port, *(self.peer or UNKNOWN).as_c()))

    def close(self) -> None:
        self.socket.close()


KIND = Kind(
    name="wire",
    form="wire:ADDRESS:PORT[,ADDRESS:PORT]",
    summary="wire:ADDRESS:PORT, a wire to another switch (its other end after a comma, unless that one sends first)",
    parse=Wire.parse,
    most_ends=2,
)
