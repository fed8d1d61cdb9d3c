"""The membership entries, asked packet by packet as a TCAM would."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2

from controller.errors import ArtifactError
from controller.jobs.switch_share import Member, SwitchShare, Upstream
from controller.switches.program import load_artifact
from controller.switches.table_entries import Names, canonical
from controller.target import TARGETS, TOFINO, V1MODEL
from emulation.errors import ProgramError
from emulation.tofino.chip import unpacked
from hostlib.protocol import constants
from tests.conftest import ROOT

ADDRESS = "127.0.0.1"


def p4info(program: str) -> p4info_pb2.P4Info:
    text = (ROOT / f"p4/build/netfold-{program}.p4info.txtpb").read_text()
    return text_format.Parse(text, p4info_pb2.P4Info())


# Every build has the same tables, actions and parameters.
@pytest.fixture(params=["v1model-64", "v1model-256", "tna-32", "tna-64"])
def names(request: pytest.FixtureRequest) -> Names:
    return Names(p4info(request.param))


EPOCH = 1_700_000_000
MEMBERS = tuple(Member(rank, 11 + rank, 0xAA00 + rank, ADDRESS, 5000 + rank, 21 + rank) for rank in range(3))
ABOVE = "10.0.0.9"
PARENT = Upstream("parent", 99, 0xBB, ABOVE, 4793, 0x8002)
SERVER = Upstream("server", 99, 0xBB, ABOVE, 7000)
UP = {"port": 99, "mac": 0xBB, "address": int(IPv4Address(ABOVE))}


@pytest.fixture
def job() -> list[SwitchShare]:
    return [SwitchShare(7, EPOCH, 128, 128, 7, MEMBERS)]


@dataclass(frozen=True)
class Verdict:
    action: str
    params: dict[str, int]


def ask(names: Names, entities: list[p4runtime_pb2.Entity], **packet: int) -> Verdict | None:
    """What the highest-priority entry that matches says; None on a miss."""
    table = names._tables["membership"]
    fields = {field.id: field.name for field in table.match_fields}
    found = None
    for entry in (e.table_entry for e in entities if e.table_entry.table_id == table.preamble.id):
        hit = all(
            packet[fields[m.field_id]] & int.from_bytes(m.ternary.mask, "big") == int.from_bytes(m.ternary.value, "big")
            for m in entry.match
        )
        if hit and (found is None or entry.priority > found.priority):
            found = entry
    if found is None:
        return None
    action = next(a for a in names._actions.values() if a.preamble.id == found.action.action.action_id)
    params = {p.id: p.name for p in action.params}
    values = {params[p.param_id]: int.from_bytes(p.value, "big") for p in found.action.action.params}
    return Verdict(action.preamble.alias, values)


def packet(**changes: int) -> dict[str, int]:
    """A right one, of rank 1, in the job's first slot."""
    right = {
        "ingress_port": 12,
        "src_addr": int(IPv4Address(ADDRESS)),
        "src_port": 5001,
        "operation": constants.OPERATION_CONTRIBUTION,
        "job": 7,
        "epoch": EPOCH,
        "rank": 1,
        "slot": 128,
    }
    return {**right, **changes}


@pytest.mark.parametrize("slot", [128, 200, 255])
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_members_are_admitted_in_all_their_slots(names: Names, job: list[SwitchShare], rank: int, slot: int) -> None:
    verdict = ask(names, names.job(job), **packet(rank=rank, ingress_port=11 + rank, src_port=5000 + rank, slot=slot))
    assert verdict == Verdict("contribute", {"member": 1 << rank, "full": 0b111, "group": 7})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"slot": 127}, "slot"),
        ({"slot": 256}, "slot"),
        ({"slot": 0xFFFF}, "slot"),
        ({"ingress_port": 11}, "source"),
        ({"src_addr": int(IPv4Address("127.0.0.2"))}, "source"),
        ({"src_port": 5000}, "source"),
        ({"src_port": 5001 ^ 0x8000, "operation": constants.OPERATION_RESULT}, "source"),
        ({"operation": constants.OPERATION_RESULT}, "operation"),
        ({"operation": constants.OPERATION_NACK, "slot": 0}, "operation"),
        ({"operation": constants.OPERATION_RESULT, "ingress_port": 11}, "source"),
        ({"rank": 3}, "rank"),
        ({"rank": 3, "slot": 0}, "rank"),
        ({"epoch": 1_699_999_999}, "epoch"),
        ({"epoch": 0, "rank": 9, "slot": 0}, "epoch"),
    ],
)
def test_what_is_wrong_is_refused_by_its_own_reason(
    names: Names, job: list[SwitchShare], changes: dict[str, int], reason: str
) -> None:
    verdict = ask(names, names.job(job), **packet(**changes))
    assert verdict == Verdict("refuse", {"reason": constants.DROPS[reason]})


