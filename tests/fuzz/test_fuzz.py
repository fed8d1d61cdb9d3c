"""The switch under AddressSanitizer and UndefinedBehaviorSanitizer: whatever comes in, no crash and no wrong count.

NETFOLD_FUZZ_PACKETS and NETFOLD_FUZZ_WRITES make the runs longer, NETFOLD_SEED replays one that failed.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from emulation.switch.compiler.cc import find_compiler

ROOT = Path(__file__).resolve().parents[2]
PACKETS = int(os.environ.get("NETFOLD_FUZZ_PACKETS", "20000"))
WRITES = int(os.environ.get("NETFOLD_FUZZ_WRITES", "2000"))
PROGRAMS = ["p4/build/netfold-v1model-64.json", "p4/build/netfold-v1model-256.json", "tests/data/semantics.json"]


def run(what: str, program: str, count: int) -> None:
    seed = int(os.environ.get("NETFOLD_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"replay with NETFOLD_SEED={seed}")  # shown when the test fails
    runtime = subprocess.run([find_compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True).stdout
    # Python itself never frees everything: run.py looks for leaks by what packets leave allocated.
    sanitizer = {"LD_PRELOAD": runtime.strip(), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", what, str(ROOT / program), str(seed), str(count)],
        cwd=ROOT,
        env=os.environ | sanitizer,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.timeout(max(300, PACKETS // 5000))
@pytest.mark.parametrize("program", [PROGRAMS[0], *(pytest.param(p, marks=pytest.mark.slow) for p in PROGRAMS[1:])])
def test_mutated_packets(program: str) -> None:
    run("packets", program, PACKETS)


@pytest.mark.timeout(max(300, WRITES // 50))
@pytest.mark.parametrize("program", PROGRAMS[:1])
def test_mutated_writes(program: str) -> None:
    run("writes", program, WRITES)
