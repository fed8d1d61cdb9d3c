"""Other people's programs: what tests/data/*.p4 do to single frames, without sockets, against a model in Python.

The frames and answers of semantics.p4 were once compared with BMv2's, byte for byte. Recompile after a change with
`p4c-bm2-ss --p4v 16 --p4runtime-files NAME.p4info.txtpb -o NAME.json NAME.p4`.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address
from typing import Any

import grpc
import pytest
from p4.v1 import p4runtime_pb2 as p4rt

from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from emulation.switch.p4runtime.status import RequestError
from tests.conftest import ROOT

DATA = ROOT / "tests/data"


def load(name: str) -> Pipeline:
    program, p4info = DATA / f"{name}.json", DATA / f"{name}.p4info.txtpb"
    return Pipeline(load_config(program.read_bytes(), p4info.read_text()))


# ---- semantics.p4 -----------------------------------------------------------------------------------------------

M32 = 2**32 - 1
PORT = 3
UPDATE = p4rt.Update


@pytest.fixture
def semantics() -> Iterator[Pipeline]:
    pipeline = load("semantics")
    yield pipeline
    pipeline.dataplane.close()


def request(kind: int, shift: int, a: int, b: int, wide: int, three: int, thirteen: int, index: int) -> bytes:
    packed = struct.pack(">BBII", kind, shift, a, b) + wide.to_bytes(6, "big")
    return packed + struct.pack(">HI", three << 13 | thirteen, index)


def signed(value: int, bits: int) -> int:
    value &= 2**bits - 1
    return value - 2**bits if value >> (bits - 1) else value


def answer(
    kind: int, shift: int, a: int, b: int, wide: int, three: int, thirteen: int, index: int, totals: dict[int, int]
) -> bytes:
    """What semantics.p4 says, in Python's integers; `totals` is its register."""
    m64 = 2**64 - 1
    ahead = signed(a - b, 32)
    flags = (ahead > 0) | (ahead < 0) << 1 | (a > b) << 2 | (signed(three, 3) < 0) << 3 | (-5 <= ahead <= 5) << 4
    stored = totals.get(index, 0)
    if index < 4:
        totals[index] = (stored + a) & M32
    return (
        struct.pack(
            ">IIIIII",
            (a + b) & M32,
            (a - b) & M32,
            a * b & M32,
            a << shift & M32,
            a >> shift,
            min(a + b, M32),
        )
        + ((wide * (wide ^ m64) + (wide ^ m64)) & m64).to_bytes(8, "big")
        + ((wide << 7 | wide >> 41) & (2**48 - 1)).to_bytes(6, "big")
        + struct.pack(
            ">HBBII",
            three << 13 | thirteen,
            flags,
            (signed(signed(kind, 8) - 3, 8) >> 1) & 0xFF,
            stored,
            signed(b, 20) & M32 if index < 4 else 0,
        )
    )


def frames(count: int) -> Iterator[tuple[int, ...]]:
    draw = random.Random(5)

    def number(bits: int) -> int:
        edge = [0, 1, 2 ** (bits - 1) - 1, 2 ** (bits - 1), 2**bits - 1, draw.getrandbits(bits)]
        return draw.choice(edge)

    for _ in range(count):
        a = number(32)
        b = draw.choice([number(32), (a + draw.randint(-6, 6)) & M32])
        shift = draw.choice([0, 1, 31, 32, 33, 200, 255])
        yield draw.randint(1, 9), shift, a, b, number(48), number(3), number(13), draw.choice([0, 1, 3, 4, M32])


def test_arithmetic_and_registers_follow_the_model(semantics: Pipeline) -> None:
    totals: dict[int, int] = {}
    for fields in frames(300):
        sent = semantics.dataplane.process(PORT, request(*fields) + b"rest")
        assert sent == [(PORT, answer(*fields, totals) + b"rest")], fields


def register_id(pipeline: Pipeline, name: str) -> int:
    return next(r.preamble.id for r in pipeline.config.p4info.registers if r.preamble.name == f"ingress.{name}")


