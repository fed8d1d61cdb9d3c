"""Whole Ethernet frames of the protocol, made and taken apart quickly: a campaign needs millions of them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

import numpy as np
import numpy.typing as npt

from hostlib.protocol import constants
from hostlib.protocol.header import Header

ELEMENTS = 64
ADDRESSED_BYTES = 42  # Ethernet, IPv4 and UDP
VECTOR_AT = ADDRESSED_BYTES + constants.HEADER_BYTES
FRAME_BYTES = VECTOR_AT + 4 * ELEMENTS
Words = npt.NDArray[np.uint32]  # shape (ELEMENTS,); int32 on the wire, summed mod 2^32

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


def check(header: Header, words: Words, ranks: int = 1) -> int:
    """docs/protocol.md, "Check word", written down once more: the tests do not believe hostlib.protocol.header either."""
    vector = sum((2 * i + 1) * int(word) for i, word in enumerate(words.tolist()))
    where = constants.CHECK_SLOT * header.slot + constants.CHECK_GENERATION * header.generation
    where += constants.CHECK_EXPONENT * header.exponent + constants.CHECK_EPOCH * header.epoch
    return (vector + ranks * where) & 0xFFFFFFFF


def with_flipped_bit(data: bytes, bit: int) -> bytes:
    """The frame with one bit of its payload the other way round."""
    at = ADDRESSED_BYTES + bit // 8
    return data[:at] + bytes([data[at] ^ 0x80 >> bit % 8]) + data[at + 1 :]
