"""BMv2 JSON to C: expressions compiled and run, loops folded, what is not supported refused by name."""

from __future__ import annotations

import copy
import ctypes
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.target import V1MODEL
from emulation.errors import CompilerError, PortError, ProgramError
from emulation.switch.compiler.bmv2_json import Program, words
from emulation.switch.compiler.cc import RUNTIME, compile_program, find_compiler, precompiled
from emulation.switch.compiler.expressions import Expressions, as_words
from emulation.switch.compiler.loop_folding import fold
from emulation.switch.compiler.program_writer import Generator
from emulation.switch.ports.open_port import open_ports
from emulation.switch.ports.port_spec import Endpoint, Faults, PortSpec
from emulation.switch.ports.registry import parse_port
from emulation.switch.ports.udp import UdpSocket
from emulation.switch.ports.wire import Wire
from tests.conftest import ROOT

BUILD = ROOT / "p4" / "build"


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return json.loads((BUILD / "netfold-v1model-64.json").read_text())


def test_all_builds_compile_without_a_warning() -> None:
    for elements in V1MODEL.elements:
        program = Program((BUILD / f"netfold-v1model-{elements}.json").read_bytes())
        assert compile_program(Generator(program).generate(), ("-Werror",)).exists()


def test_the_generated_code_names_the_p4_lines_and_vectors_are_loops() -> None:
    text = Generator(Program((BUILD / "netfold-v1model-256.json").read_bytes())).generate()
    assert "// ingress.vector.add  v1model/vector.p4:" in text
    assert text.count("i < 256; i++") == 7  # load the header; store and add, each from the packet too; load; emit
    assert len(text.splitlines()) < 2800


def test_folding_keeps_what_does_not_repeat() -> None:
    lines = [f"a[@{i}@] = b[@{i + 3}@];" for i in range(8)] + ["c = 1;"] + [f"d[@{i}@] = 0;" for i in (0, 2, 4)]
    assert fold(lines) == [
        "INDEPENDENT",
        "for (uint32_t i = 0; i < 8; i++) {",
        "    a[0 + i] = b[3 + i];",
        "}",
        "c = 1;",
        "d[0] = 0;",
        "d[2] = 0;",
        "d[4] = 0;",
    ]


def test_a_loop_whose_turns_depend_on_each_other_stays_in_order() -> None:
    chain = fold([f"a[@{i + 1}@] = a[@{i}@];" for i in range(9)])
    assert chain[0] == "for (uint32_t i = 0; i < 9; i++) {"
    swapped = fold([line for i in range(9) for line in (f"b[@{i}@] = a[@{i}@];", f"a[@{i}@] = 0;")])
    assert swapped[0] == "INDEPENDENT"


# ---- expressions against Python's integers ----------------------------------------------------------------------

CASTS = ["usat_cast", "sat_cast"]
OPERATORS = ["+", "-", "*", "&", "|", "^", "==", "!=", "<", "<=", ">", ">=", "and", "or"]


def node(op: str, left: Any, right: Any) -> dict[str, Any]:
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


def masked(e: dict[str, Any], bits: int) -> dict[str, Any]:
    """As p4c does after each operation on bit<bits>."""
    return node("&", e, {"type": "hexstr", "value": hex(2**bits - 1)})


