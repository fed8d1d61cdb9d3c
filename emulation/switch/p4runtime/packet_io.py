"""Packet I/O with the controller (sections 6.4.6 and 16.1): the P4 headers for metadata."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.p4runtime.codec import parse, show
from emulation.switch.p4runtime.sdn_strings import Names
from emulation.switch.p4runtime.status import invalid

PACKET_IN, PACKET_OUT = "packet_in", "packet_out"
# The packet path's limit for any port.
LONGEST_FRAME = 65535


@dataclass(frozen=True, slots=True)
class MetadataField:
    """One field of a controller header; `width` in bits, in the data plane; `info` is P4Info's."""

    id: int
    name: str
    width: int
    info: Any


class PacketHeaders:
    """P4Info's controller headers. Without any, packets are passed on bare.

    Args:
        program: its header types give the width of fields that are wider for controllers (@p4runtime_translation).
        names: the types whose values are strings for controllers.

    Raises:
        RequestError: a header is not a whole number of bytes.
    """

    def __init__(self, p4info: p4info_pb2.P4Info, program: Program, names: Mapping[str, Names] | None = None) -> None:
        self._names = names or {}
        known = {tuple(field.name for field in kind.fields): kind.fields for kind in program.types.values()}
        found: dict[str, list[MetadataField]] = {}
        for each in p4info.controller_packet_metadata:
            header = known.get(tuple(field.name for field in each.metadata), ())
            widths = {field.name: field.width for field in header}
            found[each.preamble.name] = [
                MetadataField(field.id, field.name, widths.get(field.name, field.bitwidth), field)
                for field in each.metadata
            ]
        self._in, self._out = found.get(PACKET_IN, []), found.get(PACKET_OUT, [])
        for name, fields in ((PACKET_IN, self._in), (PACKET_OUT, self._out)):
            if _bits(fields) % 8:
                raise invalid(f"the program's {name} header has {_bits(fields)} bits: no whole number of bytes")

    def frame(self, packet: p4runtime_pb2.PacketOut) -> bytes:
        """The frame of a packet-out for the CPU port: its metadata as a header, then the packet.

        Raises:
            RequestError: the metadata does not match P4Info, or the frame is too long.
        """
        metadata = {each.metadata_id: each.value for each in packet.metadata}
        names = ", ".join(f"{field.id} ({field.name})" for field in self._out) or "none"
        if len(metadata) != len(packet.metadata) or metadata.keys() != {field.id for field in self._out}:
            raise invalid(f"a packet-out has each of these metadata fields exactly once: {names}")
        header = 0
        for field in self._out:
            value = parse(self._names, field.info, metadata[field.id], field.width, f"packet_out.{field.name}")
            header = header << field.width | value
        frame: bytes = header.to_bytes(_bits(self._out) // 8, "big") + packet.payload
        if len(frame) > LONGEST_FRAME:
            raise invalid(f"a packet-out of {len(frame)} bytes; {LONGEST_FRAME} is the most")
        return frame

    def packet(self, frame: bytes) -> p4runtime_pb2.PacketIn | None:
        """The packet-in of a frame from the CPU port; None if the frame is too short for one."""
        size = _bits(self._in) // 8
        if len(frame) < size:
            return None
        packet = p4runtime_pb2.PacketIn(payload=frame[size:])
        header, left = int.from_bytes(frame[:size], "big"), 8 * size
        for field in self._in:
            left -= field.width
            value = header >> left & (2**field.width - 1)
            packet.metadata.add(metadata_id=field.id, value=show(self._names, field.info, value))
        return packet


def _bits(fields: list[MetadataField]) -> int:
    return sum(field.width for field in fields)
