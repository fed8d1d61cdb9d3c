"""The aggregation header in Python: pack, unpack.

Its fields and their layout are in hostlib/protocol/header_fields.py and constants.py, generated from
p4/common/protocol.p4.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

from hostlib.protocol import constants
from hostlib.protocol.header_fields import HeaderFields

ELEMENTS = 256  # the default of `controller start`, per packet
VALUE_BYTES = 4
FRAME_HEADERS = 14 + 20 + 8 + constants.HEADER_BYTES  # Ethernet, IPv4, UDP, aggregation header

_HEADER = struct.Struct(constants.HEADER_FORMAT)


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


def frame_bytes(elements: int = ELEMENTS) -> tuple[int, int]:
    """Bytes of values in a frame of the slot protocol, and of the whole frame (without preamble and frame check
    sequence).
    """
    return VALUE_BYTES * elements, VALUE_BYTES * elements + FRAME_HEADERS
