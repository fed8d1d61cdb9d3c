"""Wires to other switches, on UDP sockets: datagrams are whole Ethernet frames (runtime/ports/wire.h)."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, ClassVar

from emulation.errors import PortError
from emulation.switch.ports.port_sockets import reason, udp_socket
from emulation.switch.ports.port_spec import Endpoint, Kind

# struct sockaddr_in: the family in the machine's byte order, port and address in the network's.
FAMILY, SOCKET_ADDRESS = struct.Struct("=H"), struct.Struct(">H4s8x")


@dataclass(frozen=True, slots=True)
class Wire:
    """One end of a wire.

    Attributes:
        bind: of this end; port 0: any.
        peer: the other end, from which alone frames are taken; None for whoever sends first.
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
        return OpenWire(sock, _socket_address(self.peer))


def _socket_address(peer: Endpoint | None) -> ctypes.Array[ctypes.c_char]:
    where = Endpoint("0.0.0.0", 0) if peer is None else peer
    packed = SOCKET_ADDRESS.pack(where.port, IPv4Address(where.address).packed)
    return ctypes.create_string_buffer(FAMILY.pack(socket.AF_INET) + packed, FAMILY.size + SOCKET_ADDRESS.size)


@dataclass(frozen=True, slots=True)
class OpenWire:
    """A bound end.

    Attributes:
        peer: struct sockaddr_in of the other end: what one program has learnt, the next one knows.
    """

    socket: socket.socket
    peer: ctypes.Array[ctypes.c_char]

    def attach(self, library: ctypes.CDLL, port: Sequence[Any], destination: Endpoint | None) -> int:
        return int(library.nf_wire_port(*port, self.peer))

    def close(self) -> None:
        self.socket.close()


KIND = Kind(
    name="wire",
    form="wire:ADDRESS:PORT[,ADDRESS:PORT]",
    summary="wire:ADDRESS:PORT, a wire to another switch (its other end after a comma, or else whoever sends first; nobody "
    "else's frames are taken)",
    parse=Wire.parse,
    most_ends=2,
)
