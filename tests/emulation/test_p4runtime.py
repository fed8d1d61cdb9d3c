"""P4Runtime as its clients expect it, over a gRPC channel to a server in this process.

Programs: tests/data/control.p4 (packets in and out, digests, idle entries, clones, value sets), resources.p4 (wide,
range and optional keys, action profiles, meters, counters) and translated.p4 (@p4runtime_translation). Recompile after
a change with `p4c-bm2-ss --p4v 16 --p4runtime-files NAME.p4info.txtpb -o NAME.json NAME.p4`.

Compared once with BMv2's simple_switch_grpc over P4Runtime, frame by frame, with equal results:

- which of 40 flows each member of a group, of a weighted group and of a one-shot gets;
- the colours of direct and indirect meters;
- ranges with optional keys, packet-ins, and the members of a digest;
- idle notifications, except for the entry's metadata, which BMv2 leaves out.

BMv2 has no value sets there and refuses packet_length_bytes, so clones by this program were not compared.
"""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import any_pb2
from google.rpc import code_pb2
from p4.config.v1 import p4info_pb2
from p4.v1 import p4data_pb2
from p4.v1 import p4runtime_pb2 as p4rt

from hostlib.system.network_namespace import veths
from tests.emulation.p4runtime import (
    CONFIG,
    CPU_PORT,
    UPDATE,
    Controller,
    Refused,
    Switch,
    between,
    config,
    exact,
    fails,
    lpm,
    number,
    optional,
    switch,
)

Code = grpc.StatusCode
ROLLBACK = p4rt.WriteRequest.ROLLBACK_ON_ERROR
ATOMIC = p4rt.WriteRequest.DATAPLANE_ATOMIC
HOST, OTHER = 0x020000000001, 0x020000000002


def primary(running: Switch) -> Controller:
    controller = running.controller()
    assert controller.arbitrate() == code_pb2.OK
    return controller


@pytest.fixture
def control() -> Iterator[tuple[Switch, Controller]]:
    """control.p4 with its primary."""
    with switch("control") as running:
        yield running, primary(running)


@pytest.fixture
def resources() -> Iterator[tuple[Switch, Controller]]:
    """resources.p4 with its primary."""
    with switch("resources") as running:
        yield running, primary(running)


def ethernet(to: int = OTHER, source: int = HOST, kind: int = 0x0800, payload: bytes = b"payload") -> bytes:
    return to.to_bytes(6, "big") + source.to_bytes(6, "big") + kind.to_bytes(2, "big") + payload


# ---- arbitration ------------------------------------------------------------------------------------------------


def test_the_highest_election_id_is_primary_and_all_hear_of_changes() -> None:
    with switch("control") as running:
        first, second = running.controller(5), running.controller(7)
        assert first.arbitrate() == code_pb2.OK
        assert second.arbitrate() == code_pb2.OK
        arbitration = first.next("arbitration")
        assert (arbitration.status.code, arbitration.election_id.low) == (code_pb2.ALREADY_EXISTS, 7)
        assert fails(Code.PERMISSION_DENIED, first.insert, p4rt.MulticastGroupEntry(multicast_group_id=1))
        second.insert(p4rt.MulticastGroupEntry(multicast_group_id=1))
        second.close()
        arbitration = first.next("arbitration")
        assert (arbitration.status.code, arbitration.election_id.low) == (code_pb2.NOT_FOUND, 7)
        assert first.arbitrate(election=6) == code_pb2.NOT_FOUND  # the highest ever seen was 7
        assert first.arbitrate(election=7) == code_pb2.OK


def test_a_primary_may_step_down_and_a_backup_need_not_bid() -> None:
    with switch("control") as running:
        first, idle = running.controller(5), running.controller(0)
        assert idle.arbitrate() == code_pb2.NOT_FOUND
        assert first.arbitrate() == code_pb2.OK
        assert idle.next("arbitration").status.code == code_pb2.ALREADY_EXISTS
        assert first.arbitrate(election=4) == code_pb2.NOT_FOUND
        assert idle.next("arbitration").status.code == code_pb2.NOT_FOUND


def test_arbitration_that_ends_the_stream() -> None:
    with switch("control") as running:
        first = primary(running)
        taken, elsewhere = running.controller(1), running.controller(2)
        taken.bid()
        assert taken.ended.get(timeout=5).code == Code.INVALID_ARGUMENT
        elsewhere.bid(device_id=7)
        assert elsewhere.ended.get(timeout=5).code == Code.NOT_FOUND
        first.role = "another"
        first.bid()
        assert first.ended.get(timeout=5).code == Code.FAILED_PRECONDITION


def test_there_are_no_more_streams_than_the_server_can_serve() -> None:
    with switch("control") as running:
        many = [running.controller(i) for i in range(1, 30)]
        for each in many:
            each.bid()
        assert many[-1].ended.get(timeout=5).code == Code.RESOURCE_EXHAUSTED
        assert running.service.streams == 24


# ---- roles ------------------------------------------------------------------------------------------------------


def role_config(exclusive: list[int], shared: list[int], packet_ins: bool = False) -> any_pb2.Any:
    """stratum.P4RoleConfig on the wire."""

    def packed(field: int, ids: list[int]) -> bytes:
        body = b""
        for value in ids:
            while value > 127:
                body += bytes([value & 127 | 128])
                value >>= 7
            body += bytes([value])
        return bytes([field << 3 | 2, len(body)]) + body

    value = packed(1, exclusive) + packed(2, shared) + (b"\x20\x01" if packet_ins else b"")
    return any_pb2.Any(type_url="type.googleapis.com/stratum.P4RoleConfig", value=value)


def test_a_role_writes_and_reads_what_its_config_names() -> None:
    with switch("control") as running:
        routing, learning = running.controller(1, "routing"), running.controller(1, "learning")
        destinations, sources = routing.id("destinations"), routing.id("sources")
        assert routing.arbitrate(role_config=role_config([destinations], [])) == code_pb2.OK
        assert learning.arbitrate(role_config=role_config([sources], [])) == code_pb2.OK
        route = routing.entry("destinations", exact(HOST), action=routing.action("forward", 1))
        known = learning.entry("sources", exact(HOST), action=learning.action("NoAction"))
        routing.insert(route)
        learning.insert(known)
        fails(Code.PERMISSION_DENIED, routing.insert, known)
        assert routing.read(p4rt.TableEntry(), role="routing") == [route]
        assert len(routing.read(p4rt.TableEntry())) == 2
        assert "not this role's" in fails(Code.PERMISSION_DENIED, routing.read, known, role="routing")
        fails(Code.PERMISSION_DENIED, routing.push, CONFIG.VERIFY, config("control"))
        third = running.controller(1, "third")
        third.bid(role_config=role_config([], [sources]))
        ended = third.ended.get(timeout=5)
        assert ended.code == Code.INVALID_ARGUMENT and "exclusive" in ended.text


