"""The house keeps its shape: imports go one way, generated files fit their source, artifacts fit their lock."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

Section = dict[str, Any]  # of p4/build/lock.json
ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("controller", "hostlib", "emulation", "simulation")

# Who may import what of netfold, as docs/structure.md says; prefixes of module names.
ARROWS = {
    "controller": ("controller", "hostlib.wire", "hostlib.layout"),
    "hostlib": ("hostlib",),
    "emulation": ("emulation", "hostlib", "controller", "simulation"),
    "simulation": (
        "simulation",
        "hostlib.schedule",
        "hostlib.checker",
        "hostlib.registry",
        "hostlib.mechanisms",
        "hostlib.strategy",
        "hostlib.strategies",
        "hostlib.errors",
        "hostlib.layers",
        "hostlib.layout",
        "hostlib.picture",
        "hostlib.plan",
        "hostlib.quantity",
        "hostlib.trace",
        "hostlib.wire",
    ),
}


def imports(path: Path) -> list[str]:
    """Dotted names a module imports; `from hostlib import wire` counts as hostlib.wire."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            if node.module in ROOMS:
                names += [f"{node.module}.{alias.name}" for alias in node.names]
            else:
                names.append(node.module)
    return names


def modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_one_way(room: str) -> None:
    found = [(p, name) for p in modules(room) for name in imports(p) if name.split(".")[0] in ROOMS]
    wrong = [
        f"{p.relative_to(ROOT)} imports {name}"
        for p, name in found
        if not any(name == allowed or name.startswith(allowed + ".") for allowed in ARROWS[room])
    ]
    assert modules(room), f"{room}/ holds no module"
    assert wrong == []


@pytest.mark.parametrize(
    "package",
    [
        "hostlib.schedule",
        "hostlib.registry",
        "hostlib.strategy",
        "hostlib.plan",
        "hostlib.join",
        "hostlib.cli",
        "hostlib.trace",
        "hostlib.traffic",
        "simulation.cli",
        "emulation.run",
    ],
)
def test_torch_stays_out_of_what_does_not_need_it(package: str) -> None:
    code = f"import sys, {package}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


@pytest.mark.parametrize("command", [["p4/generate.py", "--check"], ["p4/build.py", "--verify"]])
def test_generated_files_and_pages_fit_the_p4_sources(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(
    shutil.which("p4c-bm2-ss") is None, reason="needs p4c-bm2-ss on PATH: docs/p4c.md says where it is packaged"
)
@pytest.mark.timeout(900)
def test_the_artifacts_are_reproducible(tmp_path: Path) -> None:
    """Those of TNA, too, if its compiler bf-p4c is on PATH."""
    copy = tmp_path / "p4"
    shutil.copytree(ROOT / "p4", copy)
    shutil.rmtree(copy / "build")
    subprocess.run([sys.executable, copy / "build.py"], check=True, capture_output=True)
    again = json.loads((copy / "build/lock.json").read_text())
    for made, committed in by_compiler(again, json.loads((ROOT / "p4/build/lock.json").read_text())):
        if made["p4c"] != committed["p4c"]:
            pytest.skip(f"the p4c on PATH is not {committed['p4c']}, which compiled the committed artifacts")
        assert made["artifacts"].keys() == committed["artifacts"].keys()
        for name in committed["artifacts"]:
            assert (copy / "build" / name).read_bytes() == (ROOT / "p4/build" / name).read_bytes(), name


def by_compiler(made: Section, committed: Section) -> Iterator[tuple[Section, Section]]:
    """The two locks' sections, of the compilers that ran."""
    yield made, committed
    if "tofino" in made:
        yield made["tofino"], committed["tofino"]


def test_a_changed_artifact_is_named(tmp_path: Path) -> None:
    copy = tmp_path / "p4"
    subprocess.run(["cp", "-r", str(ROOT / "p4"), str(copy)], check=True)
    victim = copy / "build" / "netfold-v1model-64.json"
    victim.write_text(victim.read_text() + " ")
    done = subprocess.run([sys.executable, copy / "build.py", "--verify"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: artifact netfold-v1model-64.json does not fit")
    assert len(done.stderr.splitlines()) == 1


def test_no_module_prints_or_exits_outside_the_commands() -> None:
    wrong = []
    for path in (p for room in ROOMS for p in modules(room)):
        if path.stem in ("cli", "__main__") or path.parent.name == "commands":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.exit"):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node.func)}")
    assert wrong == []
