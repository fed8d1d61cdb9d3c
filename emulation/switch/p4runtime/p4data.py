"""P4Data from the words that the data plane gives (section 8.5): what a digest carries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from p4.config.v1 import p4types_pb2
from p4.v1 import p4data_pb2

from emulation.switch.language.program import WORD, words
from emulation.switch.p4runtime.translate import canonical, invalid

Reader = Callable[[Iterator[int]], p4data_pb2.P4Data]


def reader(spec: p4types_pb2.P4DataTypeSpec, types: p4types_pb2.P4TypeInfo) -> Reader:
    """A function that takes a value of a P4 type out of a stream of words, the highest of each member first.

    Raises:
        RequestError: digests of this type are not supported; the message names it.
    """
    kind = spec.WhichOneof("type_spec")
    if kind == "bitstring":
        return _bitstring(spec.bitstring)
    if kind == "bool":
        return lambda given: p4data_pb2.P4Data(bool=bool(next(given)))
    if kind == "tuple":
        return _sequence("tuple", [reader(member, types) for member in spec.tuple.members])
    if kind == "struct":
        members = types.structs[spec.struct.name].members
        return _sequence("struct", [reader(member.type_spec, types) for member in members])
    if kind == "serializable_enum":
        enum = types.serializable_enums[spec.serializable_enum.name]
        bits = p4types_pb2.P4BitstringLikeTypeSpec(bit=enum.underlying_type)
        inner = _bitstring(bits)
        return lambda given: p4data_pb2.P4Data(enum_value=inner(given).bitstring)
    if kind == "new_type":
        new = types.new_types[spec.new_type.name]
        if new.WhichOneof("representation") == "original_type":
            return reader(new.original_type, types)
        translated = new.translated_type
        if translated.WhichOneof("sdn_type") == "sdn_bitwidth":
            width = p4types_pb2.P4BitTypeSpec(bitwidth=translated.sdn_bitwidth)
            return _bitstring(p4types_pb2.P4BitstringLikeTypeSpec(bit=width))
    raise invalid(f"a digest with a member of type {kind or 'none'} is not supported; bits, bools, structs are")


def _bitstring(spec: p4types_pb2.P4BitstringLikeTypeSpec) -> Reader:
    kind = spec.WhichOneof("type_spec")
    if kind not in ("bit", "int"):
        raise invalid(f"a digest with a member of type {kind} is not supported; bits, bools, structs are")
    width = getattr(spec, kind).bitwidth

    def read(given: Iterator[int]) -> p4data_pb2.P4Data:
        value = 0
        for _ in range(words(width)):
            value = value << WORD | next(given)
        value &= 2**width - 1
        if kind == "int":
            return p4data_pb2.P4Data(bitstring=_canonical_signed(value, width))
        return p4data_pb2.P4Data(bitstring=canonical(value))

    return read


def _canonical_signed(value: int, width: int) -> bytes:
    """Two's complement in the fewest bytes."""
    signed = value - 2**width if value >> (width - 1) else value
    bits = (signed if signed >= 0 else ~signed).bit_length() + 1
    return signed.to_bytes((bits + 7) // 8, "big", signed=True)


def _sequence(kind: str, readers: list[Reader]) -> Reader:
    def read(given: Iterator[int]) -> p4data_pb2.P4Data:
        made: Any = p4data_pb2.P4Data()
        part = getattr(made, kind)
        part.SetInParent()
        part.members.extend(each(given) for each in readers)
        return made

    return read
