"""A fabric of one rank, on a UDP socket: its results are that rank's contributions, marked (ECN) when a test says so."""

from __future__ import annotations

import socket
from dataclasses import replace

from hostlib.protocol import constants
from hostlib.protocol.header import Header

RANK_ALL = 0xFFFF
ECT_0, CE = 2, 3  # RFC 3168
QUIET_S = 0.02


class MarkingFabric:
    """Answers contributions in flights: what has come before it is quiet for a while, at once.

    Attributes:
        quiet_s: for how long nothing may come, before a flight is over.
        answered: results that were sent.
        types: the contributions' types of service.
    """

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        self._socket.bind((address, 0))
        self.port: int = self._socket.getsockname()[1]
        self.quiet_s = QUIET_S
        self.answered = 0
        self.types: set[int] = set()

    def flight(self, patience_s: float) -> list[tuple[bytes, tuple[str, int]]]:
        """The next contributions, with where they are from; none if nothing comes for so long."""
        found: list[tuple[bytes, tuple[str, int]]] = []
        self._socket.settimeout(patience_s)
        try:
            while True:
                data, control, _, source = self._socket.recvmsg(65536, 64)
                self.types.update(each[2][0] for each in control if each[:2] == (socket.IPPROTO_IP, socket.IP_TOS))
                found.append((data, source))
                self._socket.settimeout(self.quiet_s)
        except TimeoutError:
            return found

    def answer(self, flight: list[tuple[bytes, tuple[str, int]]], type_of_service: int) -> None:
        self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, type_of_service)
        for data, source in flight:
            result = replace(Header.unpack(data), operation=constants.OPERATION_RESULT, rank=RANK_ALL)
            self._socket.sendto(result.pack() + data[constants.HEADER_BYTES :], source)
            self.answered += 1

    def close(self) -> None:
        self._socket.close()
