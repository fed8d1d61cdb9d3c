"""Whole Ethernet frames of the protocol, made and taken apart quickly: a campaign needs millions of them."""

from __future__ import annotations

import hashlib
import math
import operator
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from ipaddress import IPv4Address

import numpy as np
import numpy.typing as npt

from hostlib.protocol import constants
from hostlib.protocol.header import Header

ELEMENTS = int(os.environ.get("NETFOLD_PROPERTY_ELEMENTS", "64"))
ADDRESSED_BYTES = 42  # Ethernet, IPv4 and UDP
VECTOR_AT = ADDRESSED_BYTES + constants.HEADER_BYTES
FRAME_BYTES = VECTOR_AT + 4 * ELEMENTS
Words = npt.NDArray[np.uint32]  # shape (ELEMENTS,); int32 on the wire, summed mod 2^32
_DIVISORS = [d for d in range(2, 1 << 16) if all(d % e for e in range(2, math.isqrt(d) + 1))]

_IP_BYTES = FRAME_BYTES - 14
_UDP_BYTES = FRAME_BYTES - 34
_ETHERNET_IP_UDP = struct.Struct(">HIHIHBBHHHBBHIIHHHH")


@dataclass(frozen=True, slots=True)
class End:
    """One end of a datagram."""

    mac: int
    address: int
    udp_port: int

    @classmethod
    def at(cls, mac: int, address: str, udp_port: int) -> End:
        return cls(mac, int(IPv4Address(address)), udp_port)


@dataclass(frozen=True, slots=True)
class Datagram:
    """A frame taken apart."""

    source: End
    destination: End
    header: Header
    words: Words


def frame(source: End, destination: End, header: Header, words: Words) -> bytes:
    """The frame of one datagram: TTL 64, identification 0, a right IPv4 checksum, no UDP checksum."""
    fixed = 0x4500 + _IP_BYTES + 0x4011
    ends = (source.address >> 16) + (source.address & 0xFFFF)
    ends += (destination.address >> 16) + (destination.address & 0xFFFF)
    checksum = fixed + ends
    checksum = (checksum & 0xFFFF) + (checksum >> 16)
    checksum = ~((checksum & 0xFFFF) + (checksum >> 16)) & 0xFFFF
    addressed = _ETHERNET_IP_UDP.pack(
        *(destination.mac >> 32, destination.mac & 0xFFFFFFFF, source.mac >> 32, source.mac & 0xFFFFFFFF, 0x0800),
        *(0x45, 0, _IP_BYTES, 0, 0, 64, 17, checksum, source.address, destination.address),
        *(source.udp_port, destination.udp_port, _UDP_BYTES, 0),
    )
    return addressed + header.pack() + words.astype(">u4").tobytes()


def parsed(data: bytes) -> Datagram:
    """A frame of full length, whatever its payload says."""
    fields = _ETHERNET_IP_UDP.unpack_from(data)
    destination = End(fields[0] << 32 | fields[1], fields[14], fields[16])
    source = End(fields[2] << 32 | fields[3], fields[13], fields[15])
    words = np.frombuffer(data, ">u4", ELEMENTS, VECTOR_AT).astype(np.uint32)
    return Datagram(source, destination, Header.unpack(data[ADDRESSED_BYTES:VECTOR_AT]), words)


class Checks:
    """docs/protocol.md, "Check word" and "The next exponent", written down once more: the tests do not believe
    hostlib.protocol.check_words either.
    """

    def __init__(self, secret: bytes, ranks: int) -> None:
        self._key = secret + struct.pack(">H", ranks)
        candidates = (word // ranks for (word,) in struct.iter_unpack(">I", self._stream("prime", 1 << 16)))
        self.prime = next(p for p in candidates if p * ranks > 2**31 and all(p % d for d in _DIVISORS))
        self._fields, self._elements, self._ranks = (
            [1 + word % (self.prime - 1) for (word,) in struct.iter_unpack(">Q", self._stream(purpose, 8 * count))]
            for purpose, count in (("fields", 4), ("elements", ELEMENTS), ("ranks", ranks))
        )
        low = struct.iter_unpack(">I", self._stream("codes", 4 * 512))
        self._codes = [code * 2**23 + word % 2**23 for code, (word,) in enumerate(low)]

    def _stream(self, purpose: str, count: int) -> bytes:
        return hashlib.shake_256(f"netfold {purpose}\0".encode() + self._key).digest(count)

    def word(self, header: Header, words: Words, ranks: Iterable[int] = (0,)) -> int:
        """Of what these ranks sent, summed; of a chunk or a NACK."""
        total = sum(map(operator.mul, self._elements, words.view(np.int32).tolist()))
        place = (header.slot, header.generation, header.exponent, header.epoch)
        for rank in ranks:
            total += sum(map(operator.mul, self._fields, place)) + self._ranks[rank]
        return total % self.prime

    def is_right(self, header: Header, words: Words) -> bool:
        """Of what all ranks sent, summed."""
        return header.check % self.prime == self.word(header, words, range(len(self._ranks)))

    def next_word(self, code: int) -> int:
        return self._codes[511 if code == 65535 else code]

    def code(self, next_word: int) -> int | None:
        code = next_word >> 23
        return None if self._codes[code] != next_word else 65535 if code == 511 else code


@cache
def checks_of(epoch: int, ranks: int) -> Checks:
    """Of the life of a job that has this epoch: hosts share them, and no switch may look at them."""
    return Checks(hashlib.sha256(struct.pack(">I", epoch)).digest()[:16], ranks)


def with_source_port(data: bytes, udp_port: int) -> bytes:
    """The frame from another UDP port."""
    return data[:34] + udp_port.to_bytes(2, "big") + data[36:]


def with_flipped_bits(data: bytes, bits: Iterable[int]) -> bytes:
    """The frame with some bits of its payload the other way round."""
    flipped = bytearray(data)
    for bit in bits:
        flipped[ADDRESSED_BYTES + bit // 8] ^= 0x80 >> bit % 8
    return bytes(flipped)
