"""`emulation conformance`, with a compiler that only copies what p4c made earlier."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest

from emulation.switch.conformance import suite
from emulation.switch.conformance.suite import Outcome, cases, run
from tests.conftest import ROOT

QUEUE = ROOT / "tests" / "data" / "queue"  # what comes leaves by port 2, with 16 bytes of zeros in front
# p4c-bm2-ss ... -o OUTPUT PROGRAM
COPIES = '#!/bin/sh\nfor last; do :; done\nwhile [ "$1" != -o ]; do shift; done\nexec cp "${last%.p4}.json" "$2"\n'


@pytest.fixture
def samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three programs: what the first one's test expects comes, what the second one's does not; the third does not end."""
    (tmp_path / "bin").mkdir()
    compiler = tmp_path / "bin" / "p4c-bm2-ss"
    compiler.write_text(COPIES)
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(compiler.parent), prepend=":")
    for name, last in (("right", "aa"), ("wrong", "bb"), ("endless", "aa")):
        program = tmp_path / f"{name}-bmv2.p4"
        shutil.copy(QUEUE.with_suffix(".p4"), program)
        shutil.copy(QUEUE.with_suffix(".json"), program.with_suffix(".json"))
        program.with_suffix(".stf").write_text(f"packet 1 {'01' * 16} aa\nexpect 2 {'*' * 32} {last}$\n")
    return tmp_path


def test_a_test_passes_or_says_what_differs_and_none_runs_for_ever(
    samples: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = suite.judge

    def judged(program: Path, scratch: Path) -> Outcome:
        if program.stem == "endless-bmv2":
            time.sleep(3600)
        return judge(program, scratch)

    monkeypatch.setattr(suite, "judge", judged)
    monkeypatch.setattr(suite, "CASE_S", 20)
    seen: list[str] = []
    report = run(cases(samples), lambda outcome: seen.append(outcome.name), jobs=2)
    assert report.passed == ["right-bmv2"] and not report.unsupported and len(seen) == 3
    assert report.failed["endless-bmv2"] == "took longer than 20 s"
    assert report.failed["wrong-bmv2"].startswith("port 2, packet 1: ") and report.failed["wrong-bmv2"].endswith(
        "aa came"
    )
