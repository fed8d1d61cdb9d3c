"""The command `netfold` as a program: how it ends, and what shells complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def netfold(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "netfold", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("schedule rung", "error: unknown mechanism 'rung'; legal are "),
        ("simulate --mechanism rung", "error: unknown mechanism 'rung'; legal are "),
        ("simulate --size 0", "error: --size must be at least 1 byte, not 0"),
        ("simulate nowhere.toml", "error: nowhere.toml"),
        ("emulate nothing-of-that-name", "error: "),
        ("switch", "error: a switch needs ports: "),
        ("controller status --state-dir {}", "error: no controller is running"),
    ],
)
def test_errors_of_all_rooms_are_one_line_and_exit_code_1(words: str, line: str, tmp_path: Path) -> None:
    done = netfold(*words.format(tmp_path).split())
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (1, "", 1)
    assert done.stderr.startswith(line)


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("netfold ", {"train", "simulate", "emulate", "controller", "switch"}),
        ("netfold simulate --mo", {"--model"}),
        ("netfold simulate sw", {"sweep"}),
        ("netfold train --mech", {"--mechanism"}),
    ],
)
def test_shells_complete_its_words(words: str, wanted: set[str]) -> None:
    *typed, incomplete = words.split(" ")
    asked = {"COMP_WORDS": words, "COMP_CWORD": str(len(typed)), "_NETFOLD_COMPLETE": "bash_complete"}
    code = "from netfold.cli import main; main(prog_name='netfold')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, **asked}
    )
    found = {line.partition(",")[2] for line in done.stdout.splitlines()}
    assert wanted <= found and all(word.startswith(incomplete) for word in found)


@pytest.mark.parametrize(
    ("shell", "mark"), [("bash", "complete -o"), ("zsh", "#compdef netfold"), ("fish", "complete --no-files")]
)
def test_it_prints_the_shells_script(shell: str, mark: str) -> None:
    done = netfold("completion", shell)
    assert done.returncode == 0 and mark in done.stdout and "_NETFOLD_COMPLETE" in done.stdout