def trees(bits: int) -> st.SearchStrategy[dict[str, Any]]:
    """Expressions as p4c writes them for bit<bits>."""
    constants = st.integers(0, 2**bits - 1).map(lambda n: {"type": "hexstr", "value": hex(n)})
    half = hex(bits // 2)
    return st.recursive(
        constants,
        lambda inner: st.one_of(
            st.builds(lambda op, a, b: masked(node(op, a, b), bits), st.sampled_from(OPERATORS), inner, inner),
            st.builds(lambda a: masked(node("~", None, a), bits), inner),
            st.builds(
                lambda op, a, n: masked(node(op, a, {"type": "hexstr", "value": hex(n)}), bits),
                st.sampled_from(["<<", ">>"]),
                inner,
                st.integers(0, bits + 8),
            ),
            st.builds(
                lambda op, a, n: masked(node(op, a, masked(n, 10)), bits), st.sampled_from(["<<", ">>"]), inner, inner
            ),
            st.builds(
                lambda a: masked(node("two_comp_mod", a, {"type": "hexstr", "value": hex(bits)}), bits + 16), inner
            ),
            st.builds(lambda op, a: node(op, a, {"type": "hexstr", "value": half}), st.sampled_from(CASTS), inner),
        ),
        max_leaves=8,
    )


def evaluate(e: dict[str, Any]) -> int:
    if e["type"] == "hexstr":
        return int(e["value"], 16)
    op, left, right = e["value"]["op"], e["value"]["left"], evaluate(e["value"]["right"])
    if op == "~":
        return ~right
    if op == "not":
        return int(not right)
    if op == "?":
        return evaluate(e["value"]["left"] if evaluate(e["value"]["cond"]) else e["value"]["right"])
    a, b = evaluate(left), right
    if op == "two_comp_mod":
        a &= 2**b - 1
        return a - 2**b if a >> (b - 1) else a
    if op == "usat_cast":
        return max(0, min(a, 2**b - 1))
    if op == "sat_cast":
        return max(-(2 ** (b - 1)), min(a, 2 ** (b - 1) - 1))
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


@pytest.mark.parametrize(
    "bits", [8, 32, 48, 64, 100, 128, pytest.param(300, marks=(pytest.mark.slow, pytest.mark.crossed))]
)
def test_expressions_compute_what_unbounded_integers_would(bits: int) -> None:
    @settings(max_examples=3, deadline=None)
    @given(st.lists(trees(bits), min_size=40, max_size=40))
    def check(expressions: list[dict[str, Any]]) -> None:
        computes(bits, expressions)

    check()


def test_truth_is_in_all_bits() -> None:
    high = {"type": "hexstr", "value": hex(1 << 120)}
    wide = masked(node("+", high, high), 128)
    one = {"type": "hexstr", "value": "0x1"}
    chosen = {"type": "expression", "value": {"op": "?", "cond": wide, "left": one, "right": high}}
    computes(128, [node("and", one, wide), node("or", wide, wide), node("not", None, wide), chosen])


def computes(bits: int, expressions: list[dict[str, Any]]) -> None:
    """Compile expressions of bit<bits>, run them, and compare with Python."""
    translate = Expressions(Program((BUILD / "netfold-v1model-64.json").read_bytes()))
    translate.widest = bits
    functions = []
    for i, e in enumerate(expressions):
        values = as_words(translate.code(e), 2 * bits)
        body = " ".join(f"out[{k}] = {word};" for k, word in enumerate(reversed(values)))
        functions.append(f"void f{i}(uint64_t *out) {{ {body} }}")
    limbs = max(words(translate.most_bits + 2), words(2 * bits))
    library = ctypes.CDLL(str(_compile(f"#define LIMBS {limbs}", "\n".join(functions))))
    for i, e in enumerate(expressions):
        out = (ctypes.c_uint64 * words(2 * bits))()
        getattr(library, f"f{i}")(out)
        found = sum(word << 64 * k for k, word in enumerate(out))
        assert found == evaluate(e) & (2 ** (2 * bits) - 1), json.dumps(e)


def _compile(sizes: str, functions: str) -> Path:
    folder = Path(tempfile.mkdtemp())
    (folder / "e.c").write_text(f'{sizes}\n#include "runtime.h"\n{functions}\n')
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

    def with_metadata(name: str) -> Any:
        return lambda p: p["headers"].append({**p["headers"][0], "name": name})

    assert "a PSA program, of p4c-bm2-psa: this switch runs v1model" in changed(
        with_metadata("psa_ingress_input_metadata")
    )
    assert "a PNA program, of p4c-bm2-pna: this switch" in changed(with_metadata("pna_main_input_metadata"))
    assert "extern instances (toggle)" in changed(lambda p: p["extern_instances"].append({"name": "toggle"}))
    assert "match kind nearest" in changed(
        lambda p: p["pipelines"][0]["tables"][1]["key"][0].update(match_type="nearest")
    )
    assert "type best is not one of" in changed(lambda p: p["pipelines"][0]["tables"][0].update(type="best"))
    assert "the primitive extern_func is not supported" in changed(
        lambda p: p["actions"][3]["primitives"][0].update(op="extern_func")
    )
    assert "algorithm toeplitz is not one of csum16" in changed(lambda p: p["calculations"][0].update(algo="toeplitz"))
    assert "not whole bytes" in changed(lambda p: p["header_types"][2]["fields"][0].__setitem__(1, 129))


def test_an_error_of_the_c_compiler_names_the_line_of_p4() -> None:
    text = Generator(Program((BUILD / "netfold-v1model-64.json").read_bytes())).generate()
    broken = text.replace("static VECTOR void action_", "wrong VECTOR void action_", 1)
    with pytest.raises(CompilerError, match=r"error: .* \(of v1model/vector.p4:\d+"):
        compile_program(broken)


def test_without_a_compiler_there_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilerError, match=r"no C compiler .* on PATH"):
        find_compiler()


@pytest.mark.parametrize("elements", V1MODEL.elements)
def test_netfolds_own_programs_are_precompiled(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of these very sources: `make install` compiles them again."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    program = Program((BUILD / f"netfold-v1model-{elements}.json").read_bytes())
    library = compile_program(Generator(program).generate())
    assert library in precompiled() and library.name.startswith(f"netfold-v1model-{elements}-")
    with pytest.raises(CompilerError, match="no C compiler"):
        compile_program(Generator(program).generate(), ("-DNF_TRACE",))


def test_where_nothing_can_be_kept_a_precompiled_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.devnull)
    text = Generator(Program((BUILD / "netfold-v1model-64.json").read_bytes())).generate()
    assert compile_program(text) in precompiled()
    with pytest.raises(CompilerError, match="cannot be kept"):
        compile_program(text + "// another program")


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
        parse_port(text)


def test_a_wire_may_know_its_other_end() -> None:
    known = parse_port("7=wire:127.0.0.1:0,127.0.0.1:9001")
    assert known == PortSpec(7, Wire(Endpoint("127.0.0.1", 0), Endpoint("127.0.0.1", 9001)))
    assert parse_port("7=wire:127.0.0.1:9001") == PortSpec(7, Wire(Endpoint("127.0.0.1", 9001)))


def test_ports_are_opened_all_or_none() -> None:
    (taken,) = open_ports([PortSpec(1, UdpSocket(Endpoint("127.0.0.1", 0)))])
    with pytest.raises(PortError, match=r"port 2: cannot bind udp 127.0.0.1:.*Address already in use"):
        open_ports([PortSpec(1, UdpSocket(Endpoint("127.0.0.1", 0))), PortSpec(2, UdpSocket(taken.endpoint))])
    with pytest.raises(PortError, match="given twice"):
        open_ports([PortSpec(1, UdpSocket(Endpoint("127.0.0.1", 0)))] * 2)
    taken.socket.close()


@pytest.mark.parametrize("fields", [{"loss": 1.0}, {"duplicate": -0.1}, {"reorder": 2.0}])
def test_faults_are_probabilities(fields: dict[str, float]) -> None:
    with pytest.raises(PortError, match="is not a probability"):
        Faults(**fields)
