"""Numbers as P4Runtime bytestrings (section 8.4)."""

from __future__ import annotations

import grpc

from emulation.switch.p4runtime.status import RequestError, invalid


def number(data: bytes, width: int, what: str) -> int:
    """Convert a bytestring to an integer of at most `width` bits."""
    if not data:
        raise invalid(f"{what}: an empty bytestring is no value")
    value = int.from_bytes(data, "big")
    if value.bit_length() > width:
        raise RequestError(grpc.StatusCode.OUT_OF_RANGE, f"{what}: {value:#x} does not fit {width} bits")
    return value


def canonical(value: int) -> bytes:
    """The canonical bytestring of a value, which is the shortest (section 8.4)."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def shortest(data: bytes) -> bytes:
    """Remove the leading zeros that the canonical form does not have."""
    return data.lstrip(b"\0") or b"\0"
