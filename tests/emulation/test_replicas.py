"""Replicas of one packet: what egress does to one of them, no other one sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2
from p4.v1 import p4runtime_pb2 as p4rt

from controller.switches.program import load_artifact
from controller.switches.table_entries import Names
from emulation.benchmarks import switch_rates
from emulation.switch.compiler import header_writer
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.p4runtime.pipeline import Pipeline, load_config
from hostlib.protocol.header import Header

ELEMENTS, GROUP, PORTS = 64, 5, (2, 3, 4)
COUNTED = "counters21"  # an action that each replica gets


def adding(to: list[str]) -> bytes:
    """The committed program, whose egress also adds its port to a field."""
    described = json.loads(load_artifact(ELEMENTS).program)
    field, port = ({"type": "field", "value": name} for name in (to, ["standard_metadata", "egress_port"]))
    total = {"type": "expression", "value": {"op": "+", "left": field, "right": port}}
    action = next(each for each in described["actions"] if each["name"] == COUNTED)
    action["primitives"].append({"op": "assign", "parameters": [field, {"type": "expression", "value": total}]})
    return json.dumps(described).encode()


def fields(program: bytes, name: str) -> list[str]:
    return [field.name for field in Program(program).headers[name].fields]


@pytest.mark.parametrize(
    ("header", "place", "at", "kept"),
    [
        pytest.param("vector", 0, switch_rates.PAYLOAD_AT, "sizeof(context_t)", id="an element"),
        pytest.param(
            "vector", ELEMENTS - 1, switch_rates.PAYLOAD_AT + 4 * ELEMENTS - 4, "sizeof(context_t)", id="the last one"
        ),
        pytest.param(
            "netfold", 12, switch_rates.PAYLOAD_AT - 4, "offsetof(context_t, h.vector)", id="a small header's field"
        ),
    ],
)
def test_each_replica_is_changed_by_itself(header: str, place: int, at: int, kept: str) -> None:
    artifact = load_artifact(ELEMENTS)
    program = adding([header, fields(artifact.program, header)[place]])
    assert header_writer.kept(Program(program)) == kept
    pipeline = Pipeline(load_config(program, artifact.p4info))
    try:
        names = Names(text_format.Parse(artifact.p4info, p4info_pb2.P4Info()))
        entity: Any = names.entry("l2", {"dst_mac": switch_rates.SWITCH_MAC}, "l2_flood", {"group": GROUP})
        with pipeline.dataplane.writing():
            pipeline.update(p4rt.Update(type=p4rt.Update.INSERT, entity=entity))
            pipeline.dataplane.group(GROUP, [(port, 0) for port in PORTS])
        (member,) = switch_rates._members(1)
        payload = bytes(range(256))[: 4 * ELEMENTS]
        frame = switch_rates._frame(
            switch_rates._share((member,)), member, Header(job=1, element_count=ELEMENTS), payload
        )
        value = int.from_bytes(frame[at : at + 4], "big")
        expected = [
            (port, frame[:at] + ((value + port) % 2**32).to_bytes(4, "big") + frame[at + 4 :]) for port in PORTS
        ]
        assert pipeline.dataplane.process(1, frame) == expected
    finally:
        pipeline.dataplane.close()
