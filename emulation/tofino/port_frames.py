"""Frames in and out of a chip's ports, by the sockets of the embedded switch's."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterable
from ipaddress import IPv4Address

from emulation.errors import PortError
from emulation.switch.ports.open_port import OpenPort
from emulation.switch.ports.port_sockets import UDP_GRO
from emulation.switch.ports.port_spec import Endpoint, PortSpec, Shape
from emulation.switch.ports.udp import OpenUdpSocket
from emulation.switch.ports.wire import Wire
from hostlib.protocol.addresses import SWITCH_MAC

MOST_BYTES = 9728
IPV4, UDP = 0x0800, 17
_ETHERNET, _IP, _UDP = struct.Struct(">6s6sH"), struct.Struct(">BBHHHBBHII"), struct.Struct(">HHHH")
HEADERS = _ETHERNET.size + _IP.size + _UDP.size


def require_plain(spec: PortSpec) -> None:
    """Check that a port's link does what this can: lose and duplicate frames.

    Raises:
        PortError: it does more.
    """
    if spec.shape != Shape() or spec.faults.reorder or spec.faults.corrupt:
        raise PortError(f"port {spec.number}: of links' options, a chip's ports have loss, duplicate and seed")


class PortFrames:
    """One open port.

    Args:
        destination: address in headers that it makes; None for its own.

    Raises:
        PortError: its link does more than lose and duplicate.
    """

    def __init__(self, port: OpenPort, destination: Endpoint | None = None) -> None:
        require_plain(port.spec)
        self.number, self._socket = port.number, port.socket
        self._udp = isinstance(port.opened, OpenUdpSocket)
        place = port.spec.place
        self._wire = isinstance(place, Wire)
        self._peer = (place.peer.address, place.peer.port) if isinstance(place, Wire) and place.peer else None
        self._faults = port.spec.faults
        self._chance = random.Random(f"{port.spec.faults.seed}/{port.number}")
        self._inside = (destination or port.endpoint) if self._udp else None
        self.lost = 0
        if self._udp or self._wire:
            self._socket.setsockopt(socket.IPPROTO_UDP, UDP_GRO, 0)  # Each datagram is a frame, however it was sent.

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self, most: int) -> list[bytes]:
        """What has come in, at most so many frames."""
        frames: list[bytes] = []
        while len(frames) < most:
            try:
                data, sender = self._socket.recvfrom(MOST_BYTES, socket.MSG_DONTWAIT)
            except (BlockingIOError, ConnectionRefusedError, InterruptedError):
                break
            except OSError:  # The interface is down.
                break
            if self._udp:
                data = self._with_headers(data, sender)
            elif self._wire:
                self._peer = self._peer or sender
                if sender != self._peer or not data:
                    continue
            frames += [data] * self._times()
        return frames

    def send(self, frames: Iterable[bytes]) -> None:
        """Frames out; what the system does not take is lost, as on any link."""
        for frame in frames:
            for _ in range(self._times()):
                try:
                    if self._udp:
                        if (datagram := _datagram(frame)) is not None:
                            self._socket.sendto(*datagram)
                    elif not self._wire:
                        self._socket.send(frame)
                    elif self._peer is not None:
                        self._socket.sendto(frame, self._peer)
                except OSError:
                    self.lost += 1

    def _times(self) -> int:
        if self._faults.loss and self._chance.random() < self._faults.loss:
            self.lost += 1
            return 0
        return 2 if self._faults.duplicate and self._chance.random() < self._faults.duplicate else 1

    def _with_headers(self, data: bytes, sender: tuple[str, int]) -> bytes:
        """As runtime/ports/udp.h: what a NIC would have brought."""
        assert self._inside is not None
        host = bytes([2, 0, 0, 1, self.number >> 8, self.number & 0xFF])
        ethernet = _ETHERNET.pack(SWITCH_MAC.to_bytes(6, "big"), host, IPV4)
        ends = int(IPv4Address(sender[0])), int(IPv4Address(self._inside.address))
        size = _IP.size + _UDP.size + len(data)
        without = _IP.pack(0x45, 0, size, 0, 0, 64, UDP, 0, *ends)
        ip = _IP.pack(0x45, 0, size, 0, 0, 64, UDP, _checksum(without), *ends)
        return ethernet + ip + _UDP.pack(sender[1], self._inside.port, _UDP.size + len(data), 0) + data


def _datagram(frame: bytes) -> tuple[bytes, tuple[str, int]] | None:
    """A frame's datagram, and where it goes; None if it is none."""
    if len(frame) < HEADERS or frame[12:15] != b"\x08\x00\x45" or frame[23] != UDP:
        return None
    address, (port, size) = IPv4Address(frame[30:34]), struct.unpack_from(">HH", frame, 36)
    if not _UDP.size <= size <= len(frame) - 34:
        return None
    return frame[HEADERS : 34 + size], (str(address), port)


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
