"""The TNA program beside the v1model one: the same verdicts, the same tables for the controller, within one chip."""

from __future__ import annotations

import json
import re
import runpy
import tarfile
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from p4.config.v1 import p4info_pb2

from tests.conftest import ROOT

P4 = ROOT / "p4"
PROGRAMS = {"tna-32": "tofino", "tna-64": "tofino", "t2na-64": "tofino2"}  # and their chips
STAGES = {"tofino": 12, "tofino2": 20}
parsers_without_choice = runpy.run_path(str(P4 / "build.py"))["parsers_without_choice"]
# What the controller writes and reads, on any target.
TABLES = ("membership", "fabric_address", "fabric_source", "replicas", "arp", "l2", "router_mac", "ipv4")
COUNTERS = ("events", "egress_events", "port_in", "port_out")


def declared(path: str, prefix: str) -> list[str]:
    return re.findall(rf"const \S+\s+({prefix}\w+)\s*=", (P4 / path).read_text())


def code(*paths: Path) -> str:
    """Sources without comments."""
    return "\n".join(re.sub(r"(//|#).*", "", path.read_text()) for path in paths)


@pytest.mark.parametrize("name", [*declared("common/protocol.p4", "EVENT_"), *declared("common/protocol.p4", "DROP_")])
def test_every_verdict_is_in_the_program_or_in_the_controllers_entries(name: str) -> None:
    program, entries = code(*P4.glob("tna/*.p4")), code(P4.parent / "controller/switches/table_entries.py")
    assert re.search(rf"\b{name}\b", program) or f"constants.{name}" in entries


@pytest.mark.parametrize("name", declared("common/verdicts.p4", "(?:ROLE|VERDICT)_"))
def test_every_role_and_verdict_is_decided_somewhere(name: str) -> None:
    assert re.search(rf"\b{name}\b", code(*P4.glob("tna/*.p4")))


def p4info(program: str) -> p4info_pb2.P4Info:
    return text_format.Parse((P4 / f"build/netfold-{program}.p4info.txtpb").read_text(), p4info_pb2.P4Info())


def interface(info: p4info_pb2.P4Info) -> dict[str, Any]:
    """What a controller sees of TABLES and COUNTERS, without ids and sizes."""
    actions = {a.preamble.id: a for a in info.actions}
    tables = {
        t.preamble.alias: (
            [(f.name, f.bitwidth, f.match_type) for f in t.match_fields],
            {
                # An action of this table alone may be qualified in one program and not in the other.
                actions[ref.id].preamble.alias: [(p.name, p.bitwidth) for p in actions[ref.id].params]
                for ref in t.action_refs
            },
        )
        for t in info.tables
        if t.preamble.alias in TABLES
    }
    counters = {c.preamble.alias: c.spec.unit for c in info.counters if c.preamble.alias in COUNTERS}
    return {"tables": tables, "counters": counters}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_controller_sees_the_tables_of_the_v1model_program(program: str) -> None:
    expected = interface(p4info("v1model-64"))
    assert expected["tables"].keys() == set(TABLES)
    assert expected["counters"].keys() == set(COUNTERS)
    assert interface(p4info(program)) == expected


@pytest.mark.parametrize(("program", "chip"), PROGRAMS.items())
def test_the_program_fits_its_chip(program: str, chip: str) -> None:
    """By the compiler's own report; the binary is what it says it is."""
    used = json.loads((P4 / f"build/netfold-{program}.resources.json").read_text())
    assert len(used["stages"]) <= STAGES[chip]
    assert all(used["phv"][width] <= there for width, there in used["containers"].items())
    assert all(stage["meter_alus"] <= 4 for stage in used["stages"])
    tables = {name for stage in used["stages"] for name in stage["tables"]}
    assert sum(bool(re.fullmatch(r"ingress\.vector\.work_e\w\w", name)) for name in tables) == (
        64 if chip == "tofino2" else 32
    )
    with tarfile.open(P4 / f"build/netfold-{program}.tar.gz") as tar:
        context = json.load(tar.extractfile("pipe/context.json"))
        assert context["target"] == chip
        assert {t["name"] for t in context["tables"]} >= {"membership", "replicas"}
        assert tar.getmember(f"pipe/{chip}.bin").size > 100_000
        assert {t["name"] for t in json.load(tar.extractfile("bfrt.json"))["tables"]} >= {
            "pipe.membership",
            "pipe.replicas",
        }


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_compiled_parsers_look_at_frames(program: str) -> None:
    with tarfile.open(P4 / f"build/netfold-{program}.tar.gz") as artifacts:
        context = artifacts.extractfile("pipe/context.json")
        assert context is not None and parsers_without_choice(json.load(context)) == []


def test_a_parser_that_looks_at_nothing_is_found() -> None:
    start, there, other = ({"parser_name": name} for name in ("start", "parse_ipv4", "parse_udp"))
    context = {"parser": {"ingress": [start, start, there, other], "egress": [start, there, other]}}
    assert parsers_without_choice(context) == ["egress"]
