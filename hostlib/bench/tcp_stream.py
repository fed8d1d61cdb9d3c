"""A TCP stream between two hosts, beside what is measured: `python -m hostlib.bench.tcp_stream`.

The congestion control is CUBIC, Linux's own default, whatever this machine has (RFC 9438).
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from hostlib.errors import HostlibError
from hostlib.system.process import StartError, running, write_whole

CONGESTION_CONTROL = b"cubic"
PIECE_BYTES = 1 << 16
COUNT_BYTES = 8


@contextmanager
def tcp_stream(folder: Path, spaces: tuple[str, str], address: str) -> Iterator[Path]:
    """Send from the first of two namespaces to the second, for the duration of the block.

    Args:
        address: of the second.

    Yields:
        A file; see received_bytes.

    Raises:
        HostlibError: one of the two ends did not start.
    """
    count = folder / "tcp-received"
    count.write_bytes(bytes(COUNT_BYTES))
    command = [sys.executable, "-m", "hostlib.bench.tcp_stream"]

    def end(name: str, space: str, *words: str) -> AbstractContextManager[dict[str, Any]]:
        ready = folder / f"tcp-{name}.json"
        return running(
            [*command, name, str(ready), *words], ready, ready.with_suffix(".log"), what="a TCP stream", space=space
        )

    try:
        with end("sink", spaces[1], address, str(count)) as sink, end("source", spaces[0], address, str(sink["port"])):
            yield count
    except StartError as error:
        raise HostlibError(str(error)) from error


def received_bytes(count: Path) -> int:
    """What has come through a stream so far."""
    return int.from_bytes(count.read_bytes(), "little")


def _sink(ready: Path, address: str, count: Path) -> None:
    with socket.create_server((address, 0)) as server, count.open("r+b") as file:
        counted = mmap.mmap(file.fileno(), COUNT_BYTES)
        write_whole(ready, {"pid": os.getpid(), "port": server.getsockname()[1]})
        stream, _ = server.accept()
        room, total = bytearray(PIECE_BYTES), 0
        while got := stream.recv_into(room):
            total += got
            counted[:] = total.to_bytes(COUNT_BYTES, "little")


def _source(ready: Path, address: str, port: int) -> None:
    with socket.socket() as stream:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
        stream.connect((address, port))
        write_whole(ready, {"pid": os.getpid()})
        while True:
            stream.sendall(bytes(PIECE_BYTES))


def main() -> None:
    """Be one end of a stream until SIGTERM."""
    name, ready, address, last = sys.argv[1:]
    if name == "sink":
        _sink(Path(ready), address, Path(last))
    else:
        _source(Path(ready), address, int(last))


if __name__ == "__main__":
    main()
