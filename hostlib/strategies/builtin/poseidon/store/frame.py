"""The TCP protocol between workers and shards: frames of a fixed header and a payload. Torch-free.

Headers are in network byte order; values are in the byte order of both hosts. Plain sockets rather than gRPC: values go
from and to tensors' memory without a second copy, and without a limit of 4 MB.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from enum import IntEnum

HEAD = struct.Struct("!BIqqI")
LONGEST_BYTES = 1 << 26
NONE = -1  # version of a pair without values


class FrameKind(IntEnum):
    """The kinds of frame.

    A worker begins with HELLO (JSON: token, rank, elements of each pair); the shard answers WELCOME (JSON: version of
    each pair). From then on the worker sends an UPDATE for each pair and iteration, and the shard sends the pair's
    VALUES once it has applied all workers' updates.
    """

    HELLO = 1
    WELCOME = 2
    UPDATE = 3
    VALUES = 4


@dataclass(frozen=True, slots=True)
class Frame:
    """One message.

    Attributes:
        version: number of iterations that the values include; of an UPDATE, including it. Update 0 is the initial
            values.
        saved: the version in the checkpoint, which a killed shard would resume from.
    """

    kind: FrameKind
    pair: int = 0
    version: int = NONE
    saved: int = NONE
    payload: bytes | memoryview = b""


async def read(reader: asyncio.StreamReader) -> Frame:
    """Read the next frame.

    Raises:
        ConnectionError: the peer is gone, or not part of the store.
    """
    try:
        kind, pair, version, saved, length = HEAD.unpack(await reader.readexactly(HEAD.size))
        if length > LONGEST_BYTES:
            raise ConnectionError(f"a frame of {length} bytes")
        return Frame(FrameKind(kind), pair, version, saved, await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ValueError) as error:
        raise ConnectionError(str(error)) from error


def write(writer: asyncio.StreamWriter, frame: Frame) -> None:
    """Queue a frame without waiting for the connection; frames to a closed connection are dropped."""
    if writer.is_closing():
        return
    writer.write(HEAD.pack(frame.kind, frame.pair, frame.version, frame.saved, len(frame.payload)))
    writer.write(frame.payload)
