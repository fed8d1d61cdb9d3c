"""Bytes that a frame takes on a link: of the slot protocol and of TCP, on emulated links and on Ethernet.

Emulated links (tc-tbf and the embedded switch) charge what the kernel calls a frame: the Ethernet header and what
follows it. On a physical link, each frame also has a preamble, a check sequence and a gap.

Sources: IEEE 802.3 (clauses 3.1.1 and 4.4.2); RFC 791, RFC 768, RFC 9293; RFC 7323 (timestamps); RFC 5681, section 4.2
(an acknowledgement for every second segment).
"""

from __future__ import annotations

from dataclasses import dataclass

from hostlib.protocol.header import ELEMENTS, FRAME_HEADERS, VALUE_BYTES

MTU = 1500
JUMBO_MTU = 9000  # what networks for storage and training are set to
LEAST_MTU, MOST_MTU = 576, 65535  # a datagram that every host takes (RFC 791), and the longest
ETHERNET, PREAMBLE, CHECK_SEQUENCE, GAP = 14, 8, 4, 12
SMALLEST_FRAME = 64  # with its check sequence
IPV4, TCP, TIMESTAMPS = 20, 20, 12
PROGRESS = 12  # what a receiver of chunks tells their source, behind the slot protocol's headers
# Elements per packet for which the switches' programs are compiled.
TOFINO_ELEMENTS, V1MODEL_ELEMENTS = (32, 64), (64, 256, 1024, 2048)
LEGAL_ELEMENTS = tuple(sorted({*TOFINO_ELEMENTS, *V1MODEL_ELEMENTS}))


def ip_bytes(elements: int) -> int:
    """Bytes of a packet of the slot protocol from its IP header on, which is what an MTU is about."""
    return VALUE_BYTES * elements + FRAME_HEADERS - ETHERNET


def mtu_for(elements: int) -> int:
    """The usual MTU of networks that carry packets of so many elements: MTU, or JUMBO_MTU where they need it."""
    return MTU if ip_bytes(elements) <= MTU else JUMBO_MTU


@dataclass(frozen=True, slots=True)
class Framing:
    """How a link counts frames.

    Attributes:
        name: "emulated" or "physical".
        further: bytes of a frame besides its Ethernet header and what follows it.
        mtu: of the path, bytes from the IP header on.
    """

    name: str
    further: int
    mtu: int = MTU

    def wire_bytes(self, frame: int) -> int:
        """Bytes that a frame takes, from the length that the kernel calls its own."""
        if self.further:
            frame = max(frame, SMALLEST_FRAME - CHECK_SEQUENCE)
        return frame + self.further

    def slot_frame(self, elements: int = ELEMENTS) -> tuple[int, int]:
        """Bytes of values in a frame of the slot protocol, and those that it takes."""
        return VALUE_BYTES * elements, self.wire_bytes(VALUE_BYTES * elements + FRAME_HEADERS)

    def tcp_segment(self) -> tuple[int, int]:
        """Bytes of values in a full segment with timestamps, and those that its frame takes. MPI over TCP is the same."""
        return self.mtu - IPV4 - TCP - TIMESTAMPS, self.wire_bytes(ETHERNET + self.mtu)

    def acknowledgement(self) -> float:
        """Bytes on the way back for each segment: one acknowledgement for two."""
        return self.wire_bytes(ETHERNET + IPV4 + TCP + TIMESTAMPS) / 2

    def tcp_efficiency(self) -> float:
        """Share of values in a link's traffic in both directions, for TCP."""
        values, taken = self.tcp_segment()
        return values / (taken + self.acknowledgement())

    def slot_efficiency(self, elements: int = ELEMENTS) -> float:
        """Share of values in a link's traffic, for the slot protocol."""
        values, taken = self.slot_frame(elements)
        return values / taken


EMULATED = Framing("emulated", 0)
PHYSICAL = Framing("physical", PREAMBLE + CHECK_SEQUENCE + GAP)
FRAMINGS = {framing.name: framing for framing in (PHYSICAL, EMULATED)}
