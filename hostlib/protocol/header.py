"""The aggregation header in Python: pack, unpack, check word.

Its fields and their layout are in hostlib/protocol/header_fields.py and constants.py, generated from
p4/common/protocol.p4.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

import numpy as np

from hostlib.protocol import constants
from hostlib.protocol.header_fields import HeaderFields

ELEMENTS = 256  # the default of `controller start`, per packet
VALUE_BYTES = 4
FRAME_HEADERS = 14 + 20 + 8 + constants.HEADER_BYTES  # Ethernet, IPv4, UDP, aggregation header

_HEADER = struct.Struct(constants.HEADER_FORMAT)
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Header(HeaderFields):
    """One packet's header."""

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
    """A 16-bit exponent code as `next_exponent` carries it: twice, so that damage is detected."""
    return code << 16 | code


def check_word(header: Header, elements: np.ndarray, ranks: int = 1) -> int:
    """The check word that a packet with these contents must carry.

    Args:
        header: HeaderFields.position_check covers a part of it.
        elements: int32, shape (E,).
        ranks: how many contributions the elements are the sum of.

    Source: docs/protocol.md, "Check word".
    """
    weights = np.arange(1, 2 * len(elements), 2, dtype=np.uint32)
    vector = int((weights * elements.astype(np.int32).view(np.uint32)).sum(dtype=np.uint32))
    return (vector + ranks * header.position_check()) & _MASK


def frame_bytes() -> tuple[int, int]:
    """Bytes of values in a frame of the slot protocol, and of the whole frame (without preamble and frame check
    sequence).
    """
    return VALUE_BYTES * ELEMENTS, VALUE_BYTES * ELEMENTS + FRAME_HEADERS
