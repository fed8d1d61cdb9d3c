"""Ports to hosts on UDP sockets: datagrams get the headers that a NIC would deliver (runtime/ports/udp.h)."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from emulation.switch.ports.port_sockets import udp_socket
from emulation.switch.ports.port_spec import Endpoint, Kind


@dataclass(frozen=True, slots=True)
class UdpSocket:
    """A UDP socket at `bind`; port 0: any."""

    LISTED: ClassVar[str | None] = "ports"
    bind: Endpoint

    @classmethod
    def parse(cls, ends: Sequence[str], options: Mapping[str, str]) -> UdpSocket:
        return cls(Endpoint.parse(ends[0]))

    def open(self) -> OpenUdpSocket:
        return OpenUdpSocket(udp_socket(self.bind))


@dataclass(frozen=True, slots=True)
class OpenUdpSocket:
    """A bound one."""

    socket: socket.socket

    def attach(self, library: ctypes.CDLL, port: Sequence[Any], destination: Endpoint | None) -> int:
        inside = destination or Endpoint(*self.socket.getsockname())
        return int(library.nf_udp_port(*port, *inside.as_c()))

    def close(self) -> None:
        self.socket.close()


KIND = Kind(
    name="udp",
    form="udp:ADDRESS:PORT (as in 1=udp:127.0.0.1:9001)",
    summary="udp:ADDRESS:PORT, a UDP socket to a host",
    parse=UdpSocket.parse,
)