def test_a_role_without_config_has_full_access_and_others_are_refused() -> None:
    with switch("control") as running:
        free, stranger = running.controller(1, "free"), running.controller(1, "stranger")
        assert free.arbitrate() == code_pb2.OK
        free.push(CONFIG.VERIFY_AND_COMMIT, config("control"))
        free.insert(free.entry("sources", exact(HOST), action=free.action("NoAction")))
        stranger.bid(role_config=any_pb2.Any(type_url="type.googleapis.com/p4.v1.Role"))
        ended = stranger.ended.get(timeout=5)
        assert ended.code == Code.INVALID_ARGUMENT and "stratum.P4RoleConfig" in ended.text


def test_packet_ins_go_to_the_roles_that_want_them() -> None:
    with switch("control") as running:
        eager, deaf = running.controller(1, "eager"), running.controller(1, "deaf")
        assert eager.arbitrate(role_config=role_config([], [eager.id("destinations")], True)) == code_pb2.OK
        assert deaf.arbitrate(role_config=role_config([], [eager.id("sources")])) == code_pb2.OK
        eager.insert(eager.entry("destinations", exact(OTHER), action=eager.action("punt", 3)))
        running.process(1, ethernet())
        assert eager.next("packet").payload == ethernet()
        assert deaf.none("packet")


# ---- pipeline config --------------------------------------------------------------------------------------------


def test_without_a_pipeline() -> None:
    with switch(None) as running:
        controller = primary(running)
        request = p4rt.GetForwardingPipelineConfigRequest(device_id=1)
        assert not controller.stub.GetForwardingPipelineConfig(request).HasField("config")
        fails(Code.FAILED_PRECONDITION, controller.read, p4rt.TableEntry())
        fails(Code.NOT_FOUND, controller.push, CONFIG.COMMIT)
        fails(Code.INVALID_ARGUMENT, controller.push, CONFIG.VERIFY)
        controller.push(CONFIG.VERIFY, config("control"))
        fails(Code.FAILED_PRECONDITION, controller.read, p4rt.TableEntry())
        pushed = config("control")
        pushed.cookie.cookie = 77
        controller.push(CONFIG.VERIFY_AND_COMMIT, pushed)
        assert controller.stub.GetForwardingPipelineConfig(request).config == pushed
        request.response_type = p4rt.GetForwardingPipelineConfigRequest.COOKIE_ONLY
        found = controller.stub.GetForwardingPipelineConfig(request).config
        assert found.cookie.cookie == 77 and not found.HasField("p4info") and not found.p4_device_config


def test_programs_in_the_wrapper_of_older_clients() -> None:
    """p4.tmp.P4DeviceConfig, as p4lang's tutorials send it: reassign, extras and device_data, in any order."""
    data = config("control").p4_device_config
    length, left = bytearray(), len(data)
    while left > 0x7F:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    device_data, reassign, extras = b"\x1a" + bytes(length) + data, b"\x08\x01", b"\x12\x07\x0a\x05\x0a\x01a\x12\x00"
    for wrapped in (device_data, reassign + device_data, reassign + extras + device_data, device_data + reassign):
        with switch(None) as running:
            controller = primary(running)
            pushed = config("control")
            pushed.p4_device_config = wrapped
            controller.push(CONFIG.VERIFY_AND_COMMIT, pushed)
            request = p4rt.GetForwardingPipelineConfigRequest(device_id=1)
            assert controller.stub.GetForwardingPipelineConfig(request).config == pushed
            controller.insert(controller.entry("destinations", exact(OTHER), action=controller.action("forward", 2)))
            assert [port for port, _ in running.process(1, ethernet())] == [2]


@pytest.mark.parametrize(
    "config_bytes", [b"", b"\x1a", b"\x1a\xff", b"\x08", b"\x12\x7f", b"\xff" * 20, b"\x1a\x02{}", b"\x1b"]
)
def test_other_device_configs_are_refused(config_bytes: bytes) -> None:
    with switch(None) as running:
        pushed = config("control")
        pushed.p4_device_config = config_bytes
        fails(Code.INVALID_ARGUMENT, primary(running).push, CONFIG.VERIFY, pushed)


def as_before_2017(program: bytes) -> bytes:
    """The same program as older compilers wrote it: without types of transitions, errors, and numbers of actions in
    tables, and with other primitives."""
    described = json.loads(program)
    del described["errors"]
    for parser in described["parsers"]:
        for transition in (each for state in parser["parse_states"] for each in state["transitions"]):
            if transition["type"] == "default":
                transition["value"] = "default"
            if transition["type"] != "parse_vset":
                del transition["type"]
    for action in described["actions"]:
        for primitive in action["primitives"]:
            older = {"assign": "modify_field", "mark_to_drop": "drop"}
            primitive["op"] = older.get(primitive["op"], primitive["op"])
            if primitive["op"] == "drop":
                primitive["parameters"] = []
    for pipeline in described["pipelines"]:
        for table in pipeline["tables"]:
            del table["action_ids"]
    return json.dumps(described).encode()


def test_programs_of_older_compilers_do_the_same() -> None:
    """p4lang/behavioral-model has two dozen in its tests."""
    left = []
    for older in (False, True):
        with switch(None) as running:
            controller, pushed = primary(running), config("control")
            if older:
                pushed.p4_device_config = as_before_2017(pushed.p4_device_config)
            controller.push(CONFIG.VERIFY_AND_COMMIT, pushed)
            controller.insert(controller.entry("destinations", exact(OTHER), action=controller.action("forward", 2)))
            left.append(
                [running.process(1, ethernet(to, kind=kind)) for to in (OTHER, HOST) for kind in (0x0800, 0x1234)]
            )
    assert left[0] == left[1] and any(left[0])


