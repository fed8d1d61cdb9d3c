"""What is generated of the P4 sources fits them, and the committed artifacts fit their lock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

Section = dict[str, Any]  # of p4/build/lock.json


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
    assert done.stderr.startswith("error: artifact netfold-v1model-64.json does not match")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what p4/generate.py reads and writes."""
    for folder in ("p4/common", "p4/tna", "hostlib/protocol", "hostlib/native/wire", "controller/switches"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "docs").mkdir()
    for file in ("p4/generate.py", "docs/protocol.md", "docs/tofino.md"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def generate(tree: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, tree / "p4/generate.py"], capture_output=True, text=True, timeout=60)


def test_a_new_verdict_is_on_the_pages_once_the_program_says_it(tree: Path) -> None:
    protocol = tree / "p4/common/protocol.p4"
    line = "const bit<8> DROP_OPTIONS    = 35;"
    assert line in protocol.read_text()
    protocol.write_text(protocol.read_text().replace(line, f"const bit<8> DROP_MOOD = 36;  // ours\n{line}"))
    with (tree / "p4/tna/forwarding.p4").open("a") as forwarding:
        forwarding.write("const bit<8> mood = DROP_MOOD;  // DROP_JOB only here\n")
    assert generate(tree).returncode == 0
    assert '"mood": 36' in (tree / "hostlib/protocol/constants.py").read_text()
    assert "| 36 | `DROP_MOOD` | ours |" in (tree / "docs/protocol.md").read_text()
    (row,) = [line for line in (tree / "docs/tofino.md").read_text().splitlines() if "tna/forwarding.p4` |" in line]
    assert "`DROP_MOOD`" in row and "`DROP_JOB`" not in row


def test_a_header_of_another_size_is_named_where_p4_has_its_size_by_hand(tree: Path) -> None:
    protocol, headers = tree / "p4/common/protocol.p4", tree / "p4/common/headers.p4"
    protocol.write_text(protocol.read_text().replace("    bit<16> flags;", "    bit<16> flags;\n    bit<32> mood;"))
    before = (tree / "hostlib/protocol/constants.py").read_bytes()
    refused = generate(tree)
    assert refused.returncode == 1 and len(refused.stderr.splitlines()) == 1
    assert "p4/common/headers.p4 differs: const bit<16> DATAGRAM_BYTES = 8 + 36 + 4 * ELEMENTS;" in refused.stderr
    assert (tree / "hostlib/protocol/constants.py").read_bytes() == before
    headers.write_text(headers.read_text().replace("8 + 32 + 4", "8 + 36 + 4"))
    assert generate(tree).returncode == 0
    assert "HEADER_BYTES = 36" in (tree / "hostlib/protocol/constants.py").read_text()
