"""What a worker sent, received and sent again: packets of the slot protocol if it is used, else TCP's with payload.

And what its host received of either that a queue had marked (ECN).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hostlib.system.tcp_counters import tcp_retransmits, tcp_segments

GAUGES = frozenset({"window", "rtt_ns"})  # of an engine: they have a present value


@dataclass(frozen=True, slots=True)
class PacketCounts:
    """So far, or between two times."""

    sent: int = 0
    received: int = 0
    again: int = 0
    marked: int = 0

    @classmethod
    def of(cls, engine: Mapping[str, int] | None, port: int) -> PacketCounts:
        """So far.

        Args:
            engine: the packet engine's counters; None without one.
            port: of the torch store, whose connections do not count.
        """
        if engine is not None:
            return cls(engine["packets_sent"], engine["packets_received"], engine["retransmits"], marked_packets())
        return cls(*tcp_segments(leave_out_port=port), tcp_retransmits(leave_out_port=port), marked_packets())

    def __sub__(self, other: PacketCounts) -> PacketCounts:
        return PacketCounts(
            self.sent - other.sent,
            self.received - other.received,
            self.again - other.again,
            self.marked - other.marked,
        )

    def busier(self, multicast: bool) -> int:
        """Packets in the busier direction, of which those sent again are a share.

        0 if they are none: receivers of multicasts count NACKs, which they also send while a source has nothing for them yet.
        """
        return 0 if multicast else max(self.sent, self.received)


def engine_counts(engine: Mapping[str, int] | None, before: Mapping[str, int] | None) -> dict[str, int] | None:
    """What packet engines counted since `before`, and their present window (packets) and round trip (ns)."""
    if engine is None:
        return None
    return {name: count - (0 if name in GAUGES else (before or {}).get(name, 0)) for name, count in engine.items()}


def marked_packets() -> int:
    """IP packets so far that said that a queue had grown, in the thread's network namespace.

    Source: RFC 3168; netstat(8), InCEPkts.
    """
    lines = Path("/proc/thread-self/net/netstat").read_text().splitlines()
    names, counts = (line.split() for line in lines if line.startswith("IpExt:"))
    return int(dict(zip(names, counts, strict=True))["InCEPkts"])
