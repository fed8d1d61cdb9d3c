"""Byte counts of this process's TCP connections, from the kernel."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# struct tcp_info of linux/tcp.h: tcpi_total_retrans, tcpi_data_segs_in and, after it, tcpi_data_segs_out (which includes
# retransmissions), 32 bits; tcpi_bytes_received, tcpi_bytes_sent (which includes them, too) and, after it,
# tcpi_bytes_retrans, all 64 bits. Not tcpi_bytes_acked: an acknowledgement may be 40 ms late.
RETRANSMITS_OFFSET, SEGMENTS_OFFSET, BYTES_RECEIVED_OFFSET, BYTES_SENT_OFFSET = 100, 152, 128, 200
TCP_INFO_BYTES = 216


@dataclass(frozen=True, slots=True)
class ByteCounts:
    """Payload bytes of one rank's link in each direction."""

    sent: int = 0
    received: int = 0

    def __add__(self, other: ByteCounts) -> ByteCounts:
        return ByteCounts(self.sent + other.sent, self.received + other.received)

    def __sub__(self, other: ByteCounts) -> ByteCounts:
        return ByteCounts(self.sent - other.sent, self.received - other.received)


def tcp_bytes(leave_out_port: int) -> ByteCounts:
    """Payload bytes of all TCP connections of this process, except those of one port (the torch store's).

    Source: tcp(7), TCP_INFO.
    """
    total = ByteCounts()
    for info in _tcp_infos(leave_out_port):
        (received,) = struct.unpack_from("=Q", info, BYTES_RECEIVED_OFFSET)
        sent, again = struct.unpack_from("=QQ", info, BYTES_SENT_OFFSET)
        total += ByteCounts(sent - again, received)
    return total


def tcp_retransmits(leave_out_port: int) -> int:
    """Segments that those connections retransmitted."""
    return sum(struct.unpack_from("=I", info, RETRANSMITS_OFFSET)[0] for info in _tcp_infos(leave_out_port))


def tcp_segments(leave_out_port: int) -> tuple[int, int]:
    """Segments with payload that those connections sent, retransmissions included, and received."""
    counts = [struct.unpack_from("=II", info, SEGMENTS_OFFSET) for info in _tcp_infos(leave_out_port)]
    return sum(sent for _, sent in counts), sum(received for received, _ in counts)


def _tcp_infos(leave_out_port: int) -> Iterator[bytes]:
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(Path("/proc/self/fd") / name).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as sock:
                if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
                    continue
                if leave_out_port in (sock.getsockname()[1], sock.getpeername()[1]):
                    continue
                info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
        except OSError:
            continue  # Closed in the meantime, or a listening socket.
        yield info
