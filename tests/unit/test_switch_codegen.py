"""BMv2 JSON to C: expressions compiled and run, loops folded, what is not supported refused by name."""

from __future__ import annotations

import copy
import ctypes
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulation.errors import CompilerError, PortError, ProgramError
from emulation.switch.codegen import Generator
from emulation.switch.compiler import RUNTIME, compile_program, find_compiler
from emulation.switch.expression import Expressions
from emulation.switch.fold import fold
from emulation.switch.port import Endpoint, Faults, PortSpec, open_ports
from emulation.switch.program import Program
from tests.conftest import ROOT

BUILD = ROOT / "p4" / "build"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return json.loads((BUILD / "netfold-v1model-64.json").read_text())


def test_both_builds_compile_without_a_warning() -> None:
    for elements in (64, 256):
        program = Program((BUILD / f"netfold-v1model-{elements}.json").read_bytes())
        assert compile_program(Generator(program).generate(), ("-Werror",)).exists()


def test_the_generated_code_names_the_p4_lines_and_vectors_are_loops() -> None:
    text = Generator(Program((BUILD / "netfold-v1model-256.json").read_bytes())).generate()
    assert "// ingress.vector.add  v1model/vector.p4:" in text
    assert text.count("i < 256; i++") == 5  # store, load, add, extract, emit
    assert len(text.splitlines()) < 3000


def test_folding_keeps_what_does_not_repeat() -> None:
    lines = [f"a[@{i}@] = b[@{i + 3}@];" for i in range(8)] + ["c = 1;"] + [f"d[@{i}@] = 0;" for i in (0, 2, 4)]
    assert fold(lines) == [
        "for (uint32_t i = 0; i < 8; i++) {",
        "    a[0 + i] = b[3 + i];",
        "}",
        "c = 1;",
        "d[0] = 0;",
        "d[2] = 0;",
        "d[4] = 0;",
    ]


# ---- expressions against Python's integers ----------------------------------------------------------------------

