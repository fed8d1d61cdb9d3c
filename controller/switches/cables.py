"""Whether the cables between switches are where the topology says.

The controller hands a switch a frame (P4Runtime's packet-out), which leaves by the port of a cable. The switch at the
other end hands it back (packet-in), with the port where it came in. Both are the work of membership entries of a job
that no rank has: a NACK for a chunk that is not there goes up (rule 5), and up is first the cable, then the controller.
Only ports of cables have such entries, so no host can send the controller anything.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Literal

from controller.switches.session import P4RuntimeSession
from controller.topology import End, Topology
from hostlib.protocol import constants
from hostlib.protocol.addresses import CABLE_ADDRESS, SWITCH_MAC
from hostlib.protocol.header import VALUE_BYTES, Header

State = Literal["right", "crossed", "silent", "unchecked"]
ROUND_S = 3.0  # nothing in this time: nothing gets through
EVERY_S = 5.0
PAUSED_S = 2.0  # no look for this long: what came meanwhile may have been dropped
ETHERNET_BYTES, IPV4_BYTES, UDP_BYTES = 14, 20, 8
HEADER_AT = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES


@dataclass(frozen=True, slots=True)
class Cable:
    """One direction of a cable.

    Attributes:
        sender, receiver: its ends, as the topology says.
        state: right; crossed: it ends elsewhere; silent: nothing comes in at a port of a cable; unchecked: not yet,
            or one of the switches is down, or has no CPU port.
        found: where it ends, if something came in.
    """

    sender: End
    receiver: End
    state: State = "unchecked"
    found: End | None = None

    @property
    def wrong(self) -> bool:
        """Whether no packet gets from the one end to the other."""
        return self.state in ("crossed", "silent")

    def __str__(self) -> str:
        if self.state == "crossed":
            return f"{self.sender} leads to {self.found}, not to {self.receiver}"
        if self.state == "silent":
            return f"nothing from {self.sender} comes in at {self.receiver}"
        return f"{self.sender} leads to {self.receiver}" + ("" if self.state == "right" else "; that was not checked")


class CableWatch:
    """Checks all cables again and again, without waiting: `look` sends and collects.

    Args:
        session: of a switch that is up; None of one that is down.
        elements: of a packet.
        clock: monotonic seconds.

    Attributes:
        cables: what the last check of each has found.
    """

    def __init__(
        self,
        topology: Topology,
        session: Callable[[str], P4RuntimeSession | None],
        elements: int,
        clock: Callable[[], float],
    ) -> None:
        self.cables = [Cable(sender, receiver) for sender, receiver in topology.cables()]
        self._cpu_ports = {switch.name: switch.cpu_port for switch in topology.switches}
        self._session = session
        self._elements = elements
        self._clock = clock
        self._looked_s = self._next_s = clock()
        self._began_s: float | None = None  # of a check that goes on
        self._asked = 0
        self._missing: set[int] = set()
        self._found: dict[int, End] = {}

    def look(self) -> list[tuple[Cable, Cable]]:
        """Go on with the check; returns cables whose state has changed, before and now."""
        now = self._clock()
        paused, self._looked_s = now - self._looked_s > PAUSED_S, now
        self._collect()
        if (self._began_s is None and now >= self._next_s) or (self._began_s is not None and paused):
            self._began_s, self._asked, self._found = now, secrets.randbits(32), {}
            self._missing = {n for n, cable in enumerate(self.cables) if self._can_check(cable)}
        if self._began_s is None:
            return []
        if self._missing and now - self._began_s < ROUND_S:
            self._send()
            return []
        self._began_s, self._missing, self._next_s = None, set(), now + EVERY_S
        return self._judge()

    def _can_check(self, cable: Cable) -> bool:
        ends = (cable.sender.switch, cable.receiver.switch)
        return all(self._cpu_ports[name] is not None and self._session(name) is not None for name in ends)

    def _send(self) -> None:
        for number in self._missing:
            sender = self.cables[number].sender
            session = self._session(sender.switch)
            if session is not None:
                session.send(question(self._asked, number, sender.port, self._elements))

    def _collect(self) -> None:
        for name, cpu_port in self._cpu_ports.items():
            session = None if cpu_port is None else self._session(name)
            for frame in session.received() if session is not None else ():
                header = answer(frame)
                if header is not None and header.epoch == self._asked and header.generation in self._missing:
                    self._found[header.generation] = End(name, header.rank)
                    self._missing.discard(header.generation)

    def _judge(self) -> list[tuple[Cable, Cable]]:
        before = self.cables
        self.cables = [self._judged(cable, self._found.get(number)) for number, cable in enumerate(before)]
        return [(then, now) for then, now in zip(before, self.cables, strict=True) if now != then]

    def _judged(self, cable: Cable, found: End | None) -> Cable:
        state: State = "silent" if self._can_check(cable) else "unchecked"
        if found is not None:
            state = "right" if found == cable.receiver else "crossed"
        return Cable(cable.sender, cable.receiver, state, found)


def question(asked: int, number: int, port: int, elements: int) -> bytes:
    """A frame that a switch sends out of a port; `asked` and `number` come back with it."""
    header = Header(
        operation=constants.OPERATION_NACK, job=0, rank=port, epoch=asked, generation=number, element_count=elements
    )
    payload = header.pack() + bytes(VALUE_BYTES * elements)
    address = IPv4Address(CABLE_ADDRESS).packed
    mac = SWITCH_MAC.to_bytes(6, "big")
    udp = struct.pack(">HHHH", *[constants.NETFOLD_UDP_PORT] * 2, UDP_BYTES + len(payload), 0)
    length = IPV4_BYTES + UDP_BYTES + len(payload)
    ipv4 = struct.pack(">BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 64, 17, 0, address, address)
    ipv4 = ipv4[:10] + struct.pack(">H", _checksum(ipv4)) + ipv4[12:]
    return mac + mac + b"\x08\x00" + ipv4 + udp + payload


def answer(frame: bytes) -> Header | None:
    """The header of a frame that has come back; None of another frame."""
    try:
        header = Header.unpack(frame[HEADER_AT:])
    except struct.error:
        return None
    is_ours = (header.magic, header.operation, header.job) == (constants.NETFOLD_MAGIC, constants.OPERATION_NACK, 0)
    return header if is_ours else None


def _checksum(header: bytes) -> int:
    """RFC 1071, of a header whose checksum is 0."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
