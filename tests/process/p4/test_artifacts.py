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
    assert done.stderr.startswith("error: artifact netfold-v1model-64.json does not fit")
    assert len(done.stderr.splitlines()) == 1
