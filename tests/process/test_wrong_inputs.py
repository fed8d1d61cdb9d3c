"""Wrong inputs that a command notices with a socket in its hand, or in another process; see tests/unit/test_wrong_inputs.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The words behind the prompt, in a folder with the files below, and what is in the line.
WRONG = [
    ("emulation switch --ports 2 --program empty --p4info empty", "not a BMv2 JSON program"),
    ("emulation switch --ports 2 --program deep.json --p4info empty", "not a BMv2 JSON program"),
    ("emulation switch --ports 2 --program list.json --p4info empty", "not a BMv2 JSON program"),
    ("emulation switch --ports 2 --program binary --p4info binary", "cannot read binary and binary: 'utf-8' codec"),
    ("emulation switch --ports 2 --program /dev/zero --p4info empty", "/dev/zero"),
    ("emulation switch --ports 2 --ready-file empty/ready", "empty"),
    ("simulation sweep --mechanism ring --racks 99 --processes 1", "racks must be in 1..8"),
    (
        "controller start --http 192.0.2.1:1 --trusted-network --foreground --state-dir state",
        "cannot listen on 192.0.2.1:1",
    ),
]


@pytest.mark.parametrize(("words", "part"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_input_is_one_line(words: str, part: str, tmp_path: Path) -> None:
    files = {"empty": b"", "deep.json": b"[" * 200_000, "list.json": b"[1,2]", "binary": bytes(range(256)) * 40}
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=tmp_path, capture_output=True, text=True, timeout=20
    )
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and part in line
    left = {path.name for path in tmp_path.iterdir()} - set(files)
    assert left <= {"state"}  # the controller's, with the lock of whoever starts one
