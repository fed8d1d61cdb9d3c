"""What worker and shard say to each other over TCP: frames of a fixed head and a payload, in network byte order but for
the values, which go as both hosts have them. Torch-free.

Plain sockets rather than gRPC: values go from and to tensors' memory without a second copy, and without a limit of 4 MB.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from enum import IntEnum

HEAD = struct.Struct("!BIqqI")
LONGEST_BYTES = 1 << 26
NONE = -1  # version of a pair that has no values yet


class FrameKind(IntEnum):
    """What a frame says.

    A worker begins with HELLO (JSON: token, rank, elements of each pair); the shard answers WELCOME (JSON: version of each
    pair). From then on the worker sends an UPDATE for each pair and iteration, and the shard sends the pair's VALUES when
    it has applied all of them.
    """

    HELLO = 1
    WELCOME = 2
    UPDATE = 3
    VALUES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        version: iterations that are in the values; of an UPDATE, with it. Update 0 is the first values themselves.
        saved: the version that a killed shard would have again.
    """

    kind: FrameKind
    pair: int = 0
    version: int = NONE
    saved: int = NONE
    payload: bytes | memoryview = b""


async def read(reader: asyncio.StreamReader) -> Frame:
    """The next frame.

    Raises:
        ConnectionError: the other end is gone, or no part of the store.
    """
    try:
        kind, pair, version, saved, length = HEAD.unpack(await reader.readexactly(HEAD.size))
        if length > LONGEST_BYTES:
            raise ConnectionError(f"a frame of {length} bytes")
        return Frame(FrameKind(kind), pair, version, saved, await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ValueError) as error:
        raise ConnectionError(str(error)) from error


def write(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Send a frame when the connection takes it; nobody waits for that. To one that is gone, nothing is sent."""
    if writer.is_closing():
        return
    writer.write(HEAD.pack(frame.kind, frame.pair, frame.version, frame.saved, len(frame.payload)))
    writer.write(frame.payload)
