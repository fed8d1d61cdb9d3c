"""The C around a program: headers that stand by themselves, kinds of port, parsers that come to no end."""

from __future__ import annotations

import copy
import graphlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from emulation.switch import ports
from emulation.switch.compiler.bmv2_json import Program
from emulation.switch.compiler.cc import RUNTIME, compile_program, find_compiler
from emulation.switch.compiler.parser_writer import MOST_VISITS
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.dataplane import Dataplane
from emulation.switch.ports.registry import kinds, port_help
from tests.emulation.p4runtime import DATA

HEADERS = sorted(RUNTIME.rglob("*.h"))
LANGUAGE = json.loads((DATA / "language.json").read_text())
NUMBER = 3  # an operation of language.p4: parse_number comes next


# ---- headers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", HEADERS, ids=lambda path: str(path.relative_to(RUNTIME)))
def test_a_header_can_be_opened_alone(header: Path) -> None:
    # What is static and only declared stands in another file, or in the generated program.
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Wno-unused-function", "-Wno-unused-variable"]
    done = subprocess.run(
        [find_compiler(), *flags, "-fsyntax-only", "-x", "c", "-"],
        input=f'#include "{header}"\n',
        capture_output=True,
        text=True,
    )
    complaints = [line for line in done.stderr.splitlines() if re.search("warning|error", line)]
    assert done.returncode == 0
    assert [
        line for line in complaints if "used but never defined" not in line and "has internal linkage" not in line
    ] == []


def test_no_header_includes_itself_by_way_of_others() -> None:
    includes = {
        header: {(header.parent / name).resolve() for name in re.findall(r'#include "(.+)"', header.read_text())}
        for header in HEADERS
    }
    assert set().union(*includes.values()) <= set(HEADERS)
    graphlib.TopologicalSorter(includes).prepare()  # refuses a circle


# ---- kinds of port ----------------------------------------------------------------------------------------------


def test_each_kind_of_port_is_one_file_here_and_one_there() -> None:
    described = {path.stem for path in Path(ports.__path__[0]).glob("*.py") if "\nKIND = " in path.read_text()}
    driven = {path for path in (RUNTIME / "ports").glob("*.h") if re.search(r"\nint nf_\w+_port\(", path.read_text())}
    assert set(kinds()) >= {"udp", "wire", "eth"}
    assert described >= {"udp", "wire", "packet_socket"}
    assert {path.stem for path in driven} >= {"udp", "wire", "packet"}
    assert len(kinds()) == len(described) == len(driven)
    assert all(kind.summary in port_help() for kind in kinds().values())


# ---- parsers ----------------------------------------------------------------------------------------------------


def endless(*turns: str) -> dict[str, Any]:
    """language.p4 with a parser in which each of these states leads to the next one, and none extracts anything."""
    changed = copy.deepcopy(LANGUAGE)
    states = {state["name"]: state for state in changed["parsers"][0]["parse_states"]}
    for name, following in zip(turns, (*turns[1:], turns[0]), strict=True):
        states[name]["parser_ops"] = []
        states[name]["transition_key"] = []
        states[name]["transitions"] = [{"type": "default", "value": None, "mask": None, "next_state": following}]
    return changed


@pytest.mark.parametrize("turns", [("parse_number",), ("parse_number", "parse_small", "parse_large")])
def test_a_parser_that_comes_to_no_end_costs_its_packet(turns: tuple[str, ...]) -> None:
    program = Program(json.dumps(endless(*turns)).encode())
    dataplane = Dataplane(compile_program(Generator(program).generate(), ("-O0",)), program)
    try:
        for lost in (1, 2):
            assert dataplane.process(1, bytes([NUMBER]) + bytes(40)) == []
            assert dataplane.losses()["endless"] == lost
        assert len(dataplane.process(1, bytes([0]) + bytes(40))) == 1
        assert dataplane.losses()["endless"] == 2
    finally:
        dataplane.close()


def test_only_states_that_can_come_again_are_counted() -> None:
    text = Generator(Program(json.dumps(LANGUAGE).encode())).generate()
    assert text.count(f"> {MOST_VISITS}) goto timeout;") == 1  # parse_item, of a header stack
    (counted,) = re.findall(r'TRACE\("parser state (\w+)"\);\n    if \(\+\+visits', text)
    assert counted == "parse_item"
    committed = Path(DATA).parents[1] / "p4" / "build" / "netfold-v1model-64.json"
    assert "visits" not in Generator(Program(committed.read_bytes())).generate()
