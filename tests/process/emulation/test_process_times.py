"""CPU time of processes that work for others."""

from __future__ import annotations

import os
import subprocess
import sys

from emulation.experiments.process_times import ProcessTimes
from hostlib.system.machine import process_cpu_seconds

WORKS = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"


def test_a_child_counts_as_the_process_that_it_works_for() -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WORKS], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None and child.stdout.readline()
        alone, together = (ProcessTimes.of(os.getpid(), with_children=each) for each in (False, True))
        assert together.threads.keys() - alone.threads.keys() >= {child.pid}
        assert together.cpu_s > alone.cpu_s + 0.2
        assert process_cpu_seconds(os.getpid()) > process_cpu_seconds(child.pid) > 0.2
        child.communicate(b"\n")
    assert process_cpu_seconds(child.pid) == 0.0
