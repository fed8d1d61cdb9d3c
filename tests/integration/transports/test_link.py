"""What TCP connections carried, as soon as it was sent."""

from __future__ import annotations

import socket
import threading

from hostlib.system.tcp_counters import ByteCounts, tcp_bytes, tcp_segments

NOBODYS_PORT = 1


def test_bytes_count_when_they_are_sent_and_when_they_are_here() -> None:
    before = tcp_bytes(NOBODYS_PORT)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        other, _ = server.accept()
        with other:
            port = server.getsockname()[1]
            sending = threading.Thread(target=one.sendall, args=[bytes(1_000_007)])
            sending.start()
            left = 1_000_007
            while left:
                left -= len(other.recv(1 << 16))
            sending.join()
            other.sendall(b"12345")
            assert one.recv(5, socket.MSG_WAITALL) == b"12345"
            # Both ends are this process's.
            assert tcp_bytes(NOBODYS_PORT) - before == ByteCounts(1_000_012, 1_000_012)
            assert tcp_bytes(port) == before


def test_segments_with_payload_are_counted() -> None:
    """Of one connection, both ends of which are this process's; the listening socket has none."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    with near, far:
        port = near.getpeername()[1]
        before, others = tcp_segments(leave_out_port=0), tcp_segments(leave_out_port=port)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(7):
            near.sendall(b"x")
            assert far.recv(1) == b"x"
        after = tcp_segments(leave_out_port=0)
        assert (after[0] - before[0], after[1] - before[1]) == (7, 7)
        assert tcp_segments(leave_out_port=port) == others, "connections of earlier tests, if any"
