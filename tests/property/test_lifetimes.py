"""Arrays outlive what works on them, and nobody waits for a look at a whole tensor."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from hostlib._engine import Engine
from tests.checks import engine_checks

ROOT = Path(__file__).resolve().parents[2]
TIMES = 20


@pytest.mark.parametrize("what", ["engine", "source", "receiver"])
def test_dropped_with_an_array_under_way_nothing_freed_is_touched(what: str) -> None:
    """In a process of its own, which would be ended by SIGSEGV."""
    command = [sys.executable, "-m", "tests.property.dropped", what, str(TIMES)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"


def test_others_go_on_while_an_int32_tensor_is_looked_at() -> None:
    """submit() looks at all of it: without Python's lock, and without the engine's, which `halted` wants."""
    engine = Engine("127.0.0.1")
    engine.configure("127.0.0.1", 9, 1, 1, 0, 2, [(0, 64)], 256, engine_checks(2, 256))
    tensor = np.zeros(1 << 28, np.int32)
    looks, began, ended = [time.monotonic()], threading.Event(), threading.Event()

    def look() -> None:
        while not ended.is_set():
            assert not engine.halted
            looks.append(time.monotonic())
            began.set()

    other = threading.Thread(target=look)
    other.start()
    began.wait()
    before = time.monotonic()
    engine.submit(tensor)
    took_s = time.monotonic() - before
    ended.set()
    other.join()
    engine.halt()
    longest_s = max(later - earlier for earlier, later in pairwise(looks))
    assert longest_s < took_s / 2
