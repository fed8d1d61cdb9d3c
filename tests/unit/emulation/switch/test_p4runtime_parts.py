"""Parts of the P4Runtime side by themselves: digest values, role configs, packet headers, meter rates."""

from __future__ import annotations

import grpc
import pytest
from google.protobuf import any_pb2, text_format
from p4.config.v1 import p4info_pb2, p4types_pb2
from p4.v1 import p4data_pb2
from p4.v1 import p4runtime_pb2 as p4rt

from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.p4runtime.meter_config import rates
from emulation.switch.p4runtime.p4data import reader
from emulation.switch.p4runtime.packet_io import PacketHeaders
from emulation.switch.p4runtime.roles import RoleConfig, p4_id, parse_role
from emulation.switch.p4runtime.status import RequestError
from tests.conftest import ROOT

TYPES = """
structs { key: "pair" value {
    members { name: "first" type_spec { bitstring { bit { bitwidth: 72 } } } }
    members { name: "second" type_spec { new_type { name: "port_t" } } }
} }
new_types { key: "port_t" value { translated_type { sdn_bitwidth: 9 } } }
new_types { key: "plain_t" value { original_type { bitstring { bit { bitwidth: 4 } } } } }
serializable_enums { key: "kind_t" value { underlying_type { bitwidth: 8 } } }
"""


def spec(text: str) -> p4types_pb2.P4DataTypeSpec:
    return text_format.Parse(text, p4types_pb2.P4DataTypeSpec())


@pytest.mark.parametrize(
    ("type_spec", "words", "value"),
    [
        ("bitstring { bit { bitwidth: 16 } }", [0], 'bitstring: "\\000"'),
        ("bitstring { int { bitwidth: 8 } }", [0x80], 'bitstring: "\\200"'),
        ("bitstring { int { bitwidth: 8 } }", [0x7F], 'bitstring: "\\177"'),
        ("bitstring { int { bitwidth: 16 } }", [0xFFFF], 'bitstring: "\\377"'),
        ("bitstring { int { bitwidth: 16 } }", [0x80], 'bitstring: "\\000\\200"'),
        ("bool {}", [1], "bool: true"),
        ('new_type { name: "plain_t" }', [5], 'bitstring: "\\005"'),
        ('serializable_enum { name: "kind_t" }', [7], 'enum_value: "\\007"'),
        (
            'struct { name: "pair" }',
            [1, 2, 3],
            'struct { members { bitstring: "\\001\\000\\000\\000\\000\\000\\000\\000\\002" } members { bitstring: "\\003" } }',
        ),
        ("tuple { members { bool {} } }", [0], "tuple { members { bool: false } }"),
    ],
)
def test_digest_values(type_spec: str, words: list[int], value: str) -> None:
    types = text_format.Parse(TYPES, p4types_pb2.P4TypeInfo())
    assert reader(spec(type_spec), types)(iter(words)) == text_format.Parse(value, p4data_pb2.P4Data())


@pytest.mark.parametrize("type_spec", ['header { name: "h" }', "bitstring { varbit { max_bitwidth: 8 } }", ""])
def test_digest_types_that_are_none(type_spec: str) -> None:
    with pytest.raises(RequestError, match="is not supported"):
        reader(spec(type_spec), p4types_pb2.P4TypeInfo())


def role(value: bytes, kind: str = "stratum.P4RoleConfig", name: str = "some") -> p4rt.Role:
    return p4rt.Role(name=name, config=any_pb2.Any(type_url=f"type.googleapis.com/{kind}", value=value))


def test_role_configs() -> None:
    assert parse_role(p4rt.Role(name="some")) == RoleConfig()
    # Ids packed and one by one, a filter, packet-ins, pipelines, and a field that nobody knows.
    wire = b"\x0a\x03\x01\xac\x02" + b"\x10\x07" + b"\x1a\x05\x08\x03\x12\x01x" + b"\x20\x01\x28\x01" + b"\x55\0\0\0\0"
    parsed = parse_role(role(wire))
    assert parsed == RoleConfig(frozenset({1, 300, 7}), frozenset({1, 300}), True, (3, b"x"), True)
    packet = p4rt.PacketIn()
    assert not parsed.receives(packet)
    packet.metadata.add(metadata_id=3, value=b"x")
    assert parsed.receives(packet)
    assert parsed.allows(7) and parsed.allows(0) and not parsed.allows(8)
    for config in (
        role(b"", "p4.v1.Other"),
        role(b"", name=""),
        role(b"\x0f"),
        role(b"\x08\xff"),
        role(b"\x0a\x01\xff"),
    ):
        with pytest.raises(RequestError) as refused:
            parse_role(config)
        assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT


def test_the_p4_id_of_an_entity() -> None:
    entity = p4rt.Entity()
    entity.direct_meter_entry.table_entry.table_id = 9
    assert p4_id(entity) == 9
    entity.digest_entry.digest_id = 4
    assert p4_id(entity) == 4
    entity.packet_replication_engine_entry.multicast_group_entry.multicast_group_id = 3
    assert p4_id(entity) == 0


def test_controller_headers_are_whole_bytes() -> None:
    program = Program((ROOT / "tests" / "data" / "resources.json").read_text())  # which has no such headers
    info = p4info_pb2.P4Info()
    header = info.controller_packet_metadata.add()
    header.preamble.name = "packet_in"
    header.metadata.add(id=1, name="port", bitwidth=9)
    with pytest.raises(RequestError, match="9 bits"):
        PacketHeaders(info, program)
    header.metadata.add(id=2, name="pad", bitwidth=7)
    headers = PacketHeaders(info, program)
    assert headers.packet(b"\x01") is None
    packet = headers.packet(b"\x80\x83rest")
    assert packet is not None and packet.payload == b"rest"
    assert [each.value for each in packet.metadata] == [b"\x01\x01", b"\x03"]
    assert headers.frame(p4rt.PacketOut(payload=b"bare")) == b"bare"


@pytest.mark.parametrize(
    ("kind", "config", "code"),
    [
        (p4info_pb2.MeterSpec.SINGLE_RATE_TWO_COLOR, {"cir": 1, "pir": 2}, grpc.StatusCode.INVALID_ARGUMENT),
        (p4info_pb2.MeterSpec.SINGLE_RATE_TWO_COLOR, {"eburst": 1}, grpc.StatusCode.INVALID_ARGUMENT),
        (p4info_pb2.MeterSpec.SINGLE_RATE_THREE_COLOR, {"eburst": -1}, grpc.StatusCode.INVALID_ARGUMENT),
        (p4info_pb2.MeterSpec.TWO_RATE_THREE_COLOR, {"eburst": 1}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_meter_types_restrict_their_config(kind: int, config: dict[str, int], code: grpc.StatusCode) -> None:
    with pytest.raises(RequestError) as refused:
        rates("meter", p4info_pb2.MeterSpec(type=kind), p4rt.MeterConfig(**config))
    assert refused.value.code == code
    assert rates("meter", p4info_pb2.MeterSpec(type=kind), p4rt.MeterConfig(cir=1, pir=1)) == [1, 0, 1, 0, 0]


def test_only_a_meter_of_a_single_rate_and_three_colours_has_an_excess_burst() -> None:
    spec = p4info_pb2.MeterSpec(type=p4info_pb2.MeterSpec.SINGLE_RATE_THREE_COLOR)
    assert rates("meter", spec, p4rt.MeterConfig(cir=1, pir=1, eburst=3)) == [1, 0, 1, 0, 3]