def test_another_job_meets_no_entry(names: Names, job: list[SwitchShare]) -> None:
    assert ask(names, names.job(job), **packet(job=8)) is None


def test_the_whole_world_of_32_fits_the_mask(names: Names) -> None:
    members = tuple(Member(rank, 1 + rank, 0, ADDRESS, 5000, 1 + rank) for rank in range(32))
    verdict = ask(
        names,
        names.job([SwitchShare(1, 1, 0, 128, 1, members)]),
        **packet(job=1, epoch=1, rank=31, ingress_port=32, src_port=5000, slot=0),
    )
    assert verdict == Verdict("contribute", {"member": 1 << 31, "full": 0xFFFFFFFF, "group": 1})


def test_results_go_to_every_rank_by_its_own_address(names: Names, job: list[SwitchShare]) -> None:
    entities = names.job(job)
    replicas = names._tables["replicas"].preamble.id
    parameters = {}
    for entry in (e.table_entry for e in entities if e.table_entry.table_id == replicas):
        parameters[int.from_bytes(entry.match[0].exact.value, "big")] = [
            int.from_bytes(p.value, "big") for p in entry.action.action.params
        ]
    address = int(IPv4Address(ADDRESS))
    assert parameters == {21 + rank: [0xAA00 + rank, address, 5000 + rank, rank] for rank in range(3)}
    group = next(e for e in entities if e.HasField("packet_replication_engine_entry"))
    multicast = group.packet_replication_engine_entry.multicast_group_entry
    assert multicast.multicast_group_id == 7
    assert [(r.egress_port, r.instance) for r in multicast.replicas] == [(11, 21), (12, 22), (13, 23)]


def from_above(**changes: int) -> dict[str, int]:
    """A packet of the parent, or of a server with `src_port`."""
    return packet(**{"ingress_port": 99, "src_addr": int(IPv4Address(ABOVE)), "src_port": PARENT.udp_port, **changes})


def test_sums_of_a_leaf_go_up_as_one_rank_and_results_come_down(names: Names) -> None:
    entities = names.job([SwitchShare(7, EPOCH, 128, 128, 7, MEMBERS, PARENT)])
    up = {**UP, "udp_port": 4793, "operation": constants.OPERATION_CONTRIBUTION, "rank": 0x8002}
    assert ask(names, entities, **packet()) == Verdict("contribute_up", {"member": 2, "full": 7, **up})
    result = {"operation": constants.OPERATION_RESULT, "rank": 0x8002}
    assert ask(names, entities, **from_above(**result)) == Verdict("result_down", {"full": 7, "group": 7})
    refused = {
        "slot": from_above(**result, slot=0),
        "source": packet(**result),
        "operation": from_above(rank=0x8002),
        "source of the UDP port": from_above(**result, src_port=5001),
        "rank": from_above(operation=constants.OPERATION_RESULT, rank=0x8003),
    }
    for reason, asked in refused.items():
        assert ask(names, entities, **asked) == Verdict("refuse", {"reason": constants.DROPS[reason.split()[0]]}), (
            reason
        )


def test_sums_for_a_server_say_whose_packet_it_was(names: Names) -> None:
    entities = names.job([SwitchShare(7, EPOCH, 128, 128, 7, MEMBERS, SERVER)])
    up = {**UP, "udp_port": 7000, "operation": constants.OPERATION_SUM, "rank": 1}
    assert ask(names, entities, **packet()) == Verdict("contribute_up", {"member": 2, "full": 7, **up})
    result = {"operation": constants.OPERATION_RESULT, "rank": constants.RANK_ALL}
    assert ask(names, entities, **from_above(**result, src_port=7000)) == Verdict(
        "result_down", {"full": 7, "group": 7}
    )