OPERATORS = ["+", "-", "*", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
constants = st.integers(0, 2**32 - 1).map(lambda n: {"type": "hexstr", "value": hex(n)})


def node(op: str, left: Any, right: Any) -> dict[str, Any]:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def masked(e: dict[str, Any], bits: int) -> dict[str, Any]:
    """As p4c does after each operation on bit<bits>."""
    return node("&", e, {"type": "hexstr", "value": hex(2**bits - 1)})


trees = st.recursive(
    constants,
    lambda inner: st.one_of(
        st.builds(lambda op, a, b: masked(node(op, a, b), 32), st.sampled_from(OPERATORS), inner, inner),
        st.builds(lambda a: masked(node("~", None, a), 32), inner),
        st.builds(
            lambda op, a, n: masked(node(op, a, {"type": "hexstr", "value": hex(n)}), 32),
            st.sampled_from(["<<", ">>"]),
            inner,
            st.integers(0, 40),
        ),
        st.builds(lambda a: masked(node("two_comp_mod", a, {"type": "hexstr", "value": "0x20"}), 48), inner),
        st.builds(lambda a: node("usat_cast", a, {"type": "hexstr", "value": "0x10"}), inner),
    ),
    max_leaves=8,
)


def evaluate(e: dict[str, Any]) -> int:
    if e["type"] == "hexstr":
        return int(e["value"], 16)
    op, left, right = e["value"]["op"], e["value"]["left"], evaluate(e["value"]["right"])
    if op == "~":
        return ~right
    a, b = evaluate(left), right
    if op == "two_comp_mod":
        a &= 2**b - 1
        return a - 2**b if a >> (b - 1) else a
    if op == "usat_cast":
        return max(0, min(a, 2**b - 1))
    return int(
        {
            "+": lambda: a + b,
            "-": lambda: a - b,
            "*": lambda: a * b,
            "&": lambda: a & b,
            "|": lambda: a | b,
            "^": lambda: a ^ b,
            "==": lambda: a == b,
            "!=": lambda: a != b,
            "<": lambda: a < b,
            "<=": lambda: a <= b,
            ">": lambda: a > b,
            ">=": lambda: a >= b,
            "and": lambda: bool(a and b),
            "or": lambda: bool(a or b),
            "<<": lambda: a << b,
            ">>": lambda: a >> b,
        }[op]()
    )


@settings(max_examples=5, deadline=None)
@given(st.lists(trees, min_size=40, max_size=40))
def test_expressions_compute_what_unbounded_integers_would(expressions: list[dict[str, Any]]) -> None:
    translate = Expressions(Program((BUILD / "netfold-v1model-64.json").read_bytes()))
    functions = "\n".join(
        f"uint64_t f{i}(void) {{ return (uint64_t)({translate.code(e).text}); }}" for i, e in enumerate(expressions)
    )
    library = ctypes.CDLL(str(_compile(functions)))
    for i, e in enumerate(expressions):
        function = getattr(library, f"f{i}")
        function.restype = ctypes.c_uint64
        assert function() == evaluate(e) & (2**64 - 1), json.dumps(e)


def _compile(functions: str) -> Path:
    folder = Path(tempfile.mkdtemp())
    (folder / "e.c").write_text(f'#include "runtime.h"\n{functions}\n')
    subprocess.run(
        [
            find_compiler(),
            "-O1",
            "-fPIC",
            "-shared",
            "-w",
            "-fsanitize=undefined",
            "-fno-sanitize-recover",
            "-static-libubsan" if "clang" in find_compiler() else "-lubsan",
            f"-I{RUNTIME}",
            "-o",
            folder / "e.so",
            folder / "e.c",
        ],
        check=True,
    )
    return folder / "e.so"


# ---- refusals ---------------------------------------------------------------------------------------------------


def test_what_is_no_program_is_refused() -> None:
    for text in (b"", b"{", b"[]", b"{}", b'{"header_types": 3}'):
        with pytest.raises(ProgramError, match="not a BMv2 JSON program"):
            Program(text)


def test_unsupported_constructs_are_named(described: dict[str, Any]) -> None:
    def changed(change: Any) -> str:
        program = copy.deepcopy(described)
        change(program)
        with pytest.raises(ProgramError) as refused:
            Generator(Program(json.dumps(program))).generate()
        return str(refused.value)

    assert "meter arrays (police)" in changed(lambda p: p["meter_arrays"].append({"name": "police"}))
    assert "match kind range" in changed(lambda p: p["pipelines"][0]["tables"][1]["key"][0].update(match_type="range"))
    assert "action profile" in changed(lambda p: p["pipelines"][0]["tables"][0].update(type="indirect"))
    assert "the primitive recirculate is not supported" in changed(
        lambda p: p["actions"][3]["primitives"][0].update(op="recirculate")
    )
    assert "crc32 is not supported" in changed(lambda p: p["calculations"][0].update(algo="crc32"))
    assert "129 bits wide" in changed(lambda p: p["header_types"][2]["fields"][0].__setitem__(1, 129))


def test_without_a_compiler_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilerError, match=r"no C compiler .* on PATH"):
        find_compiler()


# ---- ports ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "x=udp:127.0.0.1:1",
        "1=tcp:127.0.0.1:1",
        "511=udp:127.0.0.1:1",
        "1=udp:127.0.0.1",
        "1=udp:127.0.0.1:70000",
        "1=udp:127.0.0.1:1,127.0.0.1:2",
        "1=wire:127.0.0.1:1,",
        "1=wire:127.0.0.1:1,127.0.0.1",
    ],
)
def test_wrong_port_specifications_are_refused(text: str) -> None:
    with pytest.raises(PortError):
        PortSpec.parse(text)


def test_a_wire_may_know_its_other_end() -> None:
    known = PortSpec.parse("7=wire:127.0.0.1:0,127.0.0.1:9001")
    assert (known.number, known.wire, known.peer) == (7, True, Endpoint("127.0.0.1", 9001))
    assert PortSpec.parse("7=wire:127.0.0.1:9001") == PortSpec(7, Endpoint("127.0.0.1", 9001), True)


def test_ports_are_opened_all_or_none() -> None:
    (taken,) = open_ports([PortSpec(1, Endpoint("127.0.0.1", 0))])
    with pytest.raises(PortError, match=r"port 2: cannot bind udp 127.0.0.1:.*Address already in use"):
        open_ports([PortSpec(1, Endpoint("127.0.0.1", 0)), PortSpec(2, taken.endpoint)])
    with pytest.raises(PortError, match="given twice"):
        open_ports([PortSpec(1, Endpoint("127.0.0.1", 0))] * 2)
    taken.socket.close()


@pytest.mark.parametrize("wrong", [{"loss": 1.0}, {"duplicate": -0.1}, {"reorder": 2.0}])
def test_faults_are_probabilities(wrong: dict[str, float]) -> None:
    with pytest.raises(PortError, match="is not a probability"):
        Faults(**wrong)
