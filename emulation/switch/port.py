"""Switch ports on loopback, to hosts and to other switches: one UDP socket each, no root needed."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from emulation.errors import PortError

HIGHEST_PORT = 510  # 511 is v1model's drop port
SOCKET_BUFFER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An IPv4 address and UDP or TCP port."""

    address: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """From `ADDRESS:PORT`.

        Raises:
            PortError: not of that form.
        """
        address, _, port = text.rpartition(":")
        try:
            socket.inet_aton(socket.gethostbyname(address))
            number = int(port)
            if not 0 <= number <= 65535:
                raise ValueError(port)
        except (OSError, ValueError):
            raise PortError(f"{text!r} is not ADDRESS:PORT (as in 127.0.0.1:4793)") from None
        return cls(socket.gethostbyname(address), number)

    def __str__(self) -> str:
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class PortSpec:
    """Port `number` of the switch, on UDP socket `bind`.

    Attributes:
        wire: the port leads to another switch; its datagrams are whole Ethernet frames.
        peer: of a wire: its other end; None for whoever sends first.
    """

    number: int
    bind: Endpoint
    wire: bool = False
    peer: Endpoint | None = None

    @classmethod
    def parse(cls, text: str) -> PortSpec:
        """From `N=udp:ADDRESS:PORT` or `N=wire:ADDRESS:PORT[,ADDRESS:PORT]`.

        Raises:
            PortError: not of that form, or a number that no v1model port can have.
        """
        number, equals, where = text.partition("=")
        kind, colon, endpoints = where.partition(":")
        if not equals or not number.isdigit() or not colon or kind not in ("udp", "wire"):
            raise PortError(
                f"port {text!r} is neither NUMBER=udp:ADDRESS:PORT (as in 1=udp:127.0.0.1:9001) "
                "nor NUMBER=wire:ADDRESS:PORT[,ADDRESS:PORT]"
            )
        if not 0 <= int(number) <= HIGHEST_PORT:
            raise PortError(f"port {number} is not in 0..{HIGHEST_PORT}")
        own, comma, peer = endpoints.partition(",")
        if comma and kind == "udp":
            raise PortError(f"port {text!r}: only a wire has another end")
        return cls(int(number), Endpoint.parse(own), kind == "wire", Endpoint.parse(peer) if comma else None)


@dataclass(frozen=True, slots=True)
class Faults:
    """Probabilities per packet, port and direction, drawn from streams that `seed` determines."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise PortError(f"{name} {getattr(self, name)} is not a probability in [0, 1)")


@dataclass(frozen=True, slots=True)
class OpenPort:
    """A port with its bound socket."""

    number: int
    socket: socket.socket
    wire: bool = False
    peer: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(*self.socket.getsockname())


def open_ports(specs: list[PortSpec]) -> list[OpenPort]:
    """Bind every port, or none.

    Raises:
        PortError: a number is given twice, or an address cannot be had.
    """
    numbers = [spec.number for spec in specs]
    twice = next((n for n in numbers if numbers.count(n) > 1), None)
    if twice is not None:
        raise PortError(f"port {twice} is given twice")
    opened: list[OpenPort] = []
    for spec in specs:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
        opened.append(OpenPort(spec.number, sock, spec.wire, spec.peer))
        try:
            sock.bind((spec.bind.address, spec.bind.port))
        except OSError as wrong:
            for port in opened:
                port.socket.close()
            raise PortError(f"port {spec.number}: cannot bind udp {spec.bind}: {wrong.strerror}") from wrong
        if spec.peer is not None:
            sock.sendto(b"", (spec.peer.address, spec.peer.port))  # So that it knows where this end is.
    return opened
