"""The aggregation header in Python: pack, unpack, check word.

The layout itself is hostlib/layout.py, generated from p4/common/protocol.p4.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

import numpy as np

from hostlib import layout

ELEMENTS = 256  # per packet of `controller start`
VALUE_BYTES = 4
FRAME_HEADERS = 14 + 20 + 8 + layout.HEADER_BYTES  # Ethernet, IPv4, UDP, and ours

_HEADER = struct.Struct(layout.HEADER_FORMAT)
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Header:
    """One packet's header; fields as in p4/common/protocol.p4, in wire order."""

    magic: int = layout.NETFOLD_MAGIC
    version: int = layout.NETFOLD_VERSION
    operation: int = layout.OPERATION_CONTRIBUTION
    job: int = 0
    rank: int = 0
    epoch: int = 0
    generation: int = 0
    slot: int = 0
    element_count: int = 0
    exponent: int = 0
    flags: int = 0
    next_exponent: int = 0
    check: int = 0

    def pack(self) -> bytes:
        """The 32 bytes on the wire.

        Raises:
            struct.error: a field does not fit its width.
        """
        return _HEADER.pack(*astuple(self))

    @classmethod
    def unpack(cls, data: bytes) -> Header:
        """The header at the start of a datagram.

        Raises:
            struct.error: fewer than 32 bytes.
        """
        return cls(*_HEADER.unpack_from(data))


def doubled(code: int) -> int:
    """A 16-bit exponent code as `next_exponent` carries it: twice, so that damage shows."""
    return code << 16 | code


def check_word(header: Header, elements: np.ndarray, ranks: int = 1) -> int:
    """The check word that a packet with these contents must carry.

    Args:
        header: slot, generation, exponent and epoch are covered.
        elements: int32, shape (E,).
        ranks: how many contributions the elements are the sum of.

    Source: docs/protocol.md, "Check word".
    """
    weights = np.arange(1, 2 * len(elements), 2, dtype=np.uint32)
    vector = int((weights * elements.astype(np.int32).view(np.uint32)).sum(dtype=np.uint32))
    where = (
        layout.CHECK_SLOT * header.slot
        + layout.CHECK_GENERATION * header.generation
        + layout.CHECK_EXPONENT * header.exponent
        + layout.CHECK_EPOCH * header.epoch
    )
    return (vector + ranks * where) & _MASK


def frame_bytes() -> tuple[int, int]:
    """Bytes of values in a frame of the slot protocol, and of the frame (without preamble and checksum)."""
    return VALUE_BYTES * ELEMENTS, VALUE_BYTES * ELEMENTS + FRAME_HEADERS