def test_what_is_written_between_save_and_commit_belongs_to_the_saved_pipeline(
    control: tuple[Switch, Controller],
) -> None:
    running, controller = control
    route = controller.entry("destinations", exact(OTHER), action=controller.action("forward", 1))
    controller.insert(route)
    controller.push(CONFIG.VERIFY_AND_SAVE, config("control"))
    assert controller.read(p4rt.TableEntry()) == []
    controller.insert(controller.entry("destinations", exact(OTHER), action=controller.action("forward", 2)))
    assert [port for port, _ in running.process(1, ethernet())] == [1]  # packets still meet the old one
    fails(Code.INVALID_ARGUMENT, controller.push, CONFIG.COMMIT, config("control"))
    controller.push(CONFIG.COMMIT, None)
    assert [port for port, _ in running.process(1, ethernet())] == [2]


def test_reconciliation_keeps_what_was_written(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources
    pick = [p4rt.ActionProfileAction(action=controller.action("pick", n), weight=1) for n in (1, 2)]
    chosen = p4rt.TableAction()
    chosen.action_profile_action_set.action_profile_actions.extend(pick)
    meter = p4rt.MeterEntry(meter_id=controller.id("cell_meters"), config=METER)
    meter.index.index = 2
    controller.insert(
        controller.entry("balanced", exact(1), action=chosen),
        controller.entry("metered", exact(1), action=controller.action("measure", 9), meter_config=METER),
        p4rt.MulticastGroupEntry(multicast_group_id=4, metadata=b"mine"),
    )
    controller.modify(meter)
    running.process(1, probe(choice=1))
    asked = [
        p4rt.TableEntry(counter_data=p4rt.CounterData(), meter_config=p4rt.MeterConfig()),
        p4rt.MeterEntry(),
        p4rt.CounterEntry(),
        p4rt.MulticastGroupEntry(),
    ]
    before = controller.read(*asked)
    controller.push(CONFIG.RECONCILE_AND_COMMIT, config("resources"))
    assert controller.read(*asked) == before
    changed = config("resources")
    changed.p4info.tables[0].size += 1
    assert "P4Info has changed" in fails(Code.INVALID_ARGUMENT, controller.push, CONFIG.RECONCILE_AND_COMMIT, changed)
    assert controller.read(*asked) == before


# ---- batches ----------------------------------------------------------------------------------------------------


def test_a_batch_goes_on_or_is_undone(control: tuple[Switch, Controller]) -> None:
    _, controller = control
    group = p4rt.MulticastGroupEntry(multicast_group_id=1)
    old = controller.entry("destinations", exact(HOST), action=controller.action("forward", 1), metadata=b"old")
    gone = controller.entry("destinations", exact(5), action=controller.action("forward", 5))
    values = p4rt.ValueSetEntry(value_set_id=controller.id("mirrored_types"))
    values.members.add().match.add(field_id=1).exact.value = b"\x12"
    controller.insert(old, gone)
    everything = [p4rt.TableEntry(), p4rt.MulticastGroupEntry(), p4rt.ValueSetEntry(), p4rt.DigestEntry()]
    before = controller.read(*everything)
    digest = p4rt.DigestEntry(digest_id=controller.id("learned_t"))
    batch = [
        (UPDATE.INSERT, group),
        (
            UPDATE.MODIFY,
            controller.entry("destinations", exact(HOST), action=controller.action("forward", 2)),
        ),
        (UPDATE.MODIFY, values),
        (UPDATE.DELETE, gone),
        (UPDATE.INSERT, digest),
        (UPDATE.INSERT, old),  # exists
        (UPDATE.INSERT, controller.entry("destinations", exact(9), action=controller.action("drop"))),
    ]
    for atomicity in (ROLLBACK, ATOMIC):
        with pytest.raises(Refused) as refusal:
            controller.batch(batch, atomicity)
        aborted = [code_pb2.ABORTED] * 5
        assert refusal.value.codes == [*aborted, code_pb2.ALREADY_EXISTS, code_pb2.ABORTED]
        assert "an entry with this key exists" in refusal.value.text
        after = controller.read(*everything)
        assert sorted(map(str, after)) == sorted(map(str, before))
    with pytest.raises(Refused) as refusal:
        controller.batch(batch)
    assert refusal.value.code == Code.UNKNOWN
    assert refusal.value.codes == [0, 0, 0, 0, 0, code_pb2.ALREADY_EXISTS, 0]
    assert len(controller.read(*everything)) == 5
    controller.batch([(UPDATE.DELETE, group), (UPDATE.DELETE, digest)], ATOMIC)


# ---- table entries ----------------------------------------------------------------------------------------------

METER = p4rt.MeterConfig(cir=1, cburst=10, pir=1, pburst=20)


def probe(wide: int = 0, number_: int = 0, choice: int = 0) -> bytes:
    return wide.to_bytes(16, "big") + number_.to_bytes(2, "big") + bytes([choice, 0])


def traced(running: Switch, frame: bytes) -> dict[str, int]:
    """What resources.p4 wrote."""
    ((_, left),) = running.process(1, frame)
    names = ("ranged", "picked", "member", "direct_colour", "colour")
    found = {"wide": int.from_bytes(left[:16], "big"), "count": int.from_bytes(left[21:25], "big")}
    return found | dict(zip(names, left[16:21], strict=True))


def test_keys_and_parameters_of_128_bits(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources
    wide, value = 0x20010DB8000000000000000000000001, 0xFEDC << 112 | 1
    entry = controller.entry("wides", exact(wide), action=controller.action("set_wide", value))
    prefix = controller.entry("prefixes", lpm(0x20010DB8 << 96, 32), action=controller.action("set_wide", 7))
    controller.insert(entry, prefix)
    assert traced(running, probe(wide))["wide"] == value
    assert traced(running, probe(wide + 1))["wide"] == 7
    assert controller.read(p4rt.TableEntry()) == [entry, prefix]
    padded = controller.entry("wides", exact(1), action=controller.action("set_wide", 2))
    padded.match[0].exact.value = bytes(15) + b"\x01"
    padded.action.action.params[0].value = b"\0\0\x02"
    controller.insert(padded)
    asked = controller.entry("wides", exact(1))
    assert controller.read(asked) == [controller.entry("wides", exact(1), action=controller.action("set_wide", 2))]
    padded.match[0].exact.value = bytes([1, *bytes(16)])
    assert "does not fit 128 bits" in fails(Code.OUT_OF_RANGE, controller.insert, padded)


def test_ranges_and_optional_keys(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources

    def named(value: int, *match: Any, priority: int) -> p4rt.TableEntry:
        return controller.entry("ranges", *match, action=controller.action("set_ranged", value), priority=priority)

    entries = [
        named(1, between(100, 200), None, priority=10),
        named(2, between(150, 160), None, priority=20),
        named(3, None, optional(7), priority=5),
    ]
    controller.insert(*entries)
    found = {(n, c): traced(running, probe(number_=n, choice=c))["ranged"] for n in (99, 100, 155, 200) for c in (0, 7)}
    assert found == {
        (99, 0): 0, (100, 0): 1, (155, 0): 2, (200, 0): 1, (99, 7): 3, (100, 7): 1, (155, 7): 2, (200, 7): 1,
    }  # fmt: skip
    assert controller.read(p4rt.TableEntry(table_id=controller.id("ranges"), priority=20)) == [entries[1]]
    for match, priority, says in [
        ([between(5, 4), None], 1, "is empty"),
        ([between(0, 65535), None], 1, "leaving the field out"),
        ([between(1, 2), None], 0, "priority above 0"),
        ([exact(1), None], 1, "matched by range, not exact"),
    ]:
        assert says in fails(Code.INVALID_ARGUMENT, controller.insert, named(1, *match, priority=priority))


def test_reads_are_filtered(control: tuple[Switch, Controller]) -> None:
    _, controller = control
    entries = [
        controller.entry("destinations", exact(1), action=controller.action("forward", 1), metadata=b"a"),
        controller.entry("destinations", exact(2), action=controller.action("drop"), controller_metadata=9),
        controller.entry("sources", exact(1), action=controller.action("NoAction")),
    ]
    controller.insert(*entries)
    table = controller.id("destinations")
    assert controller.read(p4rt.TableEntry()) == entries
    assert controller.read(p4rt.TableEntry(table_id=table)) == entries[:2]
    assert controller.read(p4rt.TableEntry(table_id=table, metadata=b"a")) == entries[:1]
    assert controller.read(p4rt.TableEntry(table_id=table, controller_metadata=9)) == entries[1:2]
    assert controller.read(controller.entry("destinations", action=controller.action("drop"))) == entries[1:2]
    assert controller.read(controller.entry("destinations", exact(7))) == []
    defaults = controller.read(p4rt.TableEntry(is_default_action=True))
    assert {d.action.action.action_id for d in defaults} == {controller.id("learn"), controller.id("drop")}
    assert "no table has id" in fails(Code.NOT_FOUND, controller.read, p4rt.TableEntry(table_id=5))
    fails(Code.INVALID_ARGUMENT, controller.read, p4rt.Entity())
    changed = controller.entry("destinations", exact(1), metadata=b"b")
    controller.modify(changed)  # without an action, the action stays
    assert controller.read(p4rt.TableEntry(table_id=table, metadata=b"b"))[0].action == entries[0].action


# ---- direct and indirect resources ------------------------------------------------------------------------------


def test_direct_counters_and_meters(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources
    entry = controller.entry("metered", exact(1), action=controller.action("measure", 4))
    metered = p4rt.TableEntry()
    metered.CopyFrom(entry)
    metered.meter_config.CopyFrom(p4rt.MeterConfig(cir=1, cburst=20, pir=1, pburst=45))
    metered.counter_data.packet_count = 100
    controller.insert(metered)
    colours = [traced(running, probe(choice=1))["direct_colour"] for _ in range(4)]
    assert colours == [0, 1, 2, 2]  # 20 bytes each
    asked = controller.entry("metered", exact(1), meter_config=p4rt.MeterConfig(), counter_data=p4rt.CounterData())
    (found,) = controller.read(asked)
    assert found.meter_config == metered.meter_config
    assert (found.counter_data.packet_count, found.counter_data.byte_count) == (104, 80)
    assert controller.read(controller.entry("metered", exact(1))) == [entry]
    (direct,) = controller.read(p4rt.DirectMeterEntry(table_entry=controller.entry("metered")))
    assert direct.config == metered.meter_config
    controller.modify(p4rt.DirectMeterEntry(table_entry=controller.entry("metered", exact(1))))
    assert [traced(running, probe(choice=1))["direct_colour"] for _ in range(3)] == [0, 0, 0]
    (direct,) = controller.read(p4rt.DirectMeterEntry(table_entry=controller.entry("metered", exact(1))))
    assert not direct.HasField("config")
    absent = p4rt.DirectCounterEntry(table_entry=controller.entry("metered", exact(9)))
    fails(Code.NOT_FOUND, controller.read, absent)
    fails(Code.INVALID_ARGUMENT, controller.insert, absent)
    other = controller.entry("wides", exact(1), action=controller.action("set_wide", 1), meter_config=METER)
    assert "has no direct meter" in fails(Code.INVALID_ARGUMENT, controller.insert, other)


def test_meters_count_colours(resources: tuple[Switch, Controller]) -> None:
    """Of direct meters, in both kinds of entry, and of indirect ones; a new configuration does not change them."""
    running, controller = resources
    entry = controller.entry("metered", exact(1), action=controller.action("measure", 4))
    entry.meter_config.CopyFrom(p4rt.MeterConfig(cir=1, cburst=20, pir=1, pburst=45))
    meter = p4rt.MeterEntry(meter_id=controller.id("cell_meters"), config=p4rt.MeterConfig(pburst=3, cburst=1))
    meter.index.index = 1
    controller.insert(entry)
    controller.modify(meter)
    for _ in range(4):
        traced(running, probe(choice=1))

    def counts(data: p4rt.MeterCounterData) -> list[tuple[int, int]]:
        return [(each.packet_count, each.byte_count) for each in (data.green, data.yellow, data.red)]

    any_count = p4rt.MeterCounterData()
    of_direct = p4rt.DirectMeterEntry(table_entry=controller.entry("metered", exact(1)), counter_data=any_count)
    of_entry = controller.entry("metered", exact(1), meter_counter_data=any_count)
    (direct,), (found,) = controller.read(of_direct), controller.read(of_entry)
    assert counts(direct.counter_data) == counts(found.meter_counter_data) == [(1, 20), (1, 20), (2, 40)]
    asked = p4rt.MeterEntry(meter_id=meter.meter_id, index=meter.index, counter_data=any_count)
    (cell,) = controller.read(asked)
    assert counts(cell.counter_data) == [(1, 20), (2, 40), (1, 20)]
    (plain,) = controller.read(p4rt.MeterEntry(meter_id=meter.meter_id, index=meter.index))
    assert not plain.HasField("counter_data")
    meter.ClearField("config")
    meter.counter_data.yellow.packet_count = 9
    of_direct.counter_data.red.byte_count = 5
    controller.modify(meter, of_direct)
    traced(running, probe(choice=1))  # Now all is green.
    (cell,), (direct,) = controller.read(asked), controller.read(of_direct)
    assert counts(cell.counter_data) == [(1, 20), (9, 0), (0, 0)]
    assert counts(direct.counter_data) == [(1, 20), (0, 0), (0, 5)]
    other = controller.entry("wides", exact(1), action=controller.action("set_wide", 1), meter_counter_data=any_count)
    assert "has no direct meter" in fails(Code.INVALID_ARGUMENT, controller.insert, other)


def test_indirect_counters_and_meters(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources
    meter = p4rt.MeterEntry(meter_id=controller.id("cell_meters"), config=p4rt.MeterConfig(pburst=3, cburst=1))
    meter.index.index = 2
    controller.modify(meter)
    assert [traced(running, probe(choice=2))["colour"] for _ in range(4)] == [0, 1, 1, 2]
    assert [traced(running, probe(choice=1))["colour"] for _ in range(4)] == [0, 0, 0, 0]
    cells = controller.read(p4rt.MeterEntry())
    assert [cell.HasField("config") for cell in cells] == [False, False, True, False]
    assert controller.read(meter) == [meter]
    counter = p4rt.CounterEntry(counter_id=controller.id("cell_counters"))
    assert [c.data.packet_count for c in controller.read(counter)] == [0, 4, 4, 0]
    counter.data.packet_count = 7
    controller.modify(counter)  # without an index: all
    assert [c.data.packet_count for c in controller.read(p4rt.CounterEntry())] == [7, 7, 7, 7]
    counter.index.index = 4
    assert "0..3" in fails(Code.OUT_OF_RANGE, controller.modify, counter)
    meter.config.pir = -1
    fails(Code.INVALID_ARGUMENT, controller.modify, meter)
    meter.config.pir, meter.config.cir = 1, 2
    assert "peak rate" in fails(Code.INVALID_ARGUMENT, controller.modify, meter)
    meter.config.cir, meter.config.eburst = 1, 1
    fails(Code.INVALID_ARGUMENT, controller.modify, meter)
    register = p4rt.RegisterEntry(register_id=controller.id("counts"))
    register.index.index = 1
    register.data.bitstring = b"\x07"
    controller.modify(register)
    assert controller.read(p4rt.RegisterEntry(register_id=register.register_id, index=register.index)) == [register]
    fails(Code.INVALID_ARGUMENT, controller.insert, register)


# ---- action profiles --------------------------------------------------------------------------------------------


def test_members_of_an_action_profile(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources
    profile = controller.id("members")

    def member(number_: int, name: int) -> p4rt.ActionProfileMember:
        action = controller.action("set_member", name)
        return p4rt.ActionProfileMember(action_profile_id=profile, member_id=number_, action=action)

    entry = controller.entry("indirect", exact(1), action=p4rt.TableAction(action_profile_member_id=2))
    fails(Code.NOT_FOUND, controller.insert, entry)
    controller.insert(*(member(n, 10 * n) for n in (1, 2, 3, 4)))
    fails(Code.ALREADY_EXISTS, controller.insert, member(2, 1))
    fails(Code.RESOURCE_EXHAUSTED, controller.insert, member(5, 1))
    controller.insert(entry)
    assert traced(running, probe(choice=1))["member"] == 20
    controller.modify(member(2, 21))
    assert traced(running, probe(choice=1))["member"] == 21
    fails(Code.FAILED_PRECONDITION, controller.delete, member(2, 0))
    moved = controller.entry("indirect", exact(1), action=p4rt.TableAction(action_profile_member_id=3))
    controller.modify(moved)
    controller.delete(member(2, 0))
    assert traced(running, probe(choice=1))["member"] == 30
    assert [m.member_id for m in controller.read(p4rt.ActionProfileMember())] == [1, 3, 4]
    assert controller.read(p4rt.ActionProfileMember(action_profile_id=profile, member_id=3)) == [member(3, 30)]
    own = controller.entry("indirect", exact(2), action=controller.action("set_member", 1))
    fails(Code.INVALID_ARGUMENT, controller.insert, own)
    group = controller.entry("indirect", exact(2), action=p4rt.TableAction(action_profile_group_id=1))
    fails(Code.INVALID_ARGUMENT, controller.insert, group)


def group(controller: Controller, number_: int, members: dict[int, int], most: int = 8) -> p4rt.ActionProfileGroup:
    made = p4rt.ActionProfileGroup(action_profile_id=controller.id("ways"), group_id=number_, max_size=most)
    for member, weight in members.items():
        made.members.add(member_id=member, weight=weight)
    return made


def picked(running: Switch, flows: int = 400) -> dict[int, int]:
    """How often each action was picked, over so many flows."""
    found: dict[int, int] = {}
    for flow in range(flows):
        name = traced(running, probe(choice=1, number_=flow * 40503 % 65536))["picked"]
        found[name] = found.get(name, 0) + 1
    return found


def test_groups_choose_by_hash_and_weight(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources
    profile = controller.id("ways")
    controller.insert(
        *(
            p4rt.ActionProfileMember(action_profile_id=profile, member_id=n, action=controller.action("pick", n))
            for n in (1, 2, 3)
        )
    )
    fails(Code.NOT_FOUND, controller.insert, group(controller, 1, {9: 1}))
    fails(Code.INVALID_ARGUMENT, controller.insert, group(controller, 1, {1: 0}))
    fails(Code.INVALID_ARGUMENT, controller.insert, group(controller, 1, {1: 1}, most=9))
    fails(Code.RESOURCE_EXHAUSTED, controller.insert, group(controller, 1, {1: 5, 2: 4}))
    controller.insert(group(controller, 1, {1: 1, 2: 3}))
    entry = controller.entry("balanced", exact(1), action=p4rt.TableAction(action_profile_group_id=1))
    controller.insert(entry)
    found = picked(running)
    assert set(found) == {1, 2} and 2 < found[2] / found[1] < 4.5
    assert picked(running) == found  # a flow stays where it is
    fails(Code.INVALID_ARGUMENT, controller.modify, group(controller, 1, {3: 1}, most=7))
    controller.modify(group(controller, 1, {3: 1}))
    assert set(picked(running, 20)) == {3}
    controller.modify(group(controller, 1, {}))
    assert set(picked(running, 20)) == {0}
    fails(Code.FAILED_PRECONDITION, controller.delete, group(controller, 1, {}))
    one_shot = controller.entry("balanced", exact(2), action=p4rt.TableAction())
    one_shot.action.action_profile_action_set.SetInParent()
    assert "not both" in fails(Code.INVALID_ARGUMENT, controller.insert, one_shot)
    controller.delete(entry)
    controller.delete(group(controller, 1, {}))
    assert controller.read(p4rt.ActionProfileGroup()) == []


def test_one_shot_action_sets(resources: tuple[Switch, Controller]) -> None:
    running, controller = resources

    def entry(*weighted: tuple[int, int]) -> p4rt.TableEntry:
        made = controller.entry("balanced", exact(1))
        actions = made.action.action_profile_action_set.action_profile_actions
        for name, weight in weighted:
            actions.add(action=controller.action("pick_wide", name, 1 << 70), weight=weight)
        return made

    fails(Code.INVALID_ARGUMENT, controller.insert, entry((1, 9)))
    fails(Code.INVALID_ARGUMENT, controller.insert, entry((1, 0)))
    controller.insert(entry((1, 1), (2, 2), (1, 1)))
    assert controller.read(p4rt.TableEntry()) == [entry((1, 1), (2, 2), (1, 1))]
    assert set(picked(running)) == {1, 2}
    assert traced(running, probe(choice=1))["wide"] == 1 << 70
    assert controller.read(p4rt.ActionProfileMember(), p4rt.ActionProfileGroup()) == []
    for name in range(3, 20):
        controller.modify(entry((name, 1)))
        assert set(picked(running, 5)) == {name}
    controller.modify(entry(*((n, 1) for n in range(8))))
    more = controller.entry("balanced", exact(2))
    more.action.CopyFrom(entry(*((n, 1) for n in range(8))).action)
    controller.insert(more)
    controller.modify(more)  # 16 members of 16: what takes another's place has room
    more.match[0].exact.value = b"\3"
    fails(Code.RESOURCE_EXHAUSTED, controller.insert, more)
    more.match[0].exact.value = b"\2"
    controller.delete(more)
    member = p4rt.ActionProfileMember(action_profile_id=controller.id("ways"), member_id=1)
    member.action.CopyFrom(controller.action("pick", 1))
    assert "not both" in fails(Code.INVALID_ARGUMENT, controller.insert, member)
    controller.delete(entry())
    controller.insert(member)
    controller.delete(member)
    watched = entry((1, 1), (2, 1))
    watched.action.action_profile_action_set.action_profile_actions[0].watch_port = b"\x01"  # there is none
    controller.insert(watched)
    assert set(picked(running, 20)) == {2}


@pytest.mark.root
def test_members_whose_port_is_down_are_skipped() -> None:
    """Port 1 loses its link and gets it back; port 2 is a socket, which is always up; there is no port 3."""
    with veths(1, "watch") as space, switch("resources", "1=s1", "2=udp:127.0.0.1:0", namespace=space) as running:
        controller = running.controller()
        controller.arbitrate()
        actions = (
            p4rt.ActionProfileMember(
                action_profile_id=controller.id("ways"), member_id=n, action=controller.action("pick", n)
            )
            for n in (1, 2, 3)
        )
        controller.insert(*actions)
        watching = group(controller, 1, {1: 3, 2: 1, 3: 4})
        for member in watching.members:
            member.watch_port = number(member.member_id)
        action = p4rt.TableAction(action_profile_group_id=1)
        controller.insert(watching, controller.entry("balanced", exact(1), action=action))
        assert controller.read(p4rt.ActionProfileGroup()) == [watching]

        def becomes(*wanted: int) -> None:
            give_up = time.monotonic() + 5
            while set(picked(running, 40)) != set(wanted):
                assert time.monotonic() < give_up, picked(running)

        becomes(1, 2)
        found = picked(running)
        assert 2 < found[1] / found[2] < 4.5  # the weights are those of the members that are left
        subprocess.run(["ip", "-n", space, "link", "set", "h1", "down"], check=True)
        becomes(2)
        subprocess.run(["ip", "-n", space, "link", "set", "h1", "up"], check=True)
        becomes(1, 2)
        watching.members[1].watch_port = number(3)
        del watching.members[0]
        controller.modify(watching)
        assert set(picked(running, 20)) == {0}  # as an empty group
        watching.members[0].watch_port = number(600)
        assert "ports are 0.." in fails(Code.INVALID_ARGUMENT, controller.modify, watching)


# ---- replication ------------------------------------------------------------------------------------------------


def test_clone_sessions(control: tuple[Switch, Controller]) -> None:
    running, controller = control
    values = p4rt.ValueSetEntry(value_set_id=controller.id("mirrored_types"))
    values.members.add().match.add(field_id=1).exact.value = number(0x86DD)
    session = p4rt.CloneSessionEntry(session_id=5, packet_length_bytes=18, class_of_service=2)
    session.replicas.add(egress_port=7, instance=1)
    session.replicas.add(egress_port=8, instance=1)
    controller.modify(values)
    controller.insert(session, controller.entry("destinations", exact(OTHER), action=controller.action("forward", 2)))
    frame = ethernet(kind=0x86DD)
    assert running.process(1, frame) == [(7, frame[:18]), (8, frame[:18]), (2, frame)]
    assert running.process(1, ethernet()) == [(2, ethernet())]
    assert controller.read(p4rt.CloneSessionEntry()) == [session]
    fails(Code.ALREADY_EXISTS, controller.insert, session)
    controller.modify(p4rt.CloneSessionEntry(session_id=5, replicas=[p4rt.Replica(port=b"\x09")]))
    assert running.process(1, frame) == [(9, frame), (2, frame)]
    controller.delete(session)
    assert running.process(1, frame) == [(2, frame)]
    session.class_of_service = 8
    fails(Code.INVALID_ARGUMENT, controller.insert, session)
    session.session_id = 0
    fails(Code.INVALID_ARGUMENT, controller.insert, session)
    fails(Code.NOT_FOUND, controller.delete, p4rt.CloneSessionEntry(session_id=5))


def test_value_sets(control: tuple[Switch, Controller]) -> None:
    _, controller = control
    values = p4rt.ValueSetEntry(value_set_id=controller.id("mirrored_types"))
    assert controller.read(p4rt.ValueSetEntry()) == [values]
    for value in (1, 2, 3, 4, 5):
        values.members.add().match.add(field_id=1).exact.value = number(value)
    fails(Code.RESOURCE_EXHAUSTED, controller.modify, values)
    del values.members[4:]
    controller.modify(values)
    assert controller.read(p4rt.ValueSetEntry()) == [values]
    fails(Code.INVALID_ARGUMENT, controller.insert, values)
    values.members[3].CopyFrom(values.members[2])
    fails(Code.ALREADY_EXISTS, controller.modify, values)


def test_value_sets_with_ranges(control: tuple[Switch, Controller]) -> None:
    """A range is every number in it and none beside it, whatever its ends."""
    running, controller = control
    pushed = config("control")
    (of_types,) = pushed.p4info.value_sets
    of_types.match[0].match_type = p4info_pb2.MatchField.RANGE
    controller.push(CONFIG.VERIFY_AND_COMMIT, pushed)
    session = p4rt.CloneSessionEntry(session_id=5, replicas=[p4rt.Replica(egress_port=7, instance=1)])
    controller.insert(session, controller.entry("destinations", exact(OTHER), action=controller.action("forward", 2)))
    values = p4rt.ValueSetEntry(value_set_id=of_types.preamble.id)
    for low, high in ((0x86DD, 0x9003), (0xFFFF, 0xFFFF)):
        values.members.add().match.add(field_id=1).range.MergeFrom(
            p4rt.FieldMatch.Range(low=number(low), high=number(high))
        )
    controller.modify(values)
    assert controller.read(p4rt.ValueSetEntry()) == [values]
    cloned = {kind: len(running.process(1, ethernet(kind=kind))) == 2 for kind in range(0x8600, 0x9100)}
    cloned |= {kind: len(running.process(1, ethernet(kind=kind))) == 2 for kind in (0xFFFE, 0xFFFF)}
    assert {kind for kind, found in cloned.items() if found} == {*range(0x86DD, 0x9004), 0xFFFF}
    values.members[1].match[0].range.low = b"\xff\xff\x01"
    fails(Code.OUT_OF_RANGE, controller.modify, values)


# ---- packets in and out -----------------------------------------------------------------------------------------


def test_packet_in(control: tuple[Switch, Controller]) -> None:
    running, controller = control
    controller.insert(controller.entry("destinations", exact(OTHER), action=controller.action("punt", 42)))
    assert running.process(300, ethernet()) == []
    packet = controller.next("packet")
    assert packet.payload == ethernet()
    assert {m.metadata_id: m.value for m in packet.metadata} == {1: number(300), 2: number(42)}


def packet_out(port: int, payload: bytes) -> p4rt.PacketOut:
    made = p4rt.PacketOut(payload=payload)
    made.metadata.add(metadata_id=1, value=number(port))
    made.metadata.add(metadata_id=2, value=b"\0")
    return made


def test_packet_out_leaves_by_the_port_it_names() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as host:
        host.bind(("127.0.0.1", 0))
        host.settimeout(5)
        with switch("control", f"3=wire:127.0.0.1:0,127.0.0.1:{host.getsockname()[1]},delay=20ms") as running:
            controller = primary(running)
            assert host.recv(2000) == b""  # a wire's end says where it is
            for payload in (b"one", b"two"):
                controller.send(packet=packet_out(3, ethernet(payload=payload)))
            assert [host.recv(2000) for _ in range(2)] == [ethernet(payload=b"one"), ethernet(payload=b"two")]
            controller.send(packet=packet_out(CPU_PORT, ethernet()))
            packet = controller.next("packet")
            assert packet.metadata[0].value == number(CPU_PORT)


def test_bad_stream_messages_are_answered_and_the_stream_lives(control: tuple[Switch, Controller]) -> None:
    running, controller = control
    for change, code in [
        (lambda p: p.metadata.pop(), Code.INVALID_ARGUMENT),
        (lambda p: p.metadata.add(metadata_id=7, value=b"\1"), Code.INVALID_ARGUMENT),
        (lambda p: setattr(p.metadata[0], "value", b"\xff\xff"), Code.OUT_OF_RANGE),
        (lambda p: setattr(p, "payload", bytes(70000)), Code.INVALID_ARGUMENT),
    ]:
        packet = packet_out(1, ethernet())
        change(packet)
        controller.send(packet=packet)
        error = controller.next("error")
        assert error.canonical_code == code.value[0] and error.packet_out.packet_out == packet
    controller.send(digest_ack=p4rt.DigestListAck(digest_id=5, list_id=1))
    error = controller.next("error")
    assert (
        error.canonical_code == Code.INVALID_ARGUMENT.value[0] and error.digest_list_ack.digest_list_ack.digest_id == 5
    )
    controller.send(other=any_pb2.Any(type_url="nothing"))
    assert controller.next("error").canonical_code == Code.UNIMPLEMENTED.value[0]
    controller.send()
    assert controller.next("error").WhichOneof("details") == "other"
    backup = running.controller(0)
    backup.send(packet=packet_out(1, ethernet()))
    assert backup.next("error").canonical_code == Code.PERMISSION_DENIED.value[0]
    controller.insert(p4rt.MulticastGroupEntry(multicast_group_id=1))  # still primary


def test_without_a_cpu_port_there_are_no_packet_outs() -> None:
    with switch("control", cpu_port=0) as running:
        controller = primary(running)
        controller.send(packet=packet_out(1, ethernet()))
        error = controller.next("error")
        assert error.canonical_code == Code.FAILED_PRECONDITION.value[0] and "--cpu-port" in error.message


def test_ports_that_controllers_see_wider() -> None:
    with switch("translated") as running:
        controller = primary(running)
        running.process(300, b"data")
        packet = controller.next("packet")
        assert packet.payload == b"data" and packet.metadata[0].value == number(300)
        entry = controller.entry("ports", exact(300), action=controller.action("forward", 400))
        controller.insert(entry)
        assert controller.read(p4rt.TableEntry()) == [entry]
        assert running.process(300, b"data") == [(400, b"data")]
        wide = controller.entry("ports", exact(300), action=controller.action("forward", 512))
        assert "does not fit 9 bits" in fails(Code.OUT_OF_RANGE, controller.modify, wide)
        controller.send(packet=packet_out(CPU_PORT, b"back"))
        assert controller.next("packet").payload == b"back"


def test_ports_that_controllers_see_as_strings() -> None:
    """In keys, parameters and packet metadata, and of what the program brings along: numbers by their digits, names by
    numbers of their own, the same each time."""

    def texts(*values: str) -> list[bytes]:
        return [value.encode() for value in values]

    described = config("translated")
    p4info = described.p4info
    p4info.type_info.new_types["port_id_t"].translated_type.sdn_string.SetInParent()
    named = [*p4info.tables[0].match_fields, *(p for action in p4info.actions for p in action.params)]
    for field in (*named, *(m for header in p4info.controller_packet_metadata for m in header.metadata)):
        if field.HasField("type_name"):
            field.bitwidth = 0
    with switch(None) as running:
        controller = primary(running)
        controller.push(CONFIG.VERIFY_AND_COMMIT, described)
        (default,) = controller.read(controller.entry("ports", is_default_action=True))
        assert [param.value for param in default.action.action.params] == texts("510")
        running.process(300, b"data")
        assert controller.next("packet").metadata[0].value == b"300"
        out = packet_out(CPU_PORT, b"back")
        out.metadata[0].value = b"510"
        controller.send(packet=out)
        assert controller.next("packet").payload == b"back"

        def entry(came: str, leaves: str) -> p4rt.TableEntry:
            made = controller.entry("ports", exact(0), action=controller.action("forward", 0))
            made.match[0].exact.value, made.action.action.params[0].value = texts(came, leaves)
            return made

        controller.insert(entry("300", "400"), entry("here", "there"))
        assert controller.read(p4rt.TableEntry()) == [entry("300", "400"), entry("here", "there")]
        assert running.process(300, b"data") == [(400, b"data")]
        ports = []
        for name in ("there", "elsewhere", "there"):
            controller.modify(entry("300", name))
            ports += [port for port, _ in running.process(300, b"data")]
        there, elsewhere, again = ports
        assert there == again != elsewhere
        assert "does not fit 9 bits" in fails(Code.OUT_OF_RANGE, controller.modify, entry("300", "512"))
        fails(Code.ALREADY_EXISTS, controller.modify, entry("300", str(there)))
        fails(Code.INVALID_ARGUMENT, controller.modify, entry("300", ""))


# ---- digests ----------------------------------------------------------------------------------------------------


def learned(source: int, port: int, mirrored: int = 0) -> p4data_pb2.P4Data:
    made = p4data_pb2.P4Data()
    members = made.struct.members
    members.add(bitstring=number(source))
    members.add(bitstring=number(port))
    members.add(bitstring=number(mirrored))
    return made


def test_digests_come_in_lists(control: tuple[Switch, Controller]) -> None:
    running, controller = control
    running.process(1, ethernet(source=99))  # nobody wants it
    digest = p4rt.DigestEntry(digest_id=controller.id("learned_t"))
    digest.config.max_list_size, digest.config.max_timeout_ns = 3, 10**9
    digest.config.ack_timeout_ns = 60 * 10**9
    fails(Code.NOT_FOUND, controller.modify, digest)
    controller.insert(digest)
    assert controller.read(p4rt.DigestEntry()) == [digest]
    for source in (1, 1, 2, 3, 4):
        running.process(258, ethernet(source=source))
    first, second = controller.next("digest"), controller.next("digest")
    assert list(first.data) == [learned(n, 258) for n in (1, 2, 3)]
    assert list(second.data) == [learned(4, 258)]  # after the timeout
    assert second.list_id != first.list_id and abs(second.timestamp - time.time_ns()) < 60e9
    running.process(258, ethernet(source=1))  # told, but not acknowledged
    assert controller.none("digest", 1.2)
    controller.send(digest_ack=p4rt.DigestListAck(digest_id=digest.digest_id, list_id=first.list_id))
    controller.send()
    controller.next("error")  # by now the acknowledgement has been read, too
    running.process(258, ethernet(source=1))
    assert list(controller.next("digest").data) == [learned(1, 258)]
    digest.config.ack_timeout_ns = 10**6
    controller.modify(digest)
    time.sleep(0.1)
    running.process(258, ethernet(source=4))  # its acknowledgement is overdue
    assert list(controller.next("digest").data) == [learned(4, 258)]
    digest.config.max_timeout_ns = 0
    controller.modify(digest)
    running.process(1, ethernet(source=6))
    assert list(controller.next("digest").data) == [learned(6, 1)]
    controller.delete(digest)
    running.process(1, ethernet(source=7))
    assert controller.none("digest")


# ---- idle timeouts ----------------------------------------------------------------------------------------------


def test_idle_entries_are_reported(control: tuple[Switch, Controller]) -> None:
    running, controller = control
    entry = controller.entry("sources", exact(HOST), action=controller.action("NoAction"), metadata=b"x")
    entry.idle_timeout_ns = 800 * 10**6
    controller.insert(entry)
    for _ in range(4):
        time.sleep(0.3)
        running.process(1, ethernet())
    assert controller.none("idle_timeout_notification", 0.02)
    notification = controller.next("idle_timeout_notification")
    expected = controller.entry("sources", exact(HOST), metadata=b"x", idle_timeout_ns=800 * 10**6)
    assert list(notification.table_entry) == [expected]
    assert list(controller.next("idle_timeout_notification").table_entry) == [expected]  # and again
    asked = controller.entry("sources", exact(HOST), time_since_last_hit=p4rt.TableEntry.IdleTimeout())
    (found,) = controller.read(asked)
    assert 0.25e9 < found.time_since_last_hit.elapsed_ns < 60e9
    entry.idle_timeout_ns = 0
    controller.modify(entry)
    assert controller.none("idle_timeout_notification", 1.0)
    other = controller.entry("destinations", exact(1), action=controller.action("drop"), idle_timeout_ns=5)
    fails(Code.INVALID_ARGUMENT, controller.insert, other)
    entry.idle_timeout_ns = -1
    fails(Code.INVALID_ARGUMENT, controller.modify, entry)


def test_capabilities(control: tuple[Switch, Controller]) -> None:
    _, controller = control
    assert controller.stub.Capabilities(p4rt.CapabilitiesRequest()).p4runtime_api_version == "1.4.0"
