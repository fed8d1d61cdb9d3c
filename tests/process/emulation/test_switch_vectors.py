"""Vectors stay in the packet until an action changes them, and replicas of a packet share one: nobody may see that.

The committed program, forwarding a frame to three ports, with primitives of the test's own at its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt

from controller.switches.program import load_artifact
from controller.switches.table_entries import Names
from emulation.benchmarks import switch_rates
from emulation.switch.compiler import egress_writer
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.expressions import Expressions
from emulation.switch.compiler.late_headers import LateHeaders
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from hostlib.protocol.header import Header

ELEMENTS, GROUP, PORTS, FROM = 64, 5, (2, 3, 4), 1
FIRST, INGRESS, EGRESS = "netfold50", "counters8", "counters21"  # actions that each frame and each replica gets
VECTOR_AT = switch_rates.PAYLOAD_AT
CHECK_AT, RANK_AT = switch_rates._at("check"), switch_rates._at("rank")
ARP_AT, ARP_BYTES = 14, 28

COMMITTED = Program(load_artifact(ELEMENTS).program)

Primitive = dict[str, Any]


# ---- primitives -------------------------------------------------------------------------------------------------


def field(header: str, name: str | int) -> dict[str, Any]:
    """A field by name or place."""
    return {"type": "field", "value": [header, named(header, name) if isinstance(name, int) else name]}


def named(header: str, place: int) -> str:
    return COMMITTED.headers["vector" if header == "spare" else header].fields[place].name


def number(value: int) -> dict[str, Any]:
    return {"type": "hexstr", "value": hex(value)}


def computed(op: str, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def assign(to: dict[str, Any], value: dict[str, Any]) -> Primitive:
    return {"op": "assign", "parameters": [to, {"type": "expression", "value": value}]}


def add(to: dict[str, Any], value: dict[str, Any]) -> Primitive:
    return assign(to, computed("+", to, value))


def header(op: str, *names: str) -> Primitive:
    return {"op": op, "parameters": [{"type": "header", "value": name} for name in names]}


E = [field("vector", place) for place in range(ELEMENTS)]
PORT = field("standard_metadata", "egress_port")
RANK, CHECK = field("netfold", "rank"), field("netfold", "check")


def program(**added: list[Primitive] | Callable[[int], list[Primitive]]) -> bytes:
    """The committed program with a spare vector, and more in actions; a function gets how many primitives there are."""
    described = json.loads(load_artifact(ELEMENTS).program)
    vector = next(each for each in described["headers"] if each["name"] == "vector")
    described["headers"].append({**vector, "name": "spare", "id": 99})
    for action in described["actions"]:
        more = added.get(action["name"], [])
        action["primitives"] += more(len(action["primitives"])) if callable(more) else more
    return json.dumps(described).encode()


# ---- frames -----------------------------------------------------------------------------------------------------


def frame() -> bytes:
    (member,) = switch_rates._members(1)
    words = b"".join((7 + 1_000_003 * place & 0xFFFFFFFF).to_bytes(4, "big") for place in range(ELEMENTS))
    share = switch_rates._share((member,))
    return switch_rates._frame(share, member, Header(job=1, element_count=ELEMENTS), words)


def elements(of: bytes) -> list[int]:
    return [int.from_bytes(of[at : at + 4], "big") for at in range(VECTOR_AT, VECTOR_AT + 4 * ELEMENTS, 4)]


def with_elements(of: bytes, values: list[int]) -> bytes:
    packed = b"".join((value & 0xFFFFFFFF).to_bytes(4, "big") for value in values)
    return of[:VECTOR_AT] + packed + of[VECTOR_AT + 4 * ELEMENTS :]


def with_word(of: bytes, at: int, value: int, size: int = 4) -> bytes:
    return of[:at] + (value % 2 ** (8 * size)).to_bytes(size, "big") + of[at + size :]


def forwarded(json_program: bytes, frames: list[bytes], ports: tuple[int, ...] = PORTS) -> list[tuple[int, bytes]]:
    """What leaves, of frames that are sent to `ports`."""
    artifact = load_artifact(ELEMENTS)
    pipeline = Pipeline(load_config(json_program, artifact.p4info))
    try:
        names = Names(text_format.Parse(artifact.p4info, p4info_pb2.P4Info()))
        entity: Any = names.entry("l2", {"dst_mac": switch_rates.SWITCH_MAC}, "l2_flood", {"group": GROUP})
        with pipeline.dataplane.writing():
            pipeline.update(p4rt.Update(type=p4rt.Update.INSERT, entity=entity))
            pipeline.dataplane.group(GROUP, [(port, 0) for port in ports])
        return [each for one in frames for each in pipeline.dataplane.process(FROM, one)]
    finally:
        pipeline.dataplane.close()


def to_all(expected: bytes) -> list[tuple[int, bytes]]:
    return [(port, expected) for port in PORTS]


# ---- what ingress does to a vector ------------------------------------------------------------------------------


def test_the_committed_program_reads_its_vector_late_and_the_test_s_own_too() -> None:
    late = LateHeaders(Program(program()))
    assert {each.name for each in late.headers} == {"vector", "spare"}


def test_a_part_of_a_vector_is_changed() -> None:
    sent = frame()
    values = elements(sent)
    values[5] += 1
    assert forwarded(program(**{INGRESS: [add(E[5], number(1))]}), [sent]) == to_all(with_elements(sent, values))


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(lambda i: (i + 1) % ELEMENTS, id="the next, not written yet"),
        pytest.param(lambda i: ELEMENTS - 1 - i, id="from the other end, half of it written already"),
    ],
)
def test_all_of_a_vector_is_changed_one_element_after_the_other(source: Callable[[int], int]) -> None:
    sent = frame()
    values = elements(sent)
    for i in range(ELEMENTS):
        values[i] = (values[i] + values[source(i)]) & 0xFFFFFFFF
    changes = [add(E[i], E[source(i)]) for i in range(ELEMENTS)]
    assert forwarded(program(**{INGRESS: changes}), [sent]) == to_all(with_elements(sent, values))


def test_a_vector_is_read_without_a_change() -> None:
    sent = frame()
    total = sum(elements(sent), int.from_bytes(sent[CHECK_AT : CHECK_AT + 4], "big"))
    changes = [add(CHECK, each) for each in E]
    assert forwarded(program(**{INGRESS: changes}), [sent]) == to_all(with_word(sent, CHECK_AT, total))


def test_a_change_that_depends_on_something() -> None:
    """A jump over the changes of all elements."""

    def changes(count: int) -> list[Primitive]:
        jump = {"op": "_jump_if_zero", "parameters": [RANK, number(count + 1 + ELEMENTS)]}
        return [jump, *(add(each, number(1)) for each in E)]

    skipped = frame()
    changed = with_word(skipped, RANK_AT, 1, 2)
    expected = with_elements(changed, [value + 1 for value in elements(changed)])
    assert forwarded(program(**{INGRESS: changes}), [skipped, changed]) == [*to_all(skipped), *to_all(expected)]


def test_two_actions_that_read_and_write() -> None:
    """The second finds the vector where the first left it."""
    sent = frame()
    values = [2 * value for value in elements(sent)]
    doubled = [add(each, each) for each in E]
    total = sum(values, int.from_bytes(sent[CHECK_AT : CHECK_AT + 4], "big"))
    checked = [add(CHECK, each) for each in E]
    changed = program(**{FIRST: doubled, INGRESS: checked})
    assert forwarded(changed, [sent]) == to_all(with_word(with_elements(sent, values), CHECK_AT, total))


def test_a_copy_keeps_what_the_vector_was() -> None:
    sent = frame()
    copied = [
        header("assign_header", "spare", "vector"),
        *(assign(each, number(1)) for each in E),
        add(field("spare", 3), E[3]),
        header("assign_header", "vector", "spare"),
    ]
    values = elements(sent)
    values[3] += 1
    assert forwarded(program(**{INGRESS: copied}), [sent]) == to_all(with_elements(sent, values))


def test_a_vector_that_is_removed_and_added_is_zero() -> None:
    sent = frame()
    anew = [header("remove_header", "vector"), header("add_header", "vector"), add(E[1], number(9))]
    expected = with_elements(sent, [0, 9] + [0] * (ELEMENTS - 2))
    assert forwarded(program(**{INGRESS: anew}), [sent]) == to_all(expected)


def test_a_vector_of_the_last_packet_is_not_this_one_s() -> None:
    """The second frame ends before its vector, which ingress then adds."""
    sent = frame()
    anew = [header("add_header", "vector"), add(E[0], number(1))]
    values = elements(sent)
    values[0] += 1
    short = sent[:VECTOR_AT]
    expected = [*to_all(with_elements(sent, values)), *to_all(with_elements(sent, [1] + [0] * (ELEMENTS - 1)))]
    assert forwarded(program(**{INGRESS: anew}), [sent, short]) == expected


def test_a_vector_that_a_condition_names_is_not_read_late() -> None:
    described = json.loads(program())
    ingress = described["pipelines"][0]
    before = ingress["conditionals"][0]
    before["expression"] = computed("or", before["expression"], computed("==", E[2], number(5)))
    assert LateHeaders(Program(json.dumps(described))).headers == ()
    sent = frame()
    assert forwarded(json.dumps(described).encode(), [sent]) == to_all(sent)


# ---- replicas ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "at", "alone"),
    [
        pytest.param(E[0], VECTOR_AT, False, id="an element"),
        pytest.param(E[-1], VECTOR_AT + 4 * ELEMENTS - 4, False, id="the last one"),
        pytest.param(CHECK, CHECK_AT, True, id="a small header's field"),
    ],
)
def test_each_replica_is_changed_by_itself(to: dict[str, Any], at: int, alone: bool) -> None:
    """What egress does to one of them, no other one sees."""
    changed = program(**{EGRESS: [add(to, PORT)]})
    assert bool(egress_writer.untouched(Program(changed))) == alone
    sent = frame()
    value = int.from_bytes(sent[at : at + 4], "big")
    assert forwarded(changed, [sent]) == [(port, with_word(sent, at, value + port)) for port in PORTS]


def test_only_what_egress_writes_is_put_back() -> None:
    def kept(json_program: bytes) -> str:
        loaded = Program(json_program)
        return egress_writer.keeper(loaded, Expressions(loaded))

    fields = kept(program(**{EGRESS: [add(CHECK, PORT)]}))
    assert "c->h.netfold.f_check" in fields and "run0" not in fields and "lines" not in fields
    assert "sizeof(context_t)" in kept(program(**{EGRESS: [add(E[0], PORT)]}))
    assert "offsetof(context_t, h.vector)" in kept(program(**{EGRESS: [header("add_header", "arp")]}))


def test_a_replica_with_one_more_header_than_the_others() -> None:
    """Its vector lies elsewhere in the frame, and that of the next one where it lay before."""

    def longer(count: int) -> list[Primitive]:
        other = computed("==", PORT, number(PORTS[1]))
        return [{"op": "_jump_if_zero", "parameters": [other, number(count + 2)]}, header("add_header", "arp")]

    sent = frame()
    first, second, third = to_all(sent)
    more = sent[:ARP_AT] + bytes(ARP_BYTES) + sent[ARP_AT:]
    assert forwarded(program(**{EGRESS: longer}), [sent, sent]) == 2 * [first, (second[0], more), third]


def test_what_a_recirculated_replica_writes_is_not_the_others() -> None:
    """The first replica goes round twice, and its vector is changed each time."""

    def again(count: int) -> list[Primitive]:
        wanted = computed("and", computed("==", PORT, number(PORTS[0])), computed("<", RANK, number(3)))
        return [
            {"op": "_jump_if_zero", "parameters": [wanted, number(count + 2)]},
            {"op": "recirculate", "parameters": [number(1)]},
        ]

    sent = frame()
    rounds = program(**{INGRESS: [add(RANK, number(1)), add(E[7], number(100))], EGRESS: again})
    values = elements(sent)

    def after(passes: int) -> bytes:
        changed = list(values)
        changed[7] += 100 * passes
        return with_word(with_elements(sent, changed), RANK_AT, passes, 2)

    # From the inside out: the last pass sends all three.
    expected = [(port, after(3)) for port in PORTS]
    expected += [(port, after(2)) for port in PORTS[1:]] + [(port, after(1)) for port in PORTS[1:]]
    assert forwarded(rounds, [sent]) == expected


def test_frames_one_after_the_other() -> None:
    """Nothing of one frame is left in the next, of one replica or of many."""
    first = frame()
    second = with_elements(first, [value ^ 0xFFFF0000 for value in elements(first)])
    for ports in (PORTS, PORTS[:1]):
        sent = [first, second, second, first, first[:VECTOR_AT], first]
        assert forwarded(load_artifact(ELEMENTS).program, sent, ports) == [
            (port, each) for each in sent for port in ports
        ]
