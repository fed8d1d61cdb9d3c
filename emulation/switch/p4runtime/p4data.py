"""P4Data (section 8.5): decode the data plane's words for digests and registers, and encode register values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import grpc
from p4.config.v1 import p4types_pb2
from p4.v1 import p4data_pb2

from emulation.switch.compiler.bmv2_json import WORD, words
from emulation.switch.p4runtime.bytestrings import canonical, number
from emulation.switch.p4runtime.status import RequestError, invalid

Reader = Callable[[Iterator[int]], p4data_pb2.P4Data]
Writer = Callable[[p4data_pb2.P4Data, str], int]


def reader(spec: p4types_pb2.P4DataTypeSpec, types: p4types_pb2.P4TypeInfo) -> Reader:
    """Return a function that reads a value of a P4 type from a stream of words, the highest of each member first.

    Raises:
        RequestError: this type is not supported; the message names it.
    """
    kind = spec.WhichOneof("type_spec")
    if kind == "bitstring":
        return _bitstring(spec.bitstring)
    if kind == "bool":
        return lambda stream: p4data_pb2.P4Data(bool=bool(next(stream)))
    if kind == "tuple":
        return _sequence("tuple", [reader(member, types) for member in spec.tuple.members])
    if kind == "struct":
        members = types.structs[spec.struct.name].members
        return _sequence("struct", [reader(member.type_spec, types) for member in members])
    if kind == "serializable_enum":
        enum = types.serializable_enums[spec.serializable_enum.name]
        bits = p4types_pb2.P4BitstringLikeTypeSpec(bit=enum.underlying_type)
        inner = _bitstring(bits)
        return lambda stream: p4data_pb2.P4Data(enum_value=inner(stream).bitstring)
    if kind == "new_type":
        new = types.new_types[spec.new_type.name]
        if new.WhichOneof("representation") == "original_type":
            return reader(new.original_type, types)
        translated = new.translated_type
        if translated.WhichOneof("sdn_type") == "sdn_bitwidth":
            width = p4types_pb2.P4BitTypeSpec(bitwidth=translated.sdn_bitwidth)
            return _bitstring(p4types_pb2.P4BitstringLikeTypeSpec(bit=width))
    raise invalid(f"data of type {kind or 'none'} is not supported; bits, bools, structs are")


def _bitstring(spec: p4types_pb2.P4BitstringLikeTypeSpec) -> Reader:
    kind = spec.WhichOneof("type_spec")
    if kind not in ("bit", "int"):
        raise invalid(f"data of type {kind} is not supported; bits, bools, structs are")
    width = getattr(spec, kind).bitwidth

    def read(stream: Iterator[int]) -> p4data_pb2.P4Data:
        value = 0
        for _ in range(words(width)):
            value = value << WORD | next(stream)
        value &= 2**width - 1
        if kind == "int":
            return p4data_pb2.P4Data(bitstring=_canonical_signed(value, width))
        return p4data_pb2.P4Data(bitstring=canonical(value))

    return read


def writer(spec: p4types_pb2.P4DataTypeSpec, types: p4types_pb2.P4TypeInfo) -> Writer:
    """Return a function that converts P4Data to a register's number; its second argument names the object for errors.

    Raises:
        RequestError: from `writer`, this type is not supported; from the function, the data has another type.
    """
    kind = spec.WhichOneof("type_spec")
    if kind == "new_type" and types.new_types[spec.new_type.name].WhichOneof("representation") == "original_type":
        return writer(types.new_types[spec.new_type.name].original_type, types)
    if kind == "bool":
        return lambda data, what: int(_value_of(data, "bool", what))
    if kind == "bitstring" and (bits := spec.bitstring.WhichOneof("type_spec")) in ("bit", "int"):
        width = getattr(spec.bitstring, bits).bitwidth
        if bits == "bit":
            return lambda data, what: number(_value_of(data, "bitstring", what), width, what)
        return lambda data, what: _signed(_value_of(data, "bitstring", what), width, what)
    raise invalid(f"data of type {kind or 'none'} is not supported in a register; bits and bools are")


def _value_of(data: p4data_pb2.P4Data, kind: str, what: str) -> Any:
    if data.WhichOneof("data") != kind:
        raise invalid(f"{what}: its data is a {kind}, not a {data.WhichOneof('data') or 'nothing'}")
    return getattr(data, kind)


def _signed(data: bytes, width: int, what: str) -> int:
    """Decode two's complement of `width` bits from a bytestring that may be shorter."""
    if not data:
        raise invalid(f"{what}: an empty bytestring is no value")
    value = int.from_bytes(data, "big", signed=True)
    if not -(2 ** (width - 1)) <= value < 2 ** (width - 1):
        raise RequestError(grpc.StatusCode.OUT_OF_RANGE, f"{what}: {value} does not fit int<{width}>")
    return int(value & (2**width - 1))


def _canonical_signed(value: int, width: int) -> bytes:
    """Encode two's complement in the fewest bytes."""
    signed = value - 2**width if value >> (width - 1) else value
    bits = (signed if signed >= 0 else ~signed).bit_length() + 1
    return signed.to_bytes((bits + 7) // 8, "big", signed=True)


def _sequence(kind: str, readers: list[Reader]) -> Reader:
    def read(stream: Iterator[int]) -> p4data_pb2.P4Data:
        made: Any = p4data_pb2.P4Data()
        part = getattr(made, kind)
        part.SetInParent()
        part.members.extend(each(stream) for each in readers)
        return made

    return read