def test_shared_slots_lie_where_the_offset_says(names: Names) -> None:
    entities = names.job([SwitchShare(7, EPOCH, 0, 128, 7, MEMBERS, SERVER, "shared", 0x1A5)])
    up = {**UP, "udp_port": 7000, "offset": 0x1A5}
    assert ask(names, entities, **packet(slot=5)) == Verdict("contribute_shared", {"member": 2, "full": 7, **up})
    assert ask(names, entities, **packet(slot=128)) == Verdict("refuse", {"reason": constants.DROP_SLOT})
    result = {"operation": constants.OPERATION_RESULT, "rank": constants.RANK_ALL, "slot": 5}
    assert ask(names, entities, **from_above(**result, src_port=7000)) == Verdict(
        "result_shared", {"group": 7, "offset": 0x1A5}
    )


def test_chunks_come_from_above_and_ranks_may_only_ask(names: Names) -> None:
    entities = names.job([SwitchShare(7, EPOCH, 128, 128, 7, MEMBERS, SERVER, "chunk")])
    chunk = {"operation": constants.OPERATION_CHUNK, "rank": constants.RANK_ALL}
    assert ask(names, entities, **from_above(**chunk, src_port=7000)) == Verdict("chunk_down", {"group": 7})
    nack = packet(operation=constants.OPERATION_NACK)
    assert ask(names, entities, **nack) == Verdict("ask", {**UP, "udp_port": 7000, "rank": 1})
    assert ask(names, entities, **packet()) == Verdict("refuse", {"reason": constants.DROP_OPERATION})


def test_pools_of_a_job_have_slots_and_groups_of_their_own(names: Names) -> None:
    second = tuple(Member(m.rank, m.port, m.mac, m.address, m.udp_port + 100, m.replica + 100) for m in MEMBERS)
    entities = names.job([SwitchShare(7, EPOCH, 128, 128, 7, MEMBERS), SwitchShare(7, EPOCH, 256, 64, 8, second)])
    assert len({e.SerializeToString(deterministic=True) for e in entities}) == len(entities)
    assert ask(names, entities, **packet(slot=200)) == Verdict("contribute", {"member": 2, "full": 7, "group": 7})
    assert ask(names, entities, **packet(slot=319, src_port=5101)) == Verdict(
        "contribute", {"member": 2, "full": 7, "group": 8}
    )
    for asked in (packet(slot=320, src_port=5101), packet(slot=319), packet(slot=200, src_port=5101)):
        assert ask(names, entities, **asked) == Verdict("refuse", {"reason": constants.DROP_SLOT})


def test_the_fabrics_addresses_are_heard_where_its_cables_are(names: Names) -> None:
    table = names._tables["fabric_source"].preamble.id
    entries = [e.table_entry for e in names.fabric_sources("10.0.0.1", {"10.0.0.2": 7, "10.0.0.3": 9})]
    actions = {a.preamble.id: a.preamble.alias for a in names._actions.values()}
    assert {e.table_id for e in entries} == {table}
    assert {
        str(IPv4Address(e.match[0].exact.value)): (
            actions[e.action.action.action_id],
            [int.from_bytes(p.value, "big") for p in e.action.action.params],
        )
        for e in entries
    } == {"10.0.0.1": ("from_nowhere", []), "10.0.0.2": ("only_from", [7]), "10.0.0.3": ("only_from", [9])}


