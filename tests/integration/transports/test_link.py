"""What TCP connections carried, as soon as it was sent."""

from __future__ import annotations

import socket
import threading

from hostlib.system.tcp_counters import ByteCounts, tcp_bytes

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