def test_registers_are_read_and_written(semantics: Pipeline) -> None:
    """Section 9.7 of P4Runtime, in which BMv2 has nothing."""
    totals, signs = (register_id(semantics, name) for name in ("totals", "signs"))
    fields = (1, 0, 0x11223344, 0xFFF00001, 0, 0, 0, 2)
    semantics.dataplane.process(PORT, request(*fields))

    def held(register: int) -> list[bytes]:
        wanted = p4rt.Entity(register_entry=p4rt.RegisterEntry(register_id=register))
        found = [each.register_entry for each in semantics.read(wanted)]
        assert [each.index.index for each in found] == list(range(4))
        return [each.data.bitstring for each in found]

    assert held(totals) == [b"\0", b"\0", b"\x11\x22\x33\x44", b"\0"]
    assert held(signs) == [b"\0", b"\0", b"\x01", b"\0"]

    def write(register: int, index: int | None, data: bytes, how: int = UPDATE.MODIFY) -> None:
        entity = p4rt.Entity(register_entry=p4rt.RegisterEntry(register_id=register))
        entity.register_entry.data.bitstring = data
        if index is not None:
            entity.register_entry.index.index = index
        with semantics.dataplane.writing():
            semantics.update(p4rt.Update(type=how, entity=entity))

    write(totals, None, b"\x05")
    write(totals, 1, b"\xff\xff\xff\xff")
    write(signs, 3, b"\xff\xfe")
    assert held(totals) == [b"\x05", b"\xff\xff\xff\xff", b"\x05", b"\x05"]
    assert held(signs) == [b"\0", b"\0", b"\x01", b"\xfe"]
    # What was written is what the program adds to.
    ((_, frame),) = semantics.dataplane.process(PORT, request(*fields))
    assert frame == answer(*fields, {2: 5})
    for register, index, data, how, code in (
        (totals, 4, b"\1", UPDATE.MODIFY, grpc.StatusCode.OUT_OF_RANGE),
        (totals, 0, b"\1\0\0\0\0", UPDATE.MODIFY, grpc.StatusCode.OUT_OF_RANGE),
        (signs, 0, b"\x08\0\0", UPDATE.MODIFY, grpc.StatusCode.OUT_OF_RANGE),
        (totals, 0, b"\1", UPDATE.INSERT, grpc.StatusCode.INVALID_ARGUMENT),
        (totals ^ 1, 0, b"\1", UPDATE.MODIFY, grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(RequestError) as refused:
            write(register, index, data, how)
        assert refused.value.code == code


def test_a_marked_request_takes_another_way_through_the_parser(semantics: Pipeline) -> None:
    fields = next(frames(1))
    ((_, frame),) = semantics.dataplane.process(PORT, b"\xf7\x12\x34" + request(*fields))
    assert frame == answer(*fields, {}) + b"\x12\x34"  # the mark, copied behind the answer; itself invalid


@pytest.mark.parametrize(
    ("frame", "left"),
    [
        pytest.param(b"\x05" * 3, b"\x00\x01" + b"\x05" * 3, id="extract beyond the end"),
        pytest.param(b"", b"\x00\x01", id="lookahead beyond the end"),
        pytest.param(b"\xf0\x12", b"\x00\x01\x12", id="extract behind an advance"),
        pytest.param(b"\xf0\xde\xadxyz", b"\xde\xad\x00\x02xyz", id="verify"),
    ],
)
def test_parser_errors_reach_ingress(semantics: Pipeline, frame: bytes, left: bytes) -> None:
    assert semantics.dataplane.process(PORT, frame) == [(PORT, left)]


@pytest.mark.parametrize("frame", [b"\x0afew", b"\x0bnone", b"\x00rejected"])
def test_no_match_ends_parsing_without_an_error_as_in_bmv2(semantics: Pipeline, frame: bytes) -> None:
    assert semantics.dataplane.process(PORT, frame) == []


# ---- tables.p4 --------------------------------------------------------------------------------------------------


@pytest.fixture
def tables() -> Iterator[Pipeline]:
    pipeline = load("tables")
    yield pipeline
    pipeline.dataplane.close()


def ids(pipeline: Pipeline) -> dict[str, int]:
    info = pipeline.config.p4info
    return {found.preamble.alias: found.preamble.id for kind in (info.tables, info.actions) for found in kind}


def entry(
    pipeline: Pipeline, table: str, match: list[dict[str, Any]], action: str, *params: int, priority: int = 0
) -> p4rt.TableEntry:
    """An entry; `match` holds one FieldMatch per key as keyword arguments, {} for a key left out."""
    made = p4rt.TableEntry(table_id=ids(pipeline)[table], priority=priority)
    made.match.extend(p4rt.FieldMatch(field_id=i, **m) for i, m in enumerate(match, start=1) if m)
    made.action.action.action_id = ids(pipeline)[action]
    for i, value in enumerate(params, start=1):
        made.action.action.params.add(param_id=i, value=number(value))
    return made


def number(value: int) -> bytes:
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def exact(value: int) -> dict[str, Any]:
    return {"exact": p4rt.FieldMatch.Exact(value=number(value))}


def lpm(address: str, length: int) -> dict[str, Any]:
    return {"lpm": p4rt.FieldMatch.LPM(value=IPv4Address(address).packed, prefix_len=length)}


def ternary(value: int, mask: int) -> dict[str, Any]:
    return {"ternary": p4rt.FieldMatch.Ternary(value=number(value), mask=number(mask))}


def write(pipeline: Pipeline, how: int, *entities: p4rt.TableEntry | p4rt.Entity) -> None:
    with pipeline.dataplane.writing():
        for entity in entities:
            wrapped = entity if isinstance(entity, p4rt.Entity) else p4rt.Entity(table_entry=entity)
            pipeline.update(p4rt.Update(type=how, entity=wrapped))  # type: ignore[arg-type]


def refused(pipeline: Pipeline, how: int, entity: p4rt.TableEntry | p4rt.Entity) -> RequestError:
    with pytest.raises(RequestError) as error:
        write(pipeline, how, entity)
    return error.value


def group(number: int, *replicas: tuple[int, int]) -> p4rt.Entity:
    made = p4rt.Entity()
    written = made.packet_replication_engine_entry.multicast_group_entry
    written.multicast_group_id = number
    for port, instance in replicas:
        written.replicas.add(egress_port=port, instance=instance)
    return made


def checksum(header: bytes) -> int:
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet(
    source: str = "10.0.0.1", to: str = "10.1.2.3", ttl: int = 64, protocol: int = 17, dscp: int = 0, damage: int = 0
) -> bytes:
    addresses = IPv4Address(source).packed + IPv4Address(to).packed
    front = struct.pack(">BBHHHBB", 0x45, dscp, 20, 7, 0x4001, ttl, protocol)
    return front + struct.pack(">H", checksum(front + b"\0\0" + addresses) ^ damage) + addresses


TRACE = ("exact_hit", "route", "verdict", "choice", "branch", "bad_checksum", "instance", "port", "kind")


def traces(pipeline: Pipeline, frame: bytes, port: int = 1) -> list[dict[str, int]]:
    """What the program wrote about each frame that left, which must carry a right checksum."""
    found = []
    for egress, left in pipeline.dataplane.process(port, frame):
        trace = dict(zip(TRACE, struct.unpack(">BBBBBBHHI", left[:14]), strict=True))
        assert trace["port"] == egress
        assert checksum(left[14:34]) == 0
        found.append(trace)
    return found


def trace(pipeline: Pipeline, frame: bytes, port: int = 1) -> dict[str, int]:
    (found,) = traces(pipeline, frame, port)
    return found


@pytest.fixture
def routed(tables: Pipeline) -> Pipeline:
    """With a route for everything."""
    write(tables, UPDATE.INSERT, entry(tables, "routes", [{}], "route", 9, 1))
    return tables


def test_the_longest_prefix_wins_and_a_miss_runs_the_default(tables: Pipeline) -> None:
    assert traces(tables, packet()) == []  # lost(): dropped, and exit skips nothing that could undo it
    write(
        tables,
        UPDATE.INSERT,
        entry(tables, "routes", [lpm("10.0.0.0", 8)], "route", 1, 8),
        entry(tables, "routes", [lpm("10.1.2.3", 32)], "route", 2, 32),
        entry(tables, "routes", [lpm("10.1.0.0", 16)], "route", 3, 16),
    )
    reached = {to: trace(tables, packet(to=to))["route"] for to in ("10.1.2.3", "10.1.2.4", "10.2.0.0")}
    assert reached == {"10.1.2.3": 32, "10.1.2.4": 16, "10.2.0.0": 8}
    assert traces(tables, packet(to="11.0.0.0")) == []
    write(tables, UPDATE.DELETE, entry(tables, "routes", [lpm("10.1.2.3", 32)], "route", 2, 32))
    assert trace(tables, packet())["route"] == 16
    write(tables, UPDATE.MODIFY, entry(tables, "routes", [lpm("10.1.0.0", 16)], "route", 3, 99))
    assert trace(tables, packet())["route"] == 99


def test_exact_hit_and_miss_branch(routed: Pipeline) -> None:
    write(routed, UPDATE.INSERT, entry(routed, "hosts", [exact(0x0A000001), exact(17)], "known"))
    assert trace(routed, packet())["exact_hit"] == 1
    assert trace(routed, packet(protocol=6))["exact_hit"] == 0
    assert trace(routed, packet(dscp=1))["branch"] == 1
    assert trace(routed, packet(dscp=2))["branch"] == 2


def test_ternary_entries_by_priority_not_by_order(routed: Pipeline) -> None:
    anyone, me = ternary(0x0A000000, 0xFF000000), ternary(0x0A000001, 0xFFFFFFFF)
    write(
        routed,
        UPDATE.INSERT,
        entry(routed, "verdicts", [anyone, {}, exact(1)], "verdict", 1, priority=30),
        entry(routed, "verdicts", [me, {}, exact(1)], "verdict", 2, priority=20),
        entry(routed, "verdicts", [me, ternary(17, 255), exact(1)], "verdict", 3, priority=40),
        entry(routed, "verdicts", [anyone, {}, exact(1)], "verdict", 4, priority=10),
    )
    assert trace(routed, packet())["verdict"] == 3
    assert trace(routed, packet(protocol=6))["verdict"] == 1
    assert trace(routed, packet(), port=2)["verdict"] == 99
    # The same key at two priorities is two entries: the other one shows when the first goes.
    write(routed, UPDATE.DELETE, entry(routed, "verdicts", [anyone, {}, exact(1)], "verdict", 1, priority=30))
    assert trace(routed, packet(protocol=6))["verdict"] == 2
    assert trace(routed, packet(source="10.0.0.9"))["verdict"] == 4


@pytest.mark.parametrize(
    ("ttl", "protocol", "choice"), [(1, 17, 1), (0x85, 6, 2), (0x90, 6, 3), (0x90, 17, 4), (2, 17, 0), (1, 6, 3)]
)
def test_constant_entries_in_their_order(routed: Pipeline, ttl: int, protocol: int, choice: int) -> None:
    assert trace(routed, packet(ttl=ttl, protocol=protocol))["choice"] == choice


def test_a_wrong_checksum_is_seen_and_the_new_one_is_right(routed: Pipeline) -> None:
    assert trace(routed, packet())["bad_checksum"] == 0
    assert trace(routed, packet(damage=0x10))["bad_checksum"] == 1
    ((_, left),) = routed.dataplane.process(1, packet(ttl=0))
    assert left[14 + 8] == 0  # |-| stays at the bottom


def test_replicas_are_processed_one_by_one(tables: Pipeline) -> None:
    write(
        tables,
        UPDATE.INSERT,
        group(5, (1, 11), (2, 12), (3, 13), (2, 14)),
        entry(tables, "routes", [{}], "replicate", 5),
    )
    left = [(t["port"], t["instance"], t["kind"]) for t in traces(tables, packet())]
    assert left == [(1, 11, 5), (2, 12, 5), (2, 14, 5)]  # egress drops instance 13
    write(tables, UPDATE.MODIFY, group(5, (4, 1)))
    assert [t["port"] for t in traces(tables, packet())] == [4]
    write(tables, UPDATE.DELETE, group(5))
    assert traces(tables, packet()) == []


def test_replicas_that_no_switch_port_can_be_are_refused(tables: Pipeline) -> None:
    for replica in ((511, 1), (70000, 1), (1, 65536)):
        error = refused(tables, UPDATE.INSERT, group(5, replica))
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT
        assert "ports are 0..510 and instances 0..65535" in str(error)


def test_default_actions_change_and_come_back(routed: Pipeline) -> None:
    default = entry(routed, "verdicts", [], "verdict", 7)
    default.is_default_action = True
    write(routed, UPDATE.MODIFY, default)
    assert trace(routed, packet())["verdict"] == 7
    write(routed, UPDATE.MODIFY, p4rt.TableEntry(table_id=default.table_id, is_default_action=True))
    assert trace(routed, packet())["verdict"] == 99
    wanted = p4rt.Entity(table_entry=p4rt.TableEntry(table_id=default.table_id, is_default_action=True))
    (found,) = routed.read(wanted)
    assert found.table_entry.action.action.params[0].value == b"\x63"
    constant = entry(routed, "branches", [], "first")
    constant.is_default_action = True
    assert refused(routed, UPDATE.MODIFY, constant).code == grpc.StatusCode.PERMISSION_DENIED


def test_direct_counters_count_per_entry(routed: Pipeline) -> None:
    write(routed, UPDATE.INSERT, entry(routed, "routes", [lpm("10.1.2.3", 32)], "route", 2, 32))
    for _ in range(3):
        trace(routed, packet())
    trace(routed, packet(to="1.1.1.1"))
    counted = p4rt.Entity()
    counted.direct_counter_entry.table_entry.table_id = ids(routed)["routes"]
    data = [found.direct_counter_entry.data for found in routed.read(counted)]
    assert [(d.packet_count, d.byte_count) for d in data] == [(1, 20), (3, 60)]
    counted.direct_counter_entry.table_entry.match.add(field_id=1).lpm.CopyFrom(lpm("10.1.2.3", 32)["lpm"])
    write(routed, UPDATE.MODIFY, counted)
    (found,) = routed.read(counted)
    assert found.direct_counter_entry.data.packet_count == 3  # no data changes nothing
    counted.direct_counter_entry.data.SetInParent()
    write(routed, UPDATE.MODIFY, counted)
    (found,) = routed.read(counted)
    assert found.direct_counter_entry.data.packet_count == 0
    counted.direct_counter_entry.table_entry.table_id = ids(routed)["hosts"]
    with pytest.raises(RequestError, match="has no direct counter"):
        list(routed.read(counted))


def test_constant_entries_can_be_read_but_not_written(tables: Pipeline) -> None:
    wanted = p4rt.Entity(table_entry=p4rt.TableEntry(table_id=ids(tables)["choices"]))
    found = [read.table_entry for read in tables.read(wanted)]
    assert [e.action.action.params[0].value[0] for e in found] == [1, 2, 3, 4]
    assert all(e.is_const for e in found)
    assert [e.priority for e in found] == sorted((e.priority for e in found), reverse=True)
    assert [m.WhichOneof("field_match_type") for m in found[0].match] == ["ternary", "optional"]
    assert [m.field_id for m in found[1].match] == [1]  # the optional key is left out
    assert refused(tables, UPDATE.DELETE, found[0]).code == grpc.StatusCode.PERMISSION_DENIED


def test_what_a_table_does_not_take_is_refused(tables: Pipeline) -> None:
    known = entry(tables, "hosts", [exact(1), exact(17)], "known")
    idle = p4rt.TableEntry()
    idle.CopyFrom(known)
    idle.idle_timeout_ns = 1
    assert refused(tables, UPDATE.INSERT, idle).code == grpc.StatusCode.INVALID_ARGUMENT
    default_only = entry(tables, "hosts", [exact(1), exact(17)], "NoAction")
    assert "its actions are ingress.known" in str(refused(tables, UPDATE.INSERT, default_only))
    write(tables, UPDATE.INSERT, known, entry(tables, "hosts", [exact(2), exact(17)], "known"))
    full = refused(tables, UPDATE.INSERT, entry(tables, "hosts", [exact(3), exact(17)], "known"))
    assert full.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    write(tables, UPDATE.DELETE, known)
    write(tables, UPDATE.INSERT, entry(tables, "hosts", [exact(3), exact(17)], "known"))
    assert "matched by lpm, not exact" in str(
        refused(tables, UPDATE.INSERT, entry(tables, "routes", [exact(1)], "route", 1, 1))
    )


def test_p4info_of_another_program_is_refused() -> None:
    for change, says in [
        (lambda info: info.tables[0].match_fields.pop(), "does not have the program's keys"),
        (lambda info: setattr(info.tables[0].match_fields[0], "bitwidth", 8), "does not have the program's keys"),
        (lambda info: info.tables[0].action_refs.add(id=5), "has an action .* that the program's table has not"),
        (
            lambda info: next(a for a in info.actions if a.params).params.pop(),
            "does not have the program's parameters",
        ),
    ]:
        program, p4info = DATA / "tables.json", DATA / "tables.p4info.txtpb"
        config = load_config(program.read_bytes(), p4info.read_text())
        change(config.p4info)
        with pytest.raises(RequestError, match=says):
            Pipeline(config)