def test_hosts_reach_each_other_and_everybody(names: Names, job: list[SwitchShare]) -> None:
    table = names._tables["l2"].preamble.id
    entities = names.job([replace(share, hosts=((0xAA00, 11), (0xBB, 99))) for share in job])
    ways = [e.table_entry for e in entities if e.table_entry.table_id == table]
    assert [w.match[0].exact.value for w in ways] == [canonical(0xAA00), canonical(0xBB)]
    assert [w.action.action.params[0].value for w in ways] == [canonical(11), canonical(99)]
    group, broadcast = names.flood([11, 99])
    multicast = group.packet_replication_engine_entry.multicast_group_entry
    assert [(r.egress_port, r.instance) for r in multicast.replicas] == [(11, 0), (99, 0)]
    assert broadcast.table_entry.table_id == table
    assert broadcast.table_entry.match[0].exact.value == b"\xff" * 6
    assert broadcast.table_entry.action.action.params[0].value == canonical(multicast.multicast_group_id)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"members": ()}, "0 members"),
        ({"members": MEMBERS * 11}, "33 members"),
        ({"slots": 100}, "not an aligned power of two"),
        ({"first_slot": 64}, "not an aligned power of two"),
        ({"policy": "free"}, "unknown policy free"),
        ({"policy": "chunk"}, "needs a server above"),
        ({"policy": "shared", "above": PARENT}, "not a parent"),
    ],
)
def test_a_share_that_contradicts_itself_is_refused(job: list[SwitchShare], changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replace(job[0], **changes)


def test_nobody_is_admitted_before_results_have_a_way_out(names: Names, job: list[SwitchShare]) -> None:
    entities = names.job(job)
    group = next(i for i, e in enumerate(entities) if e.HasField("packet_replication_engine_entry"))
    membership = names._tables["membership"].preamble.id
    assert all(i > group for i, e in enumerate(entities) if e.table_entry.table_id == membership)


def test_ternary_entries_follow_the_specification(names: Names, job: list[SwitchShare]) -> None:
    """P4Runtime 1.3, 9.1.1: a priority above 0; no field without a mask; no value bits outside it."""
    membership = names._tables["membership"].preamble.id
    for entry in (e.table_entry for e in names.job(job) if e.table_entry.table_id == membership):
        assert entry.priority > 0
        for match in entry.match:
            value, mask = (int.from_bytes(x, "big") for x in (match.ternary.value, match.ternary.mask))
            assert mask and value & ~mask == 0


@pytest.mark.parametrize(("value", "expected"), [(0, b"\0"), (255, b"\xff"), (256, b"\1\0"), (2**32 - 1, b"\xff" * 4)])
def test_values_are_as_short_as_can_be(value: int, expected: bytes) -> None:
    assert canonical(value) == expected


def test_another_program_is_told_from_ours() -> None:
    with pytest.raises(ArtifactError, match="no table fabric_address"):
        Names(p4info_pb2.P4Info()).fabric_address("10.0.0.1")


# ---- artifacts ----


@pytest.fixture
def build(tmp_path: Path) -> Path:
    for path in (ROOT / "p4" / "build").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_the_artifacts_fit_their_lock(build: Path) -> None:
    for elements in V1MODEL.elements:
        artifact = load_artifact(elements, build)
        assert artifact.name == f"netfold-v1model-{elements}"
        assert json.loads(artifact.program)["program"].endswith("netfold.p4")


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize(
    ("victim", "harm", "says"),
    [
        ("netfold-v1model-64.json", damage, "netfold-v1model-64.json does not match"),
        ("netfold-v1model-64.p4info.txtpb", damage, "netfold-v1model-64.p4info.txtpb does not match"),
        ("netfold-v1model-64.json", Path.unlink, "netfold-v1model-64.json cannot be read"),
        ("lock.json", Path.unlink, "lock.json cannot be read"),
        ("lock.json", lambda path: path.write_text("{}"), "lock.json cannot be read"),
    ],
)
def test_a_damaged_artifact_is_named(build: Path, victim: str, harm: Callable[[Path], None], says: str) -> None:
    harm(build / victim)
    with pytest.raises(ArtifactError, match=says) as refused:
        load_artifact(64, build)
    assert len(str(refused.value).splitlines()) == 1


def test_a_size_without_a_program_is_refused() -> None:
    with pytest.raises(ArtifactError, match="no program for 100 elements per packet; there are 64, 256, 1024, 2048"):
        load_artifact(100)


@pytest.mark.parametrize(("chip", "program"), [("tofino", "netfold-tna-64"), ("tofino2", "netfold-t2na-64")])
def test_a_chips_program_is_its_name_binary_and_tables_each_after_its_length(chip: str, program: str) -> None:
    artifact = load_artifact(64, target=TARGETS[chip])
    name, binary, tables = unpacked(artifact.program)
    assert name == artifact.name == program
    assert binary.startswith(b"\0\0\0H") and json.loads(tables)["target"] == chip
    assert artifact.cookie != load_artifact(32, target=TOFINO).cookie != 0
    with pytest.raises(ArtifactError, match="no program for 256 elements per packet on tofino; there are 32, 64"):
        load_artifact(256, target=TOFINO)


@pytest.mark.parametrize("cut", [0, 1, 7, 40, -1])
def test_what_is_no_chips_program_is_refused(cut: int) -> None:
    program = load_artifact(32, target=TOFINO).program
    with pytest.raises(ProgramError, match="not a program for a Tofino"):
        unpacked(program[:cut])
    with pytest.raises(ProgramError, match="not a program for a Tofino"):
        unpacked(load_artifact(64).program)
